"""GSPO: GRPO with one ratio a sequence."""

from dataclasses import replace

from reinlm.algorithms.algorithm import Algorithm
from reinlm.algorithms.grpo import grpo
from reinlm.objectives import Clip, SequenceRatio


def gspo() -> Algorithm:
    """GRPO with one ratio a sequence, a clip range to match, and no KL.

    Group Sequence Policy Optimization, arXiv 2507.18071 eqs. 5 to 7, clip 3e-4 / 4e-4 as in its §5.1.
    """
    return replace(
        grpo(),
        name="gspo",
        ratio=SequenceRatio(),
        gate=Clip(3e-4, 4e-4),
        kl=None,
        source="GSPO, arXiv 2507.18071",
    )
