"""CPO: DPO against a uniform reference, with imitation."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import CPO


@preference(
    parent="dpo",
    source="CPO, arXiv 2401.08417",
    published="2024-01-16",
    equation="L = - log σ( β (log π(y_w) - log π(y_l)) ) - α log π(y_w)",
    formula=r"L(\theta) = -\log\sigma\big(\beta(\log\pi_\theta(y_w) - \log\pi_\theta(y_l))\big) - \alpha\log\pi_\theta(y_w)",
    use="Good chosen answers that are worth imitating; no memory for a reference.",
    fails="Short answers are likelier: with pairs of unequal lengths the loss prefers the short one.",
)
def cpo() -> PreferenceAlgorithm:
    """The logistic loss of the difference of log-probabilities, with imitation of the chosen answer.

    β = 0.1, α = 1, of the mean over the tokens of the chosen answer.
    """
    return PreferenceAlgorithm(name="cpo", loss=CPO(beta=0.1, sft_coefficient=1.0, sft_aggregation="sequence_mean"))
