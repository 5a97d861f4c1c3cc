"""SimPO: mean log-probabilities against a target margin, without a reference."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import SimPO


@preference(
    parent="dpo_norm",
    source="SimPO, arXiv 2405.14734",
    published="2024-05-23",
    equation="L = - log σ( β/|y_w| log π(y_w) - β/|y_l| log π(y_l) - γ )",
    formula=r"L(\theta) = -\log\sigma\Big(\frac{\beta}{|y_w|}\log\pi_\theta(y_w) -"
    r" \frac{\beta}{|y_l|}\log\pi_\theta(y_l) - \gamma\Big)",
    use="Where no reference fits into memory and lengths shall not be rewarded.",
    fails="Nothing holds the policy near its start: it is sensitive to the learning rate; watch logprobs/chosen.",
)
def simpo() -> PreferenceAlgorithm:
    """The logistic loss of the difference of mean log-probabilities, beyond a margin.

    β = 2, γ = 1: γ/β = 0.5 (the paper: β from 2 to 2.5, γ/β from 0.3 to 0.8).
    """
    return PreferenceAlgorithm(name="simpo", loss=SimPO(beta=2.0, gamma=1.0))
