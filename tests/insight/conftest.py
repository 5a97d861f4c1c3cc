"""Runs that several files of tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from insight_runs import make_quickstart


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_quickstart(tmp_path_factory.mktemp("runs") / "quickstart")
