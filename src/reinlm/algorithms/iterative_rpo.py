"""Iterative RPO: DPO with imitation of chosen reasoning, mean over tokens."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import DPOWithSFT


@preference(
    parent="dpo_sft",
    source="Iterative RPO, arXiv 2404.19733",
    published="2024-04-30",
    equation="L = - log σ( β h ) - α/|y_w| log π(y_w)",
    formula=r"L(\theta) = -\log\sigma(\beta h) - \frac{\alpha}{|y_w|}\log\pi_\theta(y_w)",
    use="Pairs of right and wrong reasoning that the model sampled itself, round after round.",
    fails="Where no chosen answer is worth imitating.",
)
def iterative_rpo() -> PreferenceAlgorithm:
    """DPO with the mean negative log-likelihood of the chosen answer beside it.

    β = 0.1, α = 1.
    """
    return PreferenceAlgorithm(
        name="iterative_rpo", loss=DPOWithSFT(beta=0.1, sft_coefficient=1.0, sft_aggregation="sequence_mean")
    )
