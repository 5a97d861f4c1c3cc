"""The page of claims names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_claim_names_a_test_that_exists():
    table = (ROOT / "docs/claims.md").read_text().split("\n\n")[2]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        shown = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert shown, f"no test is named: {row}"
        for path, name in shown:
            assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"
