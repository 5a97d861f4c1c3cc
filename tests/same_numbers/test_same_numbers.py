"""Every metric and every weight of the runs in `same_recipes` is what it was when `record.py` wrote `recorded/`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from same_recipes import RECIPES, RECORDED, STEPS, metrics, weights

pytestmark = pytest.mark.no_cover

RELATIVE = 1e-5
"""Of a metric to its recorded value, and of a weight tensor's change to the tensor's norm."""
ABSOLUTE = 1e-6
"""What is 0 but for rounding: a loss that cancels, or the sampler's float32 log-probabilities, differs by less than this."""

MENDS: dict[str, set[str]] = {
    "it counted every sampled token, those of dropped and untrained answers too": {"num_tokens"},
}
"""Why a metric may differ from what was recorded -> the names of the metrics, in every run."""

ACTS: dict[str, tuple[str, ...]] = {
    "sft": ("eval/held_out/loss", "eval/held_out/entropy"),
    "sft_packed": ("eval/held_out/accuracy",),
    "grpo": ("kl", "rewards/even_end/std"),
    "grpo_several": ("approx_kl", "clip_ratio/low_mean", "clip_ratio/high_mean"),
    "gspo": ("approx_kl", "clip_ratio/low_mean", "clip_ratio/high_mean"),
    "dapo": ("groups/dropped", "completions/untrained", "clip_ratio/region_mean", "rewards/even_end/std"),
    "ppo_own": ("approx_kl", "clip_ratio/region_mean", "value_loss", "values/clip_ratio", "explained_variance"),
    "ppo_shared": ("critic/warmup", "value_loss", "critic/grad_norm", "approx_kl"),
    "ppo_penalty": ("kl/old", "kl/old_coefficient", "value_loss"),
    "replay": ("groups/replayed", "clip_ratio/region_mean", "kl"),
    "lora": ("kl", "approx_kl"),
    "lora_critic": ("critic/warmup", "kl", "approx_kl", "value_loss"),
    "gradient_checkpointing": ("kl", "approx_kl", "clip_ratio/region_mean"),
    "greedy_baseline": ("approx_kl",),
    "loop_options": (
        "kl/full",
        "sequence_mask/dropped",
        "selection/selected",
        "updates/stopped",
        "entropy/coefficient",
        "correction/mean",
    ),
}
"""Metrics that show that a run reaches what it is there for: above 0 in some step."""


def recorded(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def same(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_gives_the_numbers_that_were_recorded(name: str, tmp_path: Path) -> None:
    result = RECIPES[name](tmp_path / name)
    rows, expected = metrics(result), recorded(name)
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    mended = set().union(*MENDS.values())
    different = [
        f"step {row['step']} {key}: {row.get(key, 'missing')}, recorded {value}"
        for row, before in zip(rows, expected, strict=True)
        for key, value in before.items()
        if key not in mended and not (key in row and same(row[key], value))
    ]
    assert not different, "\n".join(different)
    found = weights(result)
    moved = {key: distance(found.get(key), value) for key, value in load_file(RECORDED / f"{name}.safetensors").items()}
    assert {key: far for key, far in moved.items() if not far <= RELATIVE} == {}


def distance(found: torch.Tensor | None, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm; infinite for a tensor that is missing or has another shape."""
    if found is None or found.shape != expected.shape:
        return math.inf
    expected = expected.double()
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_recorded_reaches_what_the_run_is_there_for(name: str) -> None:
    rows = recorded(name)[1:]
    assert len(rows) == STEPS

    def values(key: str) -> list[float]:
        return [row[key] for row in rows if row.get(key) is not None]

    for key in ACTS[name]:
        assert max(values(key)) > 0.0, key
    assert any(abs(value) > 1e-3 for value in values("loss"))
    assert min(values("grad_norm")) > 0.0
    if "reward" in rows[0]:
        assert min(values("reward_std")) > 0.0
        assert len(set(values("reward"))) == STEPS
        assert min(values("advantage/std")) > 0.0
        assert min(values("completions/clipped_ratio")) > 0.0
        assert max(values("completions/clipped_ratio")) < 1.0


def test_dapo_needed_several_attempts() -> None:
    assert max(row.get("groups/attempts", 0.0) for row in recorded("dapo")) > 1.0


def test_the_coefficient_of_a_penalty_and_of_a_bonus_moved() -> None:
    for name, key in (("ppo_penalty", "kl/old_coefficient"), ("loop_options", "entropy/coefficient")):
        assert len({row[key] for row in recorded(name) if key in row}) > 2
