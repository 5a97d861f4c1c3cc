"""RAFT++: rejection sampling with importance ratios and clipping."""

from reinlm.algorithms.ladder import named
from reinlm.composition import Algorithm, Updates
from reinlm.objectives import AcceptAbove, Clip, TokenRatio, token_mean


@named(
    parent="grpo",
    source="A Minimalist Approach to LLM Reasoning, arXiv 2504.11343; RAFT, arXiv 2304.06767",
    published="2025-04-15",
    equation="J = 1/ΣL_i Σ_i Σ_t min( r, clip(r, 1-ε, 1+ε) ),   over the answers i with R_i > τ alone",
    formula=r"J(\theta) = \frac{1}{\sum_{i \in K} L_i} \sum_{i \in K} \sum_t \min\big(r_{i,t}(\theta),"
    r" \mathrm{clip}(r_{i,t}(\theta), 1-\varepsilon, 1+\varepsilon)\big), \qquad K = \{i : R_i > \tau\}",
    use="Rewards of right and wrong, as a plain and stable baseline: it imitates right answers, no more. With the scores of a "
    "reward model accept the best of each prompt: advantage=accept_best.",
    fails="Wrong answers teach nothing, and entropy falls faster than under GRPO: watch entropy. Easy prompts, all of whose "
    "answers are right, weigh most.",
)
def raft_pp() -> Algorithm:
    """Right answers alone, each with advantage 1, under PPO's ratio and clip; no baseline, no KL.

    An answer is accepted where its reward is more than 0.5. Tokens weigh alike over the accepted answers of an update, as in
    SFT on them and in the authors' code; the paper's equation takes the mean of each answer first (aggregation=sequence_mean).
    Clip 0.2; 4 answers to each of 1024 prompts, and updates of 256 prompts, as in the authors' code, which adds a KL of 0.001.
    """
    return Algorithm(
        name="raft_pp",
        advantage=AcceptAbove(0.5),
        ratio=TokenRatio(),
        gate=Clip(0.2, 0.2),
        kl=None,
        aggregation=token_mean,
        updates=Updates(passes=1, minibatches=4),
    )
