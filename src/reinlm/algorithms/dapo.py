"""DAPO: GRPO with a higher upper clip, equal tokens, mixed groups and a soft length limit."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, MixedOutcomes, SoftOverlong, Updates
from reinlm.objectives import Clip, GroupStandardize, TokenRatio, token_mean


@named(
    parent="grpo",
    source="DAPO, arXiv 2503.14476",
    published="2025-03-18",
    equation="J = 1/ΣL_i Σ_i Σ_t min( r A_i, clip(r, 1-ε_low, 1+ε_high) A_i ),   groups with 0 < #correct < G alone",
    formula=r"J(\theta) = \frac{1}{\sum_i L_i} \sum_i \sum_t \min\big(r_{i,t} A_i,\ \mathrm{clip}(r_{i,t},"
    r" 1-\varepsilon_{low}, 1+\varepsilon_{high})"
    r" A_i\big) \quad \text{s.t.}\ 0 < \#\mathrm{correct} < G",
    use="Long chains of thought from a base model; prompts of very different difficulty.",
    fails="Where few groups are mixed, most samples are dropped: watch groups/attempts and groups/dropped.",
)
def dapo() -> Algorithm:
    """GRPO with clip-higher, equal token weights, dynamic sampling, soft overlong penalty, and no KL.

    DAPO §3: clip 0.2 / 0.28, and a soft penalty over the last fifth of the length limit. The paper rewards 1 and -1, with
    16 answers a prompt and 16 updates a batch. Its overlong filtering is `overlong="filter_after_baseline"`.
    """
    return Algorithm(
        name="dapo",
        advantage=GroupStandardize(),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.28),
        kl=None,
        aggregation=token_mean,
        filters=(MixedOutcomes(),),
        shapers=(SoftOverlong(),),
        updates=Updates(passes=1, minibatches=16),
    )
