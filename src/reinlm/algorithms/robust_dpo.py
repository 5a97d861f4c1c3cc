"""Robust DPO: an unbiased estimate of the loss of the true labels."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import RobustDPO


@preference(
    parent="dpo",
    source="Robust DPO, arXiv 2403.00409",
    published="2024-03-01",
    equation="L = [ - (1-ε) log σ( β h ) + ε log σ( -β h ) ] / (1-2ε)",
    formula=r"L(\theta) = \frac{-(1-\varepsilon)\log\sigma(\beta h) + \varepsilon\log\sigma(-\beta h)}{1-2\varepsilon}",
    use="Judgements of which a known share was flipped at random.",
    fails="The loss has no lower bound and its variance grows without limit as ε nears ½.",
)
def robust_dpo() -> PreferenceAlgorithm:
    """DPO whose expected loss under flipped labels is that of the true labels.

    β = 0.1, ε = 0.1. The loss of a pair may be negative.
    """
    return PreferenceAlgorithm(name="robust_dpo", loss=RobustDPO(beta=0.1, label_smoothing=0.1))
