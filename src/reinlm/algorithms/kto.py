"""KTO: answers that are labelled good or bad, without pairs."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import KTO


@preference(
    parent=None,
    source="KTO, arXiv 2402.01306",
    published="2024-02-02",
    equation="L = λ_D ( 1 - σ( β (a - z0) ) ) if desirable, λ_U ( 1 - σ( β (z0 - a) ) ) if not,   a = log π(y)/π_ref(y)",
    formula=r"L(\theta) = \lambda_y\big(1 - \sigma(\pm\beta(a - z_0))\big), \qquad z_0 = \max\big(0,"
    r" \mathbb{E}\,\mathrm{KL}\big)",
    use="Thumbs up and down, or pairs taken apart; wrong labels hurt little, since both sides level off.",
    fails="Unequal classes: keep λ_D n_D / (λ_U n_U) between 1 and 4/3. z0 is noisy in small batches.",
)
def kto() -> PreferenceAlgorithm:
    """Prospect theory: each answer's log-ratio against that of answers to other prompts.

    β = 0.1, λ_D = λ_U = 1. z0 is the mean log-ratio of mismatched answers of the step, at least 0, a constant.
    """
    return PreferenceAlgorithm(name="kto", loss=KTO(beta=0.1, desirable_weight=1.0, undesirable_weight=1.0))
