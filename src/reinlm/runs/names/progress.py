"""Where a run is, and what takes its time."""

from reinlm.runs.names.info import MetricInfo, Section

SECTION = Section(
    "Where is the run, and how fast?",
    (
        MetricInfo(
            "learning_rate",
            "none",
            "learning rate of the update",
            healthy="the schedule that you asked for",
            bad="another shape: the total number of steps is not what you think",
        ),
        MetricInfo(
            "epoch",
            "epochs",
            "passes over the training data so far",
            healthy="grows evenly",
            bad="many passes in RL: the problems are being learned by heart",
        ),
        MetricInfo(
            "num_tokens",
            "tokens",
            (
                "tokens that have reached the loss since the start; a sampled one counts once, however many updates use"
                " it"
            ),
            healthy="grows evenly",
        ),
        MetricInfo(
            "samples",
            "samples",
            "answers sampled in this step, those of dropped groups included",
            healthy="level",
            bad="rises: the group filter drops more and more groups",
        ),
        MetricInfo(
            "step_time",
            "s",
            "wall clock of the whole step",
            healthy="level",
            bad="grows: see which `time/…` grows with it",
        ),
        MetricInfo(
            "time",
            "s since 1970",
            "when the step was logged",
        ),
        MetricInfo(
            "time/rollout",
            "s",
            "sampling answers",
            healthy="the largest part in RL",
            bad="grows with answer length",
        ),
        MetricInfo(
            "time/reward",
            "s",
            "scoring answers with the reward functions",
            healthy="a small part",
            bad="large: give the reward function more workers, or make it faster",
        ),
        MetricInfo(
            "time/score",
            "s",
            "log-probabilities under the old and the reference policy",
            healthy="less than `time/update`",
        ),
        MetricInfo(
            "time/update",
            "s",
            "forward, backward and optimizer",
            healthy="level",
        ),
        MetricInfo(
            "time/evaluate",
            "s",
            "evaluation",
            healthy="rare and short",
            bad="evaluate less often, or on fewer problems",
        ),
        MetricInfo(
            "time/checkpoint",
            "s",
            "writing a checkpoint",
            healthy="rare and short",
            bad="a slow disk; save less often",
        ),
        MetricInfo(
            "tokens_per_second",
            "tokens/s",
            "tokens handled in the step over its time",
            healthy="level",
        ),
        MetricInfo(
            "samples_per_second",
            "samples/s",
            "samples handled in the step over its time",
            healthy="level, falling as answers grow",
        ),
    ),
    lead="""The names marked *clock*, and every `time/…`, depend on the machine. Two runs from one seed are equal in all other
fields (`reinlm.runs.names.without_clocks` drops them).""",
)
