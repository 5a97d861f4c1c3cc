"""Where a run of `sft` or `rl` is, how fast it is, and what takes its time."""

from reinlm.runs.declarations import Metric, declare_metrics

METRICS = declare_metrics(
    Metric(
        "epoch",
        "epochs",
        "passes over the training data so far",
        healthy="grows evenly",
        bad="many passes in RL: the problems are being memorised",
    ),
    Metric(
        "num_tokens",
        "tokens",
        "tokens that have reached the loss since the start; a sampled one counts once, however many updates use it",
        healthy="grows evenly",
    ),
    Metric(
        "time/rollout",
        "s",
        "sampling answers; with `rollout.async_level=1` this passed beside the update of the step before",
        healthy="the largest part in RL",
        bad="grows with answer length",
    ),
    Metric(
        "time/reward",
        "s",
        "scoring answers with the reward functions",
        healthy="a small part",
        bad="large: give the reward function more workers, or make it faster",
    ),
    Metric(
        "time/reward/{name}",
        "s",
        "in calls of one reward function, with the waiting between attempts; most of it passes while others are sampled",
        healthy="less than `time/rollout`",
        bad="more: make the function faster, ask for several answers at once, or raise `reward.concurrency`",
    ),
    Metric(
        "time/wait",
        "s",
        "waiting, after the update, for the next batch that is sampled beside it (with `rollout.async_level=1`)",
        healthy="0: the update takes longer than sampling",
        bad="large: sampling is the slower side, and the update runs beside it for nothing more",
    ),
    Metric(
        "time/score",
        "s",
        "log-probabilities under the old and the reference policy",
        healthy="less than `time/update`",
    ),
    Metric(
        "time/update",
        "s",
        "forward, backward and optimizer",
        healthy="level",
    ),
    Metric(
        "tokens_per_second",
        "tokens/s",
        "tokens handled in the step over its time",
        healthy="level",
    ),
    Metric(
        "samples_per_second",
        "samples/s",
        "samples handled in the step over its time",
        healthy="level, falling as answers grow",
    ),
    section="progress",
)
