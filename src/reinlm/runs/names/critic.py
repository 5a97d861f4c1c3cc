"""How well a critic foresees returns."""

from reinlm.runs.names.info import MetricInfo, Section

SECTION = Section(
    "Does the critic know anything?",
    (
        MetricInfo(
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
        MetricInfo(
            "value_loss",
            "reward squared",
            "the critic's loss per token, before its coefficient",
            healthy="falls",
            bad="flat: the critic does not learn",
        ),
        MetricInfo(
            "values/mean",
            "reward",
            "mean of the critic's values",
            healthy="follows `returns/mean`",
            bad="far from it: the critic lags behind the policy",
        ),
        MetricInfo(
            "returns/mean",
            "reward",
            "mean of what the critic learns to predict",
            healthy="follows `reward`",
        ),
        MetricInfo(
            "values/clip_ratio",
            "fraction",
            "values that moved beyond their clip in this update",
            healthy="small",
            bad="large in warm-up: the clip slows the critic down; set `critic: {clip: null}`",
        ),
        MetricInfo(
            "critic/grad_norm",
            "none",
            "norm of the gradient of the critic's own weights, before clipping",
            healthy="steady",
            bad="spikes",
        ),
        MetricInfo(
            "critic/learning_rate",
            "none",
            "learning rate of the critic's own weights",
            healthy="the schedule that you asked for",
        ),
        MetricInfo(
            "critic/warmup",
            "flag",
            "1 in steps in which the critic alone learned",
            healthy="1 for `critic.warmup_steps` steps",
        ),
    ),
    lead="""Only for algorithms with a critic.""",
)
