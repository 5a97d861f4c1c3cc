"""DPO with length normalisation."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import NormalizedDPO


@preference(
    parent="dpo",
    source="Tülu 3, arXiv 2411.15124",
    published="2024-11-22",
    equation="L = - log σ( β ( a_w/|y_w| - a_l/|y_l| ) )",
    formula=r"L(\theta) = -\log\sigma\Big(\beta\Big(\frac{a_w}{|y_w|} - \frac{a_l}{|y_l|}\Big)\Big)",
    use="Pairs of unequal lengths, where DPO makes answers longer.",
    fails="β counts nats of a token: values of DPO are far too small here.",
)
def dpo_norm() -> PreferenceAlgorithm:
    """DPO of log-ratios that are averaged over the tokens of each answer.

    β = 5, as in Tülu 3.
    """
    return PreferenceAlgorithm(name="dpo_norm", loss=NormalizedDPO(beta=5.0))
