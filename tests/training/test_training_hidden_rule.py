"""The bounds of `benchmarks/hidden_rule.py`: the reward model, and every way to learn from it or from its judgements."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "hidden_rule.py"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_method_learns_the_hidden_rule_from_one_seed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--output", tmp_path, "--seeds", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {line.split(" ", 2)[1]: json.loads(line.split(" ", 2)[2]) for line in done.stdout.splitlines()}
    assert found["reward"]["accuracy"] >= 0.85
    for method in ("dpo", "ipo", "kto", "simpo", "rft"):
        assert found[method]["win_rate"] >= 0.65
    for method in ("ppo", "grpo"):
        assert found[method]["win_rate"] >= 0.75
