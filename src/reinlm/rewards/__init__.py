"""Rewards: what an answer is worth, by rules, by maths, or by functions that users write.

with build_rewards(["math", {"name": "rewards.py:polite", "weight": 0.1}]) as rewards:
    scored = rewards.score(groups, TrainerState(global_step=3, max_steps=100))
"""

from __future__ import annotations

from reinlm.rewards.builtin import BUILTIN
from reinlm.rewards.scoring import RewardSet, Scored, build_rewards
from reinlm.rewards.spec import RewardConfig, RewardSpec
from reinlm.rewards.values import StepRewards, TrainerState

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
