"""What updates of a language model say beside what its algorithm measures.

Made in `training/update.py`, `training/preparation.py` and `training/sft.py`.
"""

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
        "kl/coefficient",
        "none",
        "coefficient of the KL to the reference in this step",
        healthy="fixed, or settling",
        bad="runs to 0 or without bound: the target is out of reach",
    ),
    Metric(
        "kl/teacher_coefficient",
        "none",
        "coefficient of the KL to the teacher in this step",
        healthy="fixed, or the schedule that you asked for",
    ),
    Metric(
        "kl/reference",
        "nats per token",
        "divergence of the sampling policy from its reference, by k3, which moves an adaptive coefficient",
        healthy="near its target",
        bad="far above: the coefficient has not caught up",
    ),
    Metric(
        "kl/reference_per_sequence",
        "nats per answer",
        "kl/reference summed over an answer: the unit of Ziegler's rule",
        healthy="near its target",
        bad="far above: the coefficient has not caught up",
    ),
    Metric(
        "kl/old_per_sequence",
        "nats per answer",
        "kl/old summed over an answer",
        healthy="near its target",
        bad="above 3 times the target: the learning rate is too high for the rule to hold",
    ),
    Metric(
        "kl/full",
        "nats per token",
        "divergence from the reference over the whole vocabulary (only for that estimator)",
        healthy="grows slowly",
        bad="as `kl`",
    ),
    Metric(
        "kl/old_full",
        "nats per token",
        "divergence from the old policy over the whole vocabulary (only for that estimator)",
        healthy="below about 0.02",
        bad="above 0.1: too many passes over one batch, or too high a learning rate",
    ),
    Metric(
        "kl/teacher",
        "nats per token",
        "divergence from the teacher over the whole vocabulary (only where a KL to the teacher asks for it)",
        healthy="falls",
        bad="flat: the teacher's answers are out of the policy's reach, or the learning rate is too low",
    ),
    Metric(
        "kl/teacher_per_sequence",
        "nats per answer",
        "kl/teacher summed over an answer (only for an adaptive coefficient)",
        healthy="near its target",
        bad="flat far above: the teacher's answers are out of the policy's reach",
    ),
    Metric(
        "entropy/coefficient",
        "none",
        "coefficient of the entropy bonus; 0 while it does not count",
        healthy="small",
        bad="at its upper bound: the entropy target is out of reach",
    ),
    Metric(
        "correction/effective_samples",
        "fraction",
        "effective sample size of the weights over their number",
        healthy="above 0.5",
        healthy_range=(0.5, None),
        bad="near 0: a handful of tokens decides the step",
    ),
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
        "returns/mean",
        "reward",
        "mean of what the critic learns to predict",
        healthy="follows `reward`",
    ),
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
        healthy="0 where every batch is sampled anew; the updates of a step with `rollout.async_level=1`",
        bad="grows: replay keeps groups for too long, see `correction/effective_samples`",
    ),
    Metric(
        "staleness/max",
        "updates",
        "largest number of updates between the policy that chose a token and the one that trains on it",
        healthy="at most the updates of `training.replay.age` steps, or of one step with `rollout.async_level=1`",
        bad="grows: replay keeps groups for too long, see `correction/effective_samples`",
    ),
    section="sampler",
)

METRICS = (*_LEARNING, *_SIGNAL, *_BOUNDS, *_CRITIC, *_SAMPLER)
