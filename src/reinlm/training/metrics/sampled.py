"""What a step of `rl` says of its samples: `training/sampled.py`, and the collection and filters of `training/rl.py`."""

from reinlm.runs.declarations import Metric, declare_metrics

_LEARNING = declare_metrics(
    Metric(
        "reward",
        "reward",
        "mean weighted reward of the samples",
        healthy="rises",
        bad="flat from the start: no sample is ever right, see `frac_reward_zero_std`",
    ),
    Metric(
        "rewards/{name}/mean",
        "reward",
        "mean of one reward function, before its weight",
        healthy="the one that states your goal rises",
        bad="only the easy one (format, length) rises: its weight is too large",
    ),
    Metric(
        "rewards/{name}/std",
        "reward",
        "standard deviation of one reward function over the samples",
        healthy="above zero",
        bad="zero: the function is constant and gives no gradient",
    ),
    section="learning",
)

_SIGNAL = declare_metrics(
    Metric(
        "reward_std",
        "reward",
        "standard deviation of the reward within a group, averaged over groups",
        healthy="clearly above zero, shrinking as the task is learned",
        bad="near zero early: sampling is too cold, or the reward too coarse",
    ),
    Metric(
        "frac_reward_zero_std",
        "fraction",
        "groups whose samples all earned the same reward, so that group baselines give no gradient",
        healthy="below one half",
        healthy_range=(None, 0.5),
        bad="near 1: the problems are too hard or too easy; mix the data, raise `group_size`, or filter groups",
    ),
    Metric(
        "groups/single",
        "groups",
        "groups with at most one reward, which have no baseline",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="the reward function fails or `group_size` is 1",
    ),
    Metric(
        "groups/replayed",
        "groups",
        "groups of earlier steps mixed into this batch",
        healthy="what was asked for",
    ),
    Metric(
        "groups/dropped",
        "groups",
        "groups that the filter removed in this step",
        healthy="a part of the batch",
        bad="most of it: time goes into samples that teach nothing",
    ),
    Metric(
        "groups/attempts",
        "rounds",
        "rounds of sampling that it took to fill the batch",
        healthy="1 to 3",
        healthy_range=(1.0, 3.0),
        bad="many: as `groups/dropped`",
    ),
    Metric(
        "rewards/failed",
        "samples",
        "samples left out because a reward function failed",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="look at the reward function's error in the log",
    ),
    Metric(
        "rewards/{name}/failed",
        "samples",
        "samples left out because this reward function failed (only where there are some)",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="look at its error in the log: an answer that it does not expect, or a service that is away",
    ),
    Metric(
        "rewards/{name}/retries",
        "calls",
        "further attempts at calls of this reward function that raised (only where there are some)",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="its service is overloaded or away: lower `reward.concurrency`, or raise `reward.retry_delay`",
    ),
    Metric(
        "rewards/{name}/logged/{metric}",
        "the function's own",
        "mean of the values that this reward function logged with `log_metric` in the step",
        healthy="what the function says",
    ),
    Metric(
        "rewards/shaping/mean",
        "reward",
        "mean of what the algorithm's shapers add to an answer",
        healthy="goes to 0",
        bad="stays below 0: answers go on being cut off or too long",
    ),
    section="signal",
)

_ANSWERS = declare_metrics(
    Metric(
        "completions/mean_length",
        "tokens",
        "mean length of the sampled answers",
        healthy="moves for a reason",
        bad="climbs without accuracy: padding; collapses: a shortcut pays",
    ),
    Metric(
        "completions/min_length",
        "tokens",
        "the shortest sampled answer",
        healthy="above 1",
        healthy_range=(2.0, None),
        bad="1: empty answers",
    ),
    Metric(
        "completions/max_length",
        "tokens",
        "the longest sampled answer",
        healthy="below the limit",
        bad="at the limit: see `completions/clipped_ratio`",
    ),
    Metric(
        "completions/mean_terminated_length",
        "tokens",
        "mean length of the answers that ended by themselves",
        healthy="close to the mean",
        bad="far below the mean: many answers are cut off",
    ),
    Metric(
        "completions/clipped_ratio",
        "fraction",
        "episodes that a limit cut off: length, turns, context, time or the environment's own",
        healthy="below 0.1",
        healthy_range=(None, 0.1),
        bad="high: raise that limit (`max_new_tokens`, `max_turns`, …), or the model has forgotten to stop",
    ),
    Metric(
        "episodes/mean_turns",
        "turns",
        "mean number of turns in which the policy chose a token (only where an episode had several)",
        healthy="moves for a reason",
        bad="at the limit: episodes are cut off, see `completions/clipped_ratio`",
    ),
    Metric(
        "episodes/failed",
        "samples",
        "episodes that an error of their environment ended; they are in no statistic and no loss",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="look at the `end` of their rows in `rollouts/`",
    ),
    Metric(
        "episodes/unrewarded",
        "samples",
        "episodes without any reward; they are in no statistic and no loss (only where there are some)",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="many: what is learned comes from the episodes that ended in time; see the reasons",
    ),
    Metric(
        "episodes/unrewarded/{reason}",
        "samples",
        (
            "episodes without any reward by reason: truncated by `length`, `context`, `turns`, `time` or by the "
            "`environment` itself, ended by an `error`, or `finished` without one"
        ),
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad=(
            "`length`, `context`, `turns`, `time`: raise the limit, or give rewards before the end; `finished`: the "
            "environment or a reward function gives None or fails"
        ),
    ),
    Metric(
        "sampling/temperature",
        "none",
        "temperature of this step's samples (only where the recipe schedules it)",
        healthy="the schedule that you asked for",
    ),
    Metric(
        "sampling/max_new_tokens",
        "tokens",
        "tokens of a turn at most in this step (only where the recipe schedules it)",
        healthy="the schedule that you asked for",
    ),
    section="answers",
)

_PROGRESS = declare_metrics(
    Metric(
        "samples",
        "samples",
        "answers sampled in this step, those of dropped groups included",
        healthy="level",
        bad="rises: the group filter drops more and more groups",
    ),
    section="progress",
)

METRICS = (*_LEARNING, *_SIGNAL, *_ANSWERS, *_PROGRESS)
