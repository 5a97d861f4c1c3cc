"""How far samples are from the policy that trains on them."""

from reinlm.runs.names.info import MetricInfo, Section

SECTION = Section(
    "Do sampler and trainer agree?",
    (
        MetricInfo(
            "sampling/logprob_difference/mean",
            "nats",
            "mean of |trainer − sampler| over the sampled tokens",
            healthy="below 1e-5 in float32, about 1e-2 in bfloat16",
            healthy_range=(None, 0.01),
            bad="larger: another temperature, template, precision or weights than you think",
        ),
        MetricInfo(
            "sampling/logprob_difference/max",
            "nats",
            "the largest |trainer − sampler| of any sampled token",
            healthy="below 1e-4 in float32, below 1 in bfloat16",
            healthy_range=(None, 1.0),
            bad="large while the mean is small: single tokens, often the stop token or a masked one",
        ),
        MetricInfo(
            "sampling/importance_ratio/mean",
            "ratio",
            "mean trainer-to-sampler ratio",
            healthy="1",
            bad="away from 1: a systematic difference, such as truncated sampling",
        ),
        MetricInfo(
            "sampling/importance_ratio/max",
            "ratio",
            "largest trainer-to-sampler ratio",
            healthy="close to 1",
            bad="far above 1: stale weights in the sampler",
        ),
        MetricInfo(
            "staleness/mean",
            "updates",
            "mean number of updates between the policy that chose a token and the one that trains on it",
            healthy="0 where every batch is sampled anew",
            bad="grows: replay keeps groups for too long, see `correction/effective_samples`",
        ),
        MetricInfo(
            "staleness/max",
            "updates",
            "largest number of updates between the policy that chose a token and the one that trains on it",
            healthy="at most the updates of `training.replay.age` steps",
            bad="grows: replay keeps groups for too long, see `correction/effective_samples`",
        ),
    ),
    lead="""The sampler reports a log-probability for each token that it chose, and the trainer computes that of the same token
under the same weights (`rollout_logprobs` and `old_logprobs`). Where they differ, the data are off-policy without anyone
having said so.""",
)
