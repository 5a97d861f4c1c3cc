"""The page for users of other libraries: its tables are those of `reinlm.aliases`, and its recipes are taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

from reinlm.algorithms import resolve
from reinlm.aliases import ALIASES
from reinlm.config import build
from reinlm.key_reference import names_table
from reinlm.objectives import Clip, GroupStandardize, group_standardize, token_mean
from reinlm.training.config import RLConfig, SFTConfig
from reinlm.training.optimizer import OptimizerConfig, learning_rate

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text(encoding="utf-8")


def test_every_table_is_that_of_the_library() -> None:
    for library in ALIASES:
        assert names_table(library) in PAGE, f"under {library} should stand:\n{names_table(library)}"


def test_the_recipes_are_taken_and_every_key_has_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rewards.py").write_text("def score(completions):\n    return [0.0] * len(completions)\n")
    monkeypatch.chdir(tmp_path)
    trl, _, verl = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
    config = build(RLConfig, trl)
    assert (config.rollout.group_size, config.rollout.batch_size, config.training.passes) == (8, 64, 1)
    algorithm = resolve(config.algorithm)
    assert isinstance(algorithm.gate, Clip)
    assert (algorithm.gate.low, algorithm.gate.high, algorithm.active_kl[0].coefficient) == (0.2, 0.28, 0.04)
    config = build(RLConfig, verl)
    assert config.rollout.batch_size == 1024 * config.rollout.group_size
    assert config.training.minibatches is not None
    assert config.rollout.groups // config.training.minibatches == 256
    assert resolve(config.algorithm).active_kl[0].estimator == "k3"


def test_the_recipe_of_trls_defaults_has_its_advantages_and_its_learning_rates() -> None:
    """Against TRL's two lines: (r - mean) / (torch.std(r) + 1e-4) by group, and the share (N - k) / N of the rate at update k."""
    given = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    made = resolve(given["algorithm"])
    assert not made.active_kl
    assert made.aggregation is token_mean
    assert isinstance(made.advantage, GroupStandardize)
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.25, 0.5, 2.0, 0.5], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    group = torch.arange(3).repeat_interleave(4)
    ours = group_standardize(rewards.flatten(), group, 3, made.advantage.epsilon, made.advantage.bessel)
    trl = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(ours, trl.flatten(), rtol=0, atol=1e-12)
    steps, optimizer = given["training"]["steps"], build(OptimizerConfig, given["optimizer"])
    for k in (0, 1, 250, steps - 1):
        assert learning_rate(optimizer, k, steps) == pytest.approx(1e-6 * (steps - k) / steps, rel=1e-12)


def test_the_sft_call_is_one_that_the_configuration_knows() -> None:
    call = re.search(r'reinlm\.sft\(\s*"PATH_OR_NAME",\s*"train.jsonl",(.*?)\n\)', PAGE, re.DOTALL)
    assert call is not None
    given = eval(f"dict({call[1]})")
    config = build(SFTConfig, {"model": "m", "data": "d", **{k: v for k, v in given.items() if k != "output"}})
    assert (config.training.batch_size, config.training.packing) == (64, "pack")
