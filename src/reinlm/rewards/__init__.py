"""Rewards: built-in rules, mathematical equivalence, and users' functions, in worker processes.

    with build_rewards(["math", {"name": "rewards.py:polite", "weight": 0.1}]) as rewards:
        scored = rewards.score(groups, TrainerState(global_step=3, max_steps=100))

Names are imported when they are first used: worker processes need a few of them, and start in a tenth of a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reinlm.rewards.building import build_rewards
    from reinlm.rewards.builtin import BUILTIN
    from reinlm.rewards.scoring import RewardSet, Scored
    from reinlm.rewards.spec import RewardConfig, RewardSpec
    from reinlm.rewards.steps import StepRewards
    from reinlm.rewards.values import TrainerState

__all__ = [
    "BUILTIN",
    "RewardConfig",
    "RewardSet",
    "RewardSpec",
    "Scored",
    "StepRewards",
    "TrainerState",
    "build_rewards",
]

_HOME = {
    "BUILTIN": "builtin",
    "RewardConfig": "spec",
    "RewardSet": "scoring",
    "RewardSpec": "spec",
    "Scored": "scoring",
    "StepRewards": "steps",
    "TrainerState": "values",
    "build_rewards": "building",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
