"""GRPO: PPO without a critic."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import KL, Clip, GroupStandardize, TokenRatio, sequence_mean


@named(
    parent="ppo",
    source="DeepSeekMath, arXiv 2402.03300",
    published="2024-02-05",
    equation="J = 1/S Σ_i 1/L_i Σ_t [ min( r A_i, clip(r, 1-ε, 1+ε) A_i ) - β k3 ],   A_i = (R_i - mean) / std of the group",
    formula=r"J(\theta) = \frac{1}{S} \sum_i \frac{1}{L_i} \sum_t \Big[ \min\big(r_{i,t} A_i,"
    r"\ \mathrm{clip}(r_{i,t}, 1-\varepsilon, 1+\varepsilon)"
    r" A_i\big) - \beta\, k_3 \Big], \qquad A_i = \frac{R_i - \mathrm{mean}_g(R)}{\mathrm{std}_g(R)}",
    use="Answers that can be checked, 8 or more of them a prompt. The default.",
    fails="Groups that agree have no signal: watch frac_reward_zero_std. Dividing by the deviation lifts groups that "
    "almost agree, and the sequence mean spares long wrong answers.",
)
def grpo() -> Algorithm:
    """PPO without a critic: the mean of the group is the baseline, with a k3 KL penalty to the reference in the loss.

    DeepSeekMath §4.1, with its β = 0.04, 64 answers a prompt and a single update a batch. The paper states no clip range: 0.2 is
    PPO's.
    """
    return Algorithm(
        name="grpo",
        advantage=GroupStandardize(),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        kl=KL(estimator="k3", coefficient=0.04),
        aggregation=sequence_mean,
        updates=Updates(passes=1, minibatches=1),
    )
