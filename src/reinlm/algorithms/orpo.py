"""ORPO: imitation and odds in one loss, without a reference."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import ORPO


@preference(
    parent="cpo",
    source="ORPO, arXiv 2403.07691",
    published="2024-03-12",
    equation="L = NLL(y_w) - λ log σ( log odds(y_w) - log odds(y_l) ),   odds = P/(1-P),   P = exp( mean log π )",
    formula=r"L(\theta) = \mathrm{NLL}(y_w) - \lambda"
    r" \log\sigma\Big(\log\frac{\mathrm{odds}_\theta(y_w)}{\mathrm{odds}_\theta(y_l)}\Big)",
    use="From a base model, in place of SFT and DPO one after the other.",
    fails="Where answers are nearly certain the odds are steep: watch grad_norm.",
)
def orpo() -> PreferenceAlgorithm:
    """Negative log-likelihood of the chosen answer, with the ratio of odds as a small second term.

    λ = 0.1, which `beta` sets. The likelihood is that of the completion; TRL's is of prompt and completion.
    """
    return PreferenceAlgorithm(name="orpo", loss=ORPO(beta=0.1, sft_coefficient=1.0, sft_aggregation="sequence_mean"))
