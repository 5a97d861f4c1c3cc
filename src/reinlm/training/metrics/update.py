"""What updates of a language model say beside what its algorithm measures: `training/update.py`, `training/sft.py`."""

from reinlm.runs.declarations import Metric, declare_metrics

_LEARNING = declare_metrics(
    Metric(
        "mean_token_accuracy",
        "fraction",
        "trained tokens that were the model's first choice (SFT)",
        healthy="rises as `loss` falls",
        bad="stuck low: the data contradict each other, or the template is wrong",
    ),
    Metric(
        "text/loss",
        "nats per token",
        "loss on data-set text that is trained on beside the samples (`text`)",
        healthy="falls, or stays where it was",
        bad="rises: the samples' loss pulls the model away from the text; raise `text.coefficient`",
    ),
    section="learning",
)

_SIGNAL = declare_metrics(
    Metric(
        "advantage/std",
        "reward or none",
        "standard deviation of the advantages over the scored tokens",
        healthy="about 1 where groups are standardised, less the more groups have no signal",
        bad="near zero: nothing is learned in this step",
    ),
    section="signal",
)

_BOUNDS = declare_metrics(
    Metric(
        "completions/untrained",
        "samples",
        "answers that reach no loss: no reward, or filtered as overlong",
        healthy="few",
        bad="all of them: `updates/made` is 0",
    ),
    Metric(
        "updates/made",
        "updates",
        "updates of the policy in this step",
        healthy="passes times minibatches",
        bad="0 outside the critic's warm-up: nothing was left to train on",
    ),
    Metric(
        "updates/stopped",
        "flag",
        "1 where `target_kl` ended the updates of this batch early",
        healthy="rarely 1",
        bad="always 1: lower the learning rate or the number of passes",
    ),
    Metric(
        "updates/skipped",
        "updates",
        "updates skipped because loss or gradient was not finite",
        healthy="0",
        healthy_range=(0.0, 0.0),
        bad="several in a row stop the run; look at precision and learning rate",
    ),
    section="bounds",
)

_CRITIC = declare_metrics(
    Metric(
        "critic/grad_norm",
        "none",
        "norm of the gradient of the critic's own weights, before clipping",
        healthy="steady",
        bad="spikes",
    ),
    Metric(
        "critic/learning_rate",
        "none",
        "learning rate of the critic's own weights",
        healthy="the schedule that you asked for",
    ),
    Metric(
        "critic/warmup",
        "flag",
        "1 in steps in which the critic alone learned",
        healthy="1 for `critic.warmup_steps` steps",
    ),
    section="critic",
)

_SAMPLER = declare_metrics(
    Metric(
        "staleness/mean",
        "updates",
        "mean number of updates between the policy that chose a token and the one that trains on it",
        healthy="0 where every batch is sampled anew",
        bad="grows: replay keeps groups for too long, see `correction/effective_samples`",
    ),
    Metric(
        "staleness/max",
        "updates",
        "largest number of updates between the policy that chose a token and the one that trains on it",
        healthy="at most the updates of `training.replay.age` steps",
        bad="grows: replay keeps groups for too long, see `correction/effective_samples`",
    ),
    section="sampler",
)

METRICS = (*_LEARNING, *_SIGNAL, *_BOUNDS, *_CRITIC, *_SAMPLER)
