"""GSPO-token: the ratio of the sequence, the gradient of each token."""

from dataclasses import replace

from reinlm.algorithms.algorithm import Algorithm
from reinlm.algorithms.gspo import gspo
from reinlm.algorithms.ladder import named
from reinlm.objectives import SequenceTokenRatio


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
    return replace(gspo(), ratio=SequenceTokenRatio())
