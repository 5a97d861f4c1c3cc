"""Hinge: no gradient for a pair that is far enough apart."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import Hinge


@preference(
    parent="dpo",
    source="RSO, arXiv 2309.06657",
    published="2023-09-13",
    equation="L = max( 0, 1 - β h )",
    formula=r"L(\theta) = \max(0, 1 - \beta h)",
    use="Pairs that were sampled near the optimal policy by rejection, as in RSO.",
    fails="Once every pair is beyond the margin nothing is learned: the loss is 0.",
)
def hinge() -> PreferenceAlgorithm:
    """DPO with the loss of a support vector machine.

    β = 0.05, as in the paper's comparison.
    """
    return PreferenceAlgorithm(name="hinge", loss=Hinge(beta=0.05))
