"""DPO: the preferred answer against the other, by how much likelier each became."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import DPO


@preference(
    parent=None,
    source="DPO, arXiv 2305.18290",
    published="2023-05-29",
    equation="L = - log σ( β h ),   h = log π(y_w)/π_ref(y_w) - log π(y_l)/π_ref(y_l)",
    formula=r"L(\theta) = -\log \sigma(\beta h), \qquad h = \log \frac{\pi_\theta(y_w)}{\pi_{ref}(y_w)}"
    r" - \log \frac{\pi_\theta(y_l)}{\pi_{ref}(y_l)}",
    use="Pairs of answers to the same prompt, a good SFT model, and no reward model to train and to sample against.",
    fails="Both likelihoods may fall together while the margin grows: watch logprobs/chosen. A small β goes far from the "
    "reference.",
)
def dpo() -> PreferenceAlgorithm:
    """The logistic loss of the difference of both log-ratios to a reference.

    Its optimum is the policy π_ref exp(r/β)/Z of the reward r that explains the judgements (DPO §4). β = 0.1.
    """
    return PreferenceAlgorithm(name="dpo", loss=DPO(beta=0.1))
