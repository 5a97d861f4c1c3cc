"""The tests with a real vLLM are skipped where it is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from vllm_helpers import tiny_policy

from reinlm.models import save_policy

HERE = Path(__file__).parent
HOW = "needs vLLM: `bash tests/with_vllm/environment.sh` builds an environment with it, and says how to run these tests there"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    found = importlib.util.find_spec("vllm")
    absent = found is None or found.origin is None  # this folder itself is found under the name
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))
            if absent:
                item.add_marker(pytest.mark.skip(reason=HOW))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `tiny_policy` as a folder, with room for an answer that takes seconds."""
    path = tmp_path_factory.mktemp("model")
    save_policy(tiny_policy(context=4096), path)
    return path
