"""SAPO: GRPO with a soft gate."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import GroupStandardize, Soft, TokenRatio, sequence_mean


@named(
    parent="grpo",
    source="SAPO, arXiv 2511.20347",
    published="2025-11",
    equation="J = 1/S Σ_i 1/L_i Σ_t 4/τ · σ( τ (r_{i,t} - 1) ) A_i,   τ = τ_pos where A_i > 0, else τ_neg",
    formula=r"J(\theta) = \frac{1}{S} \sum_i \frac{1}{L_i} \sum_t \frac{4}{\tau}\, \sigma\big(\tau (r_{i,t} -"
    r" 1)\big) A_i, \qquad"
    r" \tau = \tau_{pos}\ \text{if}\ A_i > 0\ \text{else}\ \tau_{neg}",
    use="Several updates a batch where a clip removes the gradient of too many tokens: here it decreases smoothly.",
    fails="No gradient becomes exactly 0, so tokens with extreme ratios keep a small influence; with tau_neg below "
    "tau_pos training is unstable (§5).",
)
def sapo() -> Algorithm:
    """GRPO with a soft gate instead of the clip, narrower for tokens with negative advantage, and no KL.

    τ = 1.0 for A > 0 and 1.05 otherwise, four updates a batch, as in §5.1.
    """
    return Algorithm(
        name="sapo",
        advantage=GroupStandardize(),
        ratio=TokenRatio(),
        gate=Soft(positive=1.0, negative=1.05),
        kl=None,
        aggregation=sequence_mean,
        updates=Updates(passes=1, minibatches=4),
    )
