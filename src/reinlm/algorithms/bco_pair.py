"""BCO of pairs: the chosen answer above 0 and the rejected one below."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import BCOPair


@preference(
    parent="dpo",
    source="BCO, arXiv 2404.04656",
    published="2024-04-06",
    equation="L = - log σ( β a_w ) - log σ( -β a_l )",
    formula=r"L(\theta) = -\log\sigma(\beta a_w) - \log\sigma(-\beta a_l)",
    use="Pairs in which the likelihood of the chosen answer shall rise by itself.",
    fails="Chosen and rejected answers that are alike pull against each other.",
)
def bco_pair() -> PreferenceAlgorithm:
    """Each side of the pair is classified by itself, without a shift.

    β = 0.1.
    """
    return PreferenceAlgorithm(name="bco_pair", loss=BCOPair(beta=0.1))
