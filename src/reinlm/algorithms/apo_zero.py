"""APO-zero: raise the chosen answer and lower the rejected one."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import APOZero


@preference(
    parent="dpo",
    source="APO, arXiv 2408.06266",
    published="2024-08-12",
    equation="L = 1 - σ( β a_w ) + σ( β a_l )",
    formula=r"L(\theta) = 1 - \sigma(\beta a_w) + \sigma(\beta a_l)",
    use="Chosen answers that are better than those of the model.",
    fails="Chosen answers that are worse than those of the model: their likelihood is raised all the same.",
)
def apo_zero() -> PreferenceAlgorithm:
    """Both sides by themselves: the likelihood of the chosen answer rises, that of the rejected one falls.

    β = 0.1.
    """
    return PreferenceAlgorithm(name="apo_zero", loss=APOZero(beta=0.1))
