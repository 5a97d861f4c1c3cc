"""What a step of `rft` says of the answers that it keeps: `training/rejection/`."""

from reinlm.runs.declarations import Metric, declare_metrics

METRICS = declare_metrics(
    Metric("rft/iteration", "count", "the iteration of sampling and learning, from 1", healthy="rises"),
    Metric(
        "rft/kept",
        "samples",
        "answers of the iteration that are learned from, second tries left out",
        healthy="rises from iteration to iteration",
        bad="few: raise `rollout.group_size`, or lower `keep.above`",
    ),
    Metric(
        "rft/kept_ratio",
        "fraction",
        "kept answers, of all answers that were sampled",
        healthy="rises from iteration to iteration",
        bad="near 1: there is nothing left to reject, give harder prompts",
    ),
    Metric(
        "rft/prompts_with_kept",
        "fraction",
        "prompts with a kept answer",
        healthy="rises from iteration to iteration",
        bad="flat while `rft/kept` rises: easy prompts alone are learned; set `keep.per_prompt`, or `hint`",
    ),
    Metric("rft/kept_reward", "reward", "mean reward of the kept answers", healthy="above `reward`"),
    Metric(
        "rft/rejected/{reason}",
        "samples",
        "answers that are not kept, by reason: reward, not_best, duplicate, per_prompt, truncated, empty, error, no_reward",
        healthy="reward and duplicate are the most",
        bad="many truncated: raise `rollout.max_new_tokens`; many duplicates: raise the temperature",
    ),
    Metric("rft/hinted", "samples", "second tries with a hint", healthy="falls as the model learns"),
    Metric(
        "rft/hinted_kept", "samples", "second tries that are learned from, without their hint", healthy="above zero"
    ),
    Metric(
        "rft/kl_bound",
        "nats per answer",
        "log N - (N - 1) / N: at most so far does the best of N answers lie from the policy",
        healthy="a few nats",
    ),
    section="answers",
)
