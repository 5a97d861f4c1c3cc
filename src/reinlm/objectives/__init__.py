"""The mathematics: pure functions and small frozen choices on flat tensors over the tokens that a policy chose.

This package imports torch alone. Shapes: N tokens, T turns, S sequences, E episodes, G prompt groups.
"""

from reinlm.objectives.advantages import (
    GAE,
    Advantage,
    Feedback,
    GroupCenter,
    GroupStandardize,
    discounted_returns,
    gae,
    group_center,
    group_standardize,
    process_advantages,
    whiten,
)
from reinlm.objectives.aggregation import (
    Aggregation,
    ConstantBudget,
    Counts,
    prompt_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
)
from reinlm.objectives.gates import Clip, Gate, Gated, clip_surrogate
from reinlm.objectives.kl import KL, k1, k2, k3
from reinlm.objectives.layout import LEVELS, Layout, Level
from reinlm.objectives.ratios import Ratio, SequenceRatio, TokenRatio, exponent
from reinlm.objectives.shaping import soft_overlong_penalty
from reinlm.objectives.signals import Loss, Metrics, Signals
from reinlm.objectives.values import value_loss

__all__ = [
    "GAE",
    "KL",
    "LEVELS",
    "Advantage",
    "Aggregation",
    "Clip",
    "ConstantBudget",
    "Counts",
    "Feedback",
    "Gate",
    "Gated",
    "GroupCenter",
    "GroupStandardize",
    "Layout",
    "Level",
    "Loss",
    "Metrics",
    "Ratio",
    "SequenceRatio",
    "Signals",
    "TokenRatio",
    "clip_surrogate",
    "discounted_returns",
    "exponent",
    "gae",
    "group_center",
    "group_standardize",
    "k1",
    "k2",
    "k3",
    "process_advantages",
    "prompt_mean",
    "sequence_mean",
    "sequence_sum",
    "soft_overlong_penalty",
    "token_mean",
    "value_loss",
    "whiten",
]
