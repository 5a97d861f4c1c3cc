"""SPPO: squared distance of both log-ratios to their targets."""

from reinlm.algorithms.preference import preference
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.objectives import SPPO


@preference(
    parent="ipo",
    source="SPPO, arXiv 2405.00675",
    published="2024-05-01",
    equation="L = ( a_w - 1/(2β) )² + ( a_l + 1/(2β) )²",
    formula=r"L(\theta) = \Big(a_w - \frac{1}{2\beta}\Big)^2 + \Big(a_l + \frac{1}{2\beta}\Big)^2",
    use="Rounds of self-play: pairs sampled from the last policy, which is the reference.",
    fails="Targets count nats of whole answers, 5 at β = 0.1: with a fixed reference they are soon too far or too near.",
)
def sppo() -> PreferenceAlgorithm:
    """IPO's targets, for each side by itself; judgements are taken as certain.

    β = 0.1. The paper moves the reference to the policy after each round.
    """
    return PreferenceAlgorithm(name="sppo", loss=SPPO(beta=0.1))
