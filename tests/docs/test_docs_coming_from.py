"""The page for users of other libraries: its tables are those of `reinlm.aliases`, and its recipes are taken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from reinlm.algorithms import resolve
from reinlm.aliases import ALIASES
from reinlm.config import build
from reinlm.key_reference import names_table
from reinlm.objectives import Clip
from reinlm.training.config import RLConfig, SFTConfig

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text(encoding="utf-8")


def test_every_table_is_that_of_the_library() -> None:
    for library in ALIASES:
        assert names_table(library) in PAGE, f"under {library} should stand:\n{names_table(library)}"


def test_the_recipes_are_taken_and_every_key_has_its_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rewards.py").write_text("def score(completions):\n    return [0.0] * len(completions)\n")
    monkeypatch.chdir(tmp_path)
    trl, verl = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
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


def test_the_sft_call_is_one_that_the_configuration_knows() -> None:
    call = re.search(r'reinlm\.sft\(\s*"PATH_OR_NAME",\s*"train.jsonl",(.*?)\n\)', PAGE, re.DOTALL)
    assert call is not None
    given = eval(f"dict({call[1]})")
    config = build(SFTConfig, {"model": "m", "data": "d", **{k: v for k, v in given.items() if k != "output"}})
    assert (config.training.batch_size, config.training.packing) == (64, "pack")
