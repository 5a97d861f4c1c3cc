"""Scaling GRPO: DeepSeek-V3.2's GRPO."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import KL, Clip, GroupCenter, OffPolicyMask, TokenRatio, sequence_mean


@named(
    parent="grpo",
    source="DeepSeek-V3.2, arXiv 2512.02556 §3.1",
    published="2025-12",
    equation="J = 1/S Σ_i 1/L_i Σ_t [ M min( r A_i, clip(r) A_i ) - β r k3 ];  M = 0 if A_i < 0 and mean_t log π_roll/π_θ > δ",
    formula=r"J(\theta) = \frac{1}{S} \sum_i \frac{1}{L_i} \sum_t \Big[ M_{i,t} \min(r_{i,t} A_i,"
    r" \mathrm{clip}(r_{i,t}) A_i)"
    r" - \beta\, r_{i,t}\, k_3 \Big], \qquad M_{i,t} = 0\ \text{iff}\ A_{i,t} < 0\ \text{and}\ \frac{1}{L_i} \sum_t"
    r" \log\frac{\pi_{roll}}{\pi_\theta} > \delta",
    use="Many updates a batch, samples of older weights, or an engine that computes otherwise than the trainer.",
    fails="δ too low drops most answers with negative advantage: watch sequence_mask/dropped. The paper gives neither δ nor β.",
)
def scaling_grpo() -> Algorithm:
    """GRPO with an unbiased KL, the off-policy sequence mask, and advantages that are not divided by the deviation.

    β and δ are not disclosed: 0.001 as for DeepSeek-R1, and 0.1 nats a token. Its two other parts, routing replay and
    the kept set of top-p sampling, need an engine that records them. §3.1
    splits a batch into several mini-batches for as many gradient steps and gives no number: four, as for GSPO.
    """
    return Algorithm(
        name="scaling_grpo",
        advantage=GroupCenter(),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        kl=KL(estimator="k3_unbiased", coefficient=0.001),
        aggregation=sequence_mean,
        sequence_mask=OffPolicyMask(threshold=0.1),
        updates=Updates(passes=1, minibatches=4),
    )
