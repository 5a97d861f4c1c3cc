"""On-policy distillation: the student's own tokens are scored by a teacher."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import NoGate, TeacherLogRatio, TokenRatio, token_mean


@named(
    parent="reinforce",
    source="MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649",
    published="2023-06",
    equation="J = 1/N Σ_t r_t A_t,   A_t = log π_teacher(y_t) - log π_old(y_t)",
    formula=r"J(\theta) = \frac{1}{N} \sum_t r_t(\theta)\, A_t, \qquad A_t = \log\frac{\pi_{teacher}(y_t)}{\pi_{old}(y_t)}",
    use="A larger model with the same tokenizer that answers well: every token of the student's own answers gets a "
    "learning signal.",
    fails="Nothing beyond the teacher is learned, and the teacher also scores states that it would never reach, "
    "where it is unreliable. The reverse KL concentrates on one mode of the teacher: watch entropy. Over the "
    "vocabulary instead of samples: advantage=none and kl={anchor: teacher, estimator: full}.",
)
def distill() -> Algorithm:
    """Samples of the student; the advantage of a token is log π_teacher - log π_old.

    In expectation this is the gradient of KL(π_θ ‖ π_teacher) at each token, without later tokens (γ = 0). No baseline, no
    reward function, one update per batch. Teacher and student share a tokenizer.
    """
    return Algorithm(
        name="distill",
        advantage=TeacherLogRatio(),
        ratio=TokenRatio(),
        gate=NoGate(),
        kl=None,
        aggregation=token_mean,
        updates=Updates(passes=1, minibatches=1),
    )
