"""GSPO-token: the ratio of the sequence, the gradient of each token."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import Clip, GroupStandardize, SequenceTokenRatio, sequence_mean


@named(
    parent="gspo",
    source="GSPO, arXiv 2507.18071 eqs. 13 to 17",
    published="2025-07-25",
    equation="s_{i,t} = sg[s_i] · π_θ(y_{i,t}) / sg[π_θ(y_{i,t})]   in place of s_i",
    formula=r"s_{i,t} = \mathrm{sg}[s_i] \cdot \frac{\pi_\theta(y_{i,t})}{\mathrm{sg}[\pi_\theta(y_{i,t})]}",
    use="GSPO with advantages that differ between the tokens of an answer: turns, tools, process rewards.",
    fails="As GSPO, whose value, clipped set and gradient it has where an answer has one advantage.",
)
def gspo_token() -> Algorithm:
    """GSPO whose tokens carry the sequence's ratio but each its own advantage and gradient."""
    return Algorithm(
        name="gspo_token",
        advantage=GroupStandardize(),
        ratio=SequenceTokenRatio(),
        gate=Clip(3e-4, 4e-4),
        kl=None,
        aggregation=sequence_mean,
        updates=Updates(passes=1, minibatches=4),
    )
