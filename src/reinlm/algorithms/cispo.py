"""CISPO: DAPO with a bounded weight in place of the clip."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, MixedOutcomes, SoftOverlong, Updates
from reinlm.objectives import GroupStandardize, TokenRatio, TruncatedWeight, token_mean


@named(
    parent="dapo",
    source="MiniMax-M1, arXiv 2506.13585",
    published="2025-06",
    equation="J = 1/ΣL_i Σ_i Σ_t sg[ min(r_{i,t}, c) ] A_i log π_θ(y_{i,t})",
    formula=r"J(\theta) = \frac{1}{\sum_i L_i} \sum_i \sum_t \mathrm{sg}\big[\min(r_{i,t}, c)\big]\, A_i \log"
    r" \pi_\theta(y_{i,t})",
    use="Rare tokens at which a chain of thought changes direction: a clip removes their gradient after one "
    "update, a bounded weight does not.",
    fails="Every token keeps its gradient, so there is no trust region: watch approx_kl over many updates a batch. "
    "Conventions of the cap differ between libraries; here it is the ratio itself.",
)
def cispo() -> Algorithm:
    """DAPO whose tokens all keep a gradient: REINFORCE with an importance weight of at most 5.

    The paper switches its lower bound off and does not disclose the upper one; 4 to 8 do alike in ScaleRL (arXiv 2510.13786).
    16 updates a batch, as in its §3.1.
    """
    return Algorithm(
        name="cispo",
        advantage=GroupStandardize(),
        ratio=TokenRatio(),
        gate=TruncatedWeight(cap=5.0),
        kl=None,
        aggregation=token_mean,
        filters=(MixedOutcomes(),),
        shapers=(SoftOverlong(),),
        updates=Updates(passes=1, minibatches=16),
    )
