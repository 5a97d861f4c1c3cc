"""Reinforce-Rej: the policy gradient without prompts that are all right or all wrong."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, MixedOutcomes, Updates
from reinlm.objectives import Clip, Returns, TokenRatio, token_mean


@named(
    parent="reinforce",
    source="A Minimalist Approach to LLM Reasoning, arXiv 2504.11343",
    published="2025-04-15",
    equation="J = 1/ΣL_i Σ_i Σ_t min( r R_i, clip(r, 1-ε, 1+ε) R_i ),   groups with 0 < #correct < G alone",
    formula=r"J(\theta) = \frac{1}{\sum_i L_i} \sum_i \sum_t \min\big(r_{i,t} R_i,\ \mathrm{clip}(r_{i,t},"
    r" 1-\varepsilon, 1+\varepsilon) R_i\big) \quad \text{s.t.}\ 0 < \#\mathrm{correct} < G",
    use="Rewards of 1 and -1, where entropy falls too fast under raft_pp and a baseline is not wanted.",
    fails="With rewards of 1 and 0 wrong answers teach nothing: give -1. Where few groups are mixed, most samples are dropped: "
    "watch groups/attempts and groups/dropped.",
)
def reinforce_rej() -> Algorithm:
    """The policy gradient under PPO's ratio and clip, of prompts that some answers get right and some wrong.

    The weight of an answer is its reward itself: no baseline, no KL. Dropped prompts are replaced by further ones
    (rollout.max_attempts=1 drops them alone, as in the paper). Clip 0.2; 4 answers to each of 1024 prompts, and updates of 256
    prompts, as in the authors' code, which adds a KL of 0.001.
    """
    return Algorithm(
        name="reinforce_rej",
        advantage=Returns(gamma=1.0),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        kl=None,
        aggregation=token_mean,
        filters=(MixedOutcomes(),),
        updates=Updates(passes=1, minibatches=4),
    )
