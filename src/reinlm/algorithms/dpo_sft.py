"""DPO + SFT: the chosen answer is imitated as well."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import DPOWithSFT


@preference(
    parent="dpo",
    source="RPO, arXiv 2405.16436",
    published="2024-05-26",
    equation="L = - log σ( β h ) - η log π(y_w)",
    formula=r"L(\theta) = -\log\sigma(\beta h) - \eta\log\pi_\theta(y_w)",
    use="Where DPO lowers the likelihood of the chosen answers, or few judgements cover the answers that matter.",
    fails="A large η is supervised fine-tuning: watch rewards/margins.",
)
def dpo_sft() -> PreferenceAlgorithm:
    """DPO with the negative log-likelihood of the chosen answer beside it.

    β = 0.01, η = 0.005, of the sum over its tokens. Also called RPO, which names two other methods as well.
    """
    return PreferenceAlgorithm(
        name="dpo_sft", loss=DPOWithSFT(beta=0.01, sft_coefficient=0.005, sft_aggregation="sequence_sum")
    )
