"""GMPO: GRPO with the geometric mean of an answer's ratios."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import GeometricMean, GroupStandardize, TokenRatio, sequence_mean


@named(
    parent="grpo",
    source="GMPO, arXiv 2507.20673",
    published="2025-07-28",
    equation="J = 1/S Σ_i A_i exp( 1/L_i Σ_t x̃_{i,t} ),   x̃ = min(x, c) where A_i > 0, else max(x, -c),   x = log π_θ/π_old",
    formula=r"J(\theta) = \frac{1}{S} \sum_i A_i \exp\Big(\frac{1}{L_i} \sum_t \tilde x_{i,t}\Big), \qquad"
    r" \tilde x = \begin{cases} \min(x, c) & A_i > 0 \\ \max(x, -c) & A_i < 0 \end{cases}, \qquad"
    r" x = \log\frac{\pi_\theta}{\pi_{old}}",
    use="Long answers with single tokens of extreme ratio: the mean hardly moves, and most tokens keep their gradient.",
    fails="The bound on each token is wide, and that on the answer follows from it alone: watch approx_kl over many updates.",
)
def gmpo() -> Algorithm:
    """GRPO whose answers count by the geometric mean of their tokens' ratios, each clipped before the mean, and no KL.

    c = 0.4, so that a token's ratio counts between 0.67 and 1.49 on the side that its advantage points to; 8 updates of
    128 answers a batch, as in its code.
    """
    return Algorithm(
        name="gmpo",
        advantage=GroupStandardize(),
        ratio=TokenRatio(),
        gate=GeometricMean(0.4),
        kl=None,
        aggregation=sequence_mean,
        updates=Updates(passes=1, minibatches=8),
    )
