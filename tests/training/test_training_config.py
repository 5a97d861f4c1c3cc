"""What a run's folder holds of its configuration is a recipe for the same configuration."""

from __future__ import annotations

from typing import Any

import pytest

from reinlm.config import build, dump_yaml, parse_yaml
from reinlm.errors import InputError
from reinlm.training.config import RLConfig, SFTConfig, dump

COMMON = {"model": {"path": "m"}, "data": {"path": "train.jsonl"}}


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        (SFTConfig, {}),
        (SFTConfig, {"optimizer": {"name": "sgd", "options": {"momentum": 0.9}}, "reward": "math"}),
        (RLConfig, {"reward": "math"}),
        (RLConfig, {"reward": [{"name": "regex", "pattern": "#", "weight": 0.5}, "math"]}),
        (RLConfig, {"reward": "math", "rollout": {"temperature_end": 0.5, "schedule": "cosine"}}),
        (RLConfig, {"environment": "mine.py:Game", "rollout": {"order": "arrival", "episode_time_limit": 9.0}}),
        (RLConfig, {"reward": "math", "text": {"data": "text.jsonl"}, "critic": {"optimizer": {"name": "sgd"}}}),
        (RLConfig, {"reward": "math", "text": {"data": "t.jsonl", "loss": "kl", "direction": "forward"}}),
        (RLConfig, {"reward": "math", "run": {"trackers": [{"wandb": {"project": "x"}}]}}),
        (RLConfig, {"reward": "math", "run": {"tensorboard": False}, "evaluation": {"data": "test.jsonl"}}),
        (RLConfig, {"reward": "math", "algorithm": {"base": "grpo", "kl": None}, "model": {"path": "m", "lora": {}}}),
    ],
)
def test_a_configuration_comes_back_from_its_file(kind: Any, sections: dict[str, Any]) -> None:
    config = build(kind, COMMON | sections)
    again = build(kind, parse_yaml(dump_yaml(dump(config)), "config.yaml"))
    assert dump(again) == dump(config)
    assert again == config


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"optimizer": {"name": "sgd", "epsilon": 1e-6}}, "epsilon has no effect on the optimizer sgd"),
        ({"optimizer": {"name": "sgd", "betas": [0.8, 0.9]}}, "betas has no effect on the optimizer sgd"),
        ({"optimizer": {"name": "lion"}}, "unknown optimizer 'lion'"),
        ({"rollout": {"schedule": "cosine"}}, "schedule cosine has no effect without temperature_end"),
    ],
)
def test_what_has_no_effect_is_refused(section: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build(RLConfig, COMMON | {"reward": "math"} | section)
