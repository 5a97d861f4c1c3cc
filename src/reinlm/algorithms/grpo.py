"""GRPO: PPO without a critic."""

from reinlm.algorithms.algorithm import Algorithm
from reinlm.objectives import KL, Clip, GroupStandardize, TokenRatio, sequence_mean


def grpo() -> Algorithm:
    """PPO without a critic: the group is the baseline, and a k3 penalty ties the policy to the reference.

    DeepSeekMath, arXiv 2402.03300 §4.1, with its β = 0.04. The paper states no clip range: 0.2 is PPO's.
    """
    return Algorithm(
        name="grpo",
        advantage=GroupStandardize(),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        weights=sequence_mean,
        kl=KL(estimator="k3", coefficient=0.04),
        source="DeepSeekMath, arXiv 2402.03300",
    )
