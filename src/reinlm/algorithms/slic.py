"""SLiC-HF: a margin between likelihoods, and imitation."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import SLiC


@preference(
    parent="dpo",
    source="SLiC-HF, arXiv 2305.10425",
    published="2023-05-17",
    equation="L = max( 0, δ - log π(y_w) + log π(y_l) ) - λ log π(y_w)",
    formula=r"L(\theta) = \max\big(0, \delta - \log\pi_\theta(y_w) + \log\pi_\theta(y_l)\big) - \lambda \log\pi_\theta(y_w)",
    use="Where no reference fits into memory.",
    fails="Without a reference nothing but the imitation holds the policy: watch logprobs/chosen and the length of answers.",
)
def slic() -> PreferenceAlgorithm:
    """A hinge on the difference of log-probabilities, with the likelihood of the chosen answer; no reference.

    δ = 1. Imitation is of the chosen answer, λ = 0.5, of the mean over its tokens.
    """
    return PreferenceAlgorithm(name="slic", loss=SLiC(delta=1.0, sft_coefficient=0.5, sft_aggregation="sequence_mean"))
