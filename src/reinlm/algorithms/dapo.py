"""DAPO: GRPO with a higher upper clip, equal tokens, mixed groups and a soft length limit."""

from dataclasses import replace

from reinlm.algorithms.algorithm import Algorithm
from reinlm.algorithms.filters import MixedOutcomes
from reinlm.algorithms.grpo import grpo
from reinlm.algorithms.shapers import SoftOverlong
from reinlm.objectives import Clip, token_mean


def dapo() -> Algorithm:
    """GRPO that clips higher, weighs every token the same, samples until groups are mixed, and ties to no reference.

    DAPO, arXiv 2503.14476 §3: clip 0.2 / 0.28, and a soft punishment over the last fifth of the length limit.
    """
    return replace(
        grpo(),
        name="dapo",
        gate=Clip(0.2, 0.28),
        weights=token_mean,
        kl=None,
        filters=(MixedOutcomes(),),
        shapers=(SoftOverlong(),),
        source="DAPO, arXiv 2503.14476",
    )
