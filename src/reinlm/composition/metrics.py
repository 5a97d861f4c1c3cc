"""What an algorithm measures of the tokens that it trains on, and the multipliers of its state.

`kl/old`, `kl/old_coefficient` and `explained_variance` are logged by `training` and by `classical` alike, which do not
import each other: they are declared here, the lowest package that both import.
"""

from reinlm.runs.declarations import Metric, declare_metrics

_ANSWERS = declare_metrics(
    Metric(
        "entropy",
        "nats per token",
        "entropy of the policy at the scored tokens",
        healthy="falls gently",
        bad=(
            "collapses towards 0: exploration has ended, raise the upper clip bound or the temperature; "
            "climbs: the policy becomes random, lower the learning rate"
        ),
    ),
    section="answers",
)

_BOUNDS = declare_metrics(
    Metric(
        "kl",
        "nats per token",
        "divergence of the policy from its reference (only where a KL term asks for one)",
        healthy="grows slowly",
        bad="keeps growing: raise the coefficient or lower the learning rate",
    ),
    Metric(
        "approx_kl",
        "nats per token",
        "how far this update has moved the policy from where it began, estimator k3",
        healthy="below about 0.02",
        healthy_range=(None, 0.02),
        bad="above 0.1: too many epochs on one batch, or too high a learning rate",
    ),
    Metric(
        "clip_ratio/low_mean",
        "fraction",
        "scored tokens stopped at the lower clip bound (negative advantage)",
        healthy="up to a few per cent; exactly 0 with one update a batch and no replay",
        bad="high: the policy moves too far within an update",
    ),
    Metric(
        "clip_ratio/high_mean",
        "fraction",
        "scored tokens stopped at the upper clip bound (positive advantage)",
        healthy="up to a few per cent; more for sequence ratios, whose bounds are narrow",
        bad="high: the policy moves too far within an update",
    ),
    Metric(
        "clip_ratio/region_mean",
        "fraction",
        "scored tokens stopped at either bound: the sum of the two",
        healthy="up to a few per cent; exactly 0 with one update a batch and no replay",
        bad="high: the policy moves too far within an update",
    ),
    Metric(
        "ratio/mean",
        "ratio",
        "mean probability ratio of the policy to the start of the update",
        healthy="close to 1",
        bad="drifts: the update is far off-policy",
    ),
    Metric(
        "ratio/moved",
        "fraction",
        "tokens whose ratio is off 1 by more than 1 %",
        healthy="0 for the first update of a batch, then above 0",
        bad="0 in every update: gate and ratio change nothing, so algorithms that differ in them alone train alike",
    ),
    Metric(
        "ratio/max",
        "ratio",
        "the largest ratio in the update",
        healthy="below 10",
        healthy_range=(None, 10.0),
        bad="explodes: rare tokens dominate; clip tighter, lower the learning rate",
    ),
    Metric(
        "kl/old_coefficient",
        "none",
        "coefficient of the KL to the old policy in this step (PPO-penalty)",
        healthy="moves by factors of 2 around some value",
        bad=(
            "near 0: updates stay far below the target, a larger learning rate is safe; grows: the learning rate "
            "is too high"
        ),
    ),
    Metric(
        "kl/old",
        "nats per token",
        "divergence of the policy after the batch's last update from the one before its first, by k3",
        healthy="near its target",
        bad="above 3 times the target: the learning rate is too high for the rule to hold",
    ),
    Metric(
        "constraint/{name}/multiplier",
        "none",
        "Lagrange multiplier of the bound on this reward in this step",
        healthy="settles, or 0 while the bound is kept",
        bad="grows without end: the bound cannot be kept",
    ),
    Metric(
        "sequence_mask/dropped",
        "fraction",
        "tokens with negative advantage that the off-policy sequence mask drops",
        healthy="a few per cent",
        bad="near one half: the threshold is too low, most answers with negative advantage are dropped",
    ),
    Metric(
        "selection/selected",
        "fraction",
        "tokens chosen by their covariance with the advantage",
        healthy="what was asked for",
        bad="0: no covariance lies within the bounds",
    ),
    Metric(
        "correction/mean",
        "ratio",
        "mean weight of a token, for samples of another policy",
        healthy="close to 1",
        bad="far below 1: most weight is lost to caps and masks",
    ),
    Metric(
        "correction/dropped",
        "fraction",
        "tokens whose weight is 0",
        healthy="a few per cent",
        bad="large: sampler and trainer disagree too much",
    ),
    section="bounds",
)

_CRITIC = declare_metrics(
    Metric(
        "explained_variance",
        "fraction",
        "share of the variance of the returns that the critic's values explain, before the update",
        healthy=(
            "rises in warm-up, above 0.5 before the policy moves; falls as all answers become right and little "
            "variance is left"
        ),
        healthy_range=(0.0, None),
        bad="negative: worse than a constant, lower the critic's learning rate or warm up longer",
    ),
    Metric(
        "value_loss",
        "reward squared",
        "the critic's loss per token, before its coefficient",
        healthy="falls",
        bad="flat: the critic does not learn",
    ),
    Metric(
        "values/mean",
        "reward",
        "mean of the critic's values",
        healthy="follows `returns/mean`",
        bad="far from it: the critic lags behind the policy",
    ),
    Metric(
        "values/clip_ratio",
        "fraction",
        "values that moved beyond their clip in this update",
        healthy="small",
        bad="large in warm-up: the clip slows the critic down; set `critic: {clip: null}`",
    ),
    section="critic",
)

_SAMPLER = declare_metrics(
    Metric(
        "sampling/logprob_difference/mean",
        "nats",
        "mean of |trainer − sampler| over the sampled tokens",
        healthy="below 1e-5 in float32, about 1e-2 in bfloat16 or with vLLM; what an update moves with `rollout.async_level=1`",
        healthy_range=(None, 0.01),
        bad="larger: another temperature, template, precision or weights than you think",
    ),
    Metric(
        "sampling/logprob_difference/max",
        "nats",
        "the largest |trainer − sampler| of any sampled token",
        healthy="below 1e-4 in float32, below 1 in bfloat16 or with vLLM",
        healthy_range=(None, 1.0),
        bad="large while the mean is small: single tokens, often the stop token or a masked one",
    ),
    Metric(
        "sampling/importance_ratio/mean",
        "ratio",
        "mean trainer-to-sampler ratio",
        healthy="1",
        bad="away from 1: a systematic difference, such as truncated sampling",
    ),
    Metric(
        "sampling/importance_ratio/max",
        "ratio",
        "largest trainer-to-sampler ratio",
        healthy="close to 1",
        bad="far above 1: stale weights in the sampler",
    ),
    section="sampler",
)

METRICS = (*_ANSWERS, *_BOUNDS, *_CRITIC, *_SAMPLER)
