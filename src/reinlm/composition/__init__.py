"""What named algorithms are made of: the five choices and the switches around them, and how they meet the data."""

from reinlm.composition import metrics as metrics  # importing the composition declares its metrics
from reinlm.composition.algorithm import Algorithm, AlgorithmState, Objective
from reinlm.composition.choices import compose, describe
from reinlm.composition.composition import Updates
from reinlm.composition.filters import GroupFilter, MixedOutcomes, with_first_reward
from reinlm.composition.shapers import MissingEnd, Shaper, SoftOverlong, shaped

__all__ = [
    "Algorithm",
    "AlgorithmState",
    "GroupFilter",
    "MissingEnd",
    "MixedOutcomes",
    "Objective",
    "Shaper",
    "SoftOverlong",
    "Updates",
    "compose",
    "describe",
    "shaped",
    "with_first_reward",
]
