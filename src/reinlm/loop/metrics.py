"""Declarations of the metrics that the loop measures, and of those that every run logs."""

from reinlm.runs.declarations import Metric, declare_metrics

_LEARNING = declare_metrics(
    Metric(
        "loss",
        "nats (SFT); none (RL)",
        "the objective that the optimizer minimises",
        healthy="SFT: falls quickly, then slowly. RL: small, around zero, without spikes; it is no measure of progress",
        bad="SFT: flat, the learning rate is too low or the data empty; rising, too high. RL: spikes, see `ratio/max`",
    ),
    section="learning",
)

_BOUNDS = declare_metrics(
    Metric(
        "grad_norm",
        "none",
        "norm of the gradient before clipping",
        healthy="steady",
        bad="spikes: an odd batch or too high a learning rate; 0: no signal",
    ),
    section="bounds",
)

_PROGRESS = declare_metrics(
    Metric(
        "learning_rate",
        "none",
        "learning rate of the update",
        healthy="the schedule that you asked for",
        bad="another shape: the total number of steps is not what you think",
    ),
    Metric(
        "step_time",
        "s",
        "wall clock of the whole step",
        healthy="level",
        bad="grows: see which `time/…` grows with it",
    ),
    Metric(
        "time/evaluate",
        "s",
        "evaluation",
        healthy="rare and short",
        bad="evaluate less often, or on fewer problems",
    ),
    Metric(
        "time/checkpoint",
        "s",
        "writing a checkpoint",
        healthy="rare and short",
        bad="a slow disk; save less often",
    ),
    section="progress",
)

METRICS = (*_LEARNING, *_BOUNDS, *_PROGRESS)
