"""IPO: the difference of both log-ratios shall be a given number."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import IPO


@preference(
    parent="dpo",
    source="IPO, arXiv 2310.12036",
    published="2023-10-18",
    equation="L = ( h - 1/(2τ) )²",
    formula=r"L(\theta) = \Big(h - \frac{1}{2\tau}\Big)^2",
    use="Few or certain judgements, on which DPO would push the difference without end.",
    fails="The target counts nats of whole answers, so long answers reach it by little at each token; "
    "length_normalized=true compares means over tokens.",
)
def ipo() -> PreferenceAlgorithm:
    """DPO with a squared distance to a finite target.

    β stands for the paper's τ, 0.1. The paper compares sums; TRL and others compare means over tokens (`length_normalized`).
    """
    return PreferenceAlgorithm(name="ipo", loss=IPO(beta=0.1))
