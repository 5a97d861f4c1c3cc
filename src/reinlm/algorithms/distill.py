"""On-policy distillation: a teacher judges the student's own tokens."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import NoGate, TeacherLogRatio, TokenRatio, token_mean


@named(
    parent="reinforce",
    source="MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649",
    published="2023-06",
    equation="J = 1/N Σ_t r_t A_t,   A_t = log π_teacher(y_t) - log π_old(y_t)",
    formula=r"J(\theta) = \frac{1}{N} \sum_t r_t(\theta)\, A_t, \qquad A_t = \log\frac{\pi_{teacher}(y_t)}{\pi_{old}(y_t)}",
    use="A larger model with the same tokenizer that answers well: every token of the student's own answers gets its judgement.",
    fails="Nothing beyond the teacher is learned, and a state that the teacher would never reach is judged all the same. The "
    "reverse KL picks one of the teacher's ways: watch entropy. Over the vocabulary instead of samples: advantage=none and "
    "kl={anchor: teacher, estimator: full}.",
)
def distill() -> Algorithm:
    """Samples of the student, each token rewarded by how much likelier the teacher finds it than the student did.

    In expectation the gradient of KL(π_θ ‖ π_teacher) at each token, without what a token leads to (γ = 0); no baseline, no
    reward function, one update a batch. Teacher and student share a tokenizer.
    """
    return Algorithm(
        name="distill",
        advantage=TeacherLogRatio(),
        ratio=TokenRatio(),
        gate=NoGate(),
        kl=None,
        weights=token_mean,
        updates=Updates(passes=1, minibatches=1),
    )
