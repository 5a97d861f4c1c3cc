"""RLOO: REINFORCE with the other answers as the baseline."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import KL, LeaveOneOut, NoGate, TokenRatio, sequence_sum


@named(
    parent="reinforce",
    source="Back to Basics, arXiv 2402.14740",
    published="2024-02-22",
    equation="A_i = R_i - mean of the other answers,   R_i = R(y_i) - β Σ_t log π_old/π_ref",
    formula=r"A_i = R_i - \frac{1}{G-1} \sum_{j \ne i} R_j, \qquad R_i = R(y_i) - \beta \sum_t"
    r" \log\frac{\pi_{old}(y_{i,t})}{\pi_{ref}(y_{i,t})}",
    use="One update a batch and a reward for whole answers: the simplest unbiased estimator, with 2 to 8 answers "
    "per prompt.",
    fails="Nothing bounds the ratio, so several updates of one batch may diverge; watch ratio/max. The KL is summed over "
    "the answer, so long answers are penalised more.",
)
def rloo() -> Algorithm:
    """REINFORCE against the mean of the other answers, with the KL to the reference subtracted from each answer's reward.

    β = 0.03 as for TL;DR in the paper (0.1 for HH), 2 or 4 answers a prompt.
    """
    return Algorithm(
        name="rloo",
        advantage=LeaveOneOut(),
        ratio=TokenRatio(),
        gate=NoGate(),
        kl=KL(estimator="k1", coefficient=0.03, placement="sequence_reward"),
        aggregation=sequence_sum,
        updates=Updates(passes=1, minibatches=1),
    )
