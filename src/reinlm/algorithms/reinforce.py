"""REINFORCE: the first policy gradient."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import NoGate, Returns, TokenRatio, sequence_sum


@named(
    parent=None,
    source="Williams (1992), Simple statistical gradient-following algorithms, Machine Learning 8",
    published="1992-05",
    equation="J = 1/S Σ_i Σ_t r_{i,t} G_{i,t},   G_{i,t} = Σ_{k≥t} γ^{k-t} R_{i,k}",
    formula=r"J(\theta) = \frac{1}{S} \sum_i \sum_t r_{i,t}(\theta)\, G_{i,t}, \qquad G_{i,t} = \sum_{k \ge t}"
    r" \gamma^{k-t} R_{i,k}",
    use="The plain policy gradient: no baseline, no clip, no KL. With rewards of 0 and 1 it imitates the right "
    "answers.",
    fails="The variance of a return without a baseline: where most answers earn about the same, nearly all of the "
    "gradient is noise. Several updates of one batch raise the probability of right answers without bound: "
    "watch ratio/max and entropy.",
)
def reinforce() -> Algorithm:
    """The policy gradient without a baseline: the weight of a token is the return from it on.

    A sequence is one action, so its tokens are summed. The ratio is 1 on the first update of a batch, where the gradient is
    that of Σ G log π; on later ones it is the importance weight of the token.
    """
    return Algorithm(
        name="reinforce",
        advantage=Returns(gamma=1.0),
        ratio=TokenRatio(),
        gate=NoGate(),
        kl=None,
        aggregation=sequence_sum,
        updates=Updates(passes=1, minibatches=1),
    )
