"""Lengths, ends and variety of what was sampled."""

from reinlm.runs.names.info import MetricInfo, Section

SECTION = Section(
    "What are the answers like?",
    (
        MetricInfo(
            "completions/mean_length",
            "tokens",
            "mean length of the sampled answers",
            healthy="moves for a reason",
            bad="climbs without accuracy: padding; collapses: a shortcut pays",
        ),
        MetricInfo(
            "completions/min_length",
            "tokens",
            "the shortest sampled answer",
            healthy="above 1",
            healthy_range=(2.0, None),
            bad="1: empty answers",
        ),
        MetricInfo(
            "completions/max_length",
            "tokens",
            "the longest sampled answer",
            healthy="below the limit",
            bad="at the limit: see `completions/clipped_ratio`",
        ),
        MetricInfo(
            "completions/mean_terminated_length",
            "tokens",
            "mean length of the answers that ended by themselves",
            healthy="close to the mean",
            bad="far below the mean: many answers are cut off",
        ),
        MetricInfo(
            "completions/clipped_ratio",
            "fraction",
            "answers that the length limit cut off",
            healthy="below 0.1",
            healthy_range=(None, 0.1),
            bad="high: raise `max_new_tokens`, or the model has forgotten to stop",
        ),
        MetricInfo(
            "entropy",
            "nats per token",
            "entropy of the policy at the scored tokens",
            healthy="falls gently",
            bad=(
                "collapses towards 0: exploration is over, raise the upper clip bound or the temperature; climbs: "
                "noise is winning, lower the learning rate"
            ),
        ),
        MetricInfo(
            "episodes/mean_turns",
            "turns",
            "mean number of turns in which the policy chose a token (only where an episode had several)",
            healthy="moves for a reason",
            bad="at the limit: episodes are cut off, see `completions/clipped_ratio`",
        ),
        MetricInfo(
            "episodes/failed",
            "samples",
            "episodes that an error of their environment ended; they are in no statistic and no loss",
            healthy="0",
            healthy_range=(0.0, 0.0),
            bad="look at the `end` of their rows in `rollouts/`",
        ),
        MetricInfo(
            "episodes/unrewarded",
            "samples",
            "episodes without any reward; they are in no statistic and no loss (only where there are some)",
            healthy="0",
            healthy_range=(0.0, 0.0),
            bad="many: what is learned comes from the episodes that ended in time; see the reasons",
        ),
        MetricInfo(
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
        MetricInfo(
            "sampling/temperature",
            "none",
            "temperature of this step's samples (only where the recipe schedules it)",
            healthy="the schedule that you asked for",
        ),
        MetricInfo(
            "sampling/max_new_tokens",
            "tokens",
            "tokens of a turn at most in this step (only where the recipe schedules it)",
            healthy="the schedule that you asked for",
        ),
    ),
)
