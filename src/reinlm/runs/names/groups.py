"""What a batch can teach: rewards that differ within groups."""

from reinlm.runs.names.info import MetricInfo, Section

SECTION = Section(
    "Is there a signal?",
    (
        MetricInfo(
            "reward_std",
            "reward",
            "standard deviation of the reward within a group, averaged over groups",
            healthy="clearly above zero, shrinking as the task is learned",
            bad="near zero early: sampling is too cold, or the reward too coarse",
        ),
        MetricInfo(
            "frac_reward_zero_std",
            "fraction",
            "groups whose samples all earned the same reward, so that group baselines give no gradient",
            healthy="below one half",
            healthy_range=(None, 0.5),
            bad="near 1: the problems are too hard or too easy; mix the data, raise `group_size`, or filter groups",
        ),
        MetricInfo(
            "advantage/std",
            "reward or none",
            "standard deviation of the advantages over the scored tokens",
            healthy="about 1 where groups are standardised, less the more groups have no signal",
            bad="near zero: nothing is learned in this step",
        ),
        MetricInfo(
            "groups/single",
            "groups",
            "groups with at most one reward, which have no baseline",
            healthy="0",
            healthy_range=(0.0, 0.0),
            bad="the reward function fails or `group_size` is 1",
        ),
        MetricInfo(
            "groups/replayed",
            "groups",
            "groups of earlier steps mixed into this batch",
            healthy="what was asked for",
        ),
        MetricInfo(
            "groups/dropped",
            "groups",
            "groups that the filter removed in this step",
            healthy="a part of the batch",
            bad="most of it: time goes into samples that teach nothing",
        ),
        MetricInfo(
            "groups/attempts",
            "rounds",
            "rounds of sampling that it took to fill the batch",
            healthy="1 to 3",
            healthy_range=(1.0, 3.0),
            bad="many: as `groups/dropped`",
        ),
        MetricInfo(
            "rewards/failed",
            "samples",
            "samples left out because a reward function failed",
            healthy="0",
            healthy_range=(0.0, 0.0),
            bad="look at the reward function's error in the log",
        ),
        MetricInfo(
            "rewards/shaping/mean",
            "reward",
            "mean of what the algorithm's shapers add to an answer",
            healthy="goes to 0",
            bad="stays below 0: answers go on being cut off or too long",
        ),
    ),
)
