"""The recipe on the page about training is one that the library takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from reinlm.algorithms import resolve
from reinlm.config import build
from reinlm.training.config import RLConfig

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_recipe_is_read_and_every_key_takes_its_value():
    written = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    config: Any = build(RLConfig, {**written, "model": "path", "data": "file", "reward": "math"})
    critic = resolve(config.algorithm).critic
    assert critic is not None
    assert critic.clip is None
    assert (config.critic.warmup_steps, config.critic.optimizer.learning_rate) == (20, 1e-5)
    assert (config.training.replay.groups, config.training.reference_refresh.mix) == (8, 0.6)
    assert (config.training.target_kl, config.training.kl_learning_rate) == (0.02, 0.01)


def test_every_controller_on_the_page_exists():
    for name, values in (("schulman", 0.01), ("ziegler", None), ("band", [0.01, 0.05]), ("linear", [0.1, 50])):
        assert f"`{name}`" in PAGE or f"{{{name}:" in PAGE
        assert resolve({"base": "grpo", "kl": {"controller": {name: values}}}).active_kl[0].controller
