"""On-policy distillation brings the quickstart's SFT model to its RL model. Minutes: run with -m slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from reinlm import evaluate, rl
from reinlm.quickstart import run_quickstart

RECIPE = Path(__file__).parents[2] / "recipes" / "distill_quickstart.yaml"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_distill_takes_the_sft_model_to_within_five_points_of_its_teacher(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quickstart = run_quickstart("runs/quickstart", seed=seed, quiet=True)
    assert quickstart["accuracy_after"] - quickstart["accuracy_before"] > 0.3
    rl(recipe=RECIPE, seed=seed, quiet=True)
    judged = evaluate(
        "runs/distill/checkpoints/last",
        "runs/quickstart/data/test.jsonl",
        reward="exact_match",
        seed=seed,
        evaluation={"temperature": 1.0, "max_new_tokens": 6, "samples": 4},
    )
    assert judged.metrics["accuracy"] >= quickstart["accuracy_after"] - 0.05
