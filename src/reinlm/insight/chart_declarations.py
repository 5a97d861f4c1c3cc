"""Which metrics share a chart of the report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Series:
    """A curve, or one for each logged name that matches the pattern.

    Example:
        Series("eval/{set}/accuracy", "{set}", low="eval/{set}/accuracy_low", high="eval/{set}/accuracy_high")
    """

    metric: str
    label: str
    low: str | None = None
    """The metrics that bound a shaded band around the curve."""
    high: str | None = None


@dataclass(frozen=True)
class Chart:
    """One figure and its caption; shown if the run has logged any of its series."""

    title: str
    series: tuple[Series, ...]
    unit: str | None = None
    """None here and below: taken from the first series with a declaration."""
    meaning: str | None = None
    healthy: str | None = None
    kinds: tuple[str, ...] = ()
    """The kinds of run that show it; empty for all."""
    form: str = "plain"
    """The vertical axis: plain, percent, log, or stacked areas (seconds)."""
    needs: str | None = None
    """A metric without which it is not shown."""
    smooth: bool = True
    """Whether longer curves are drawn with a moving average; not for quantities without noise."""


REWARD = "Mean reward, by function"
GOLD = "Held-out reward and gold score"

CHARTS: tuple[Chart, ...] = (
    Chart(
        "Accuracy on judgements, training and held out",
        (
            Series("score/accuracy", "training"),
            Series("eval/{set}/accuracy", "held out: {set}", "eval/{set}/accuracy_low", "eval/{set}/accuracy_high"),
        ),
        unit="pairs, answers or steps",
        meaning="Share in the right order, or with the right sign; the band is the 95 % interval.",
        healthy="held-out accuracy rises. Training that leaves it behind means that judgements are memorised.",
        form="percent",
        kinds=("reward",),
    ),
    Chart(
        "Loss on judgements, training and held out",
        (
            Series("loss", "training"),
            Series("eval/{set}/loss", "held out: {set}", "eval/{set}/loss_low", "eval/{set}/loss_high"),
        ),
        unit="nats per pair, ranking or answer",
        meaning="The loss that is learned; of ratings a squared error. The band is the 95 % interval.",
        healthy="falls. Held-out loss that turns upwards means that judgements are memorised.",
        kinds=("reward",),
    ),
    Chart(
        "Calibration on held-out judgements",
        (
            Series("eval/{set}/ece", "{set}: ECE", "eval/{set}/ece_low", "eval/{set}/ece_high"),
            Series("eval/{set}/brier", "{set}: Brier score", "eval/{set}/brier_low", "eval/{set}/brier_high"),
        ),
        unit="error",
        meaning="How far predicted chances are from what is observed, and their mean squared error; bands are 95 % intervals.",
        healthy="low. A Brier score of 0.25 is that of a coin.",
    ),
    Chart(
        "Difference of score between a better and a worse answer",
        (Series("score/margin", "training"),),
    ),
    Chart(
        "Held-out accuracy",
        (
            Series("eval/{set}/accuracy", "{set}", "eval/{set}/accuracy_low", "eval/{set}/accuracy_high"),
            Series("eval/{set}/pass@{k}", "{set} pass@{k}"),
            Series("eval/{set}/best_of@{k}", "{set} best of {k}"),
            Series("eval/{set}/maj@{k}", "{set} vote of {k}"),
        ),
        unit="answers that are right",
        meaning="Share of problems that training never showed and that the model gets right; the band is the 95 % interval.",
        form="percent",
    ),
    Chart(
        "Return of an episode",
        (Series("return", "mean", "return/low_seed", "return/high_seed"),),
        meaning=(
            "Undiscounted return of the episodes that ended since the last point, exploration included; of several seeds the "
            "mean, and the band from the worst seed to the best. Steps or episodes, as the budget was given."
        ),
        kinds=("classical",),
    ),
    Chart(
        "Length of an episode",
        (Series("episode_length", "mean"),),
        kinds=("classical",),
    ),
    Chart(
        "Mean size of the TD error",
        (Series("td_error", "mean size"),),
        kinds=("classical",),
    ),
    Chart(
        "Cross-entropy loss, training and held out",
        (Series("loss", "training"), Series("eval/{set}/loss", "held out: {set}")),
        unit="nats per token",
        meaning="Cross-entropy of the trained tokens.",
        healthy="falls quickly, then slowly. Held-out loss that turns upwards means overfitting.",
        kinds=("sft", "rft"),
    ),
    Chart(
        "Accuracy of the most likely token",
        (Series("mean_token_accuracy", "training"),),
        form="percent",
    ),
    Chart(
        GOLD,
        (Series("eval/{set}/reward", "reward: {set}"), Series("eval/{set}/gold", "gold: {set}")),
        unit="reward, gold score",
        meaning="Mean over held-out answers of the reward that is trained on (the proxy) and of the gold score, which is not.",
        healthy="both rise. Where the reward goes on rising and the gold score falls, the policy exploits the reward.",
        needs="eval/{set}/gold",
        smooth=False,
    ),
    Chart(
        REWARD,
        (
            Series("reward", "weighted sum"),
            Series("rewards/{name}/mean", "{name}"),
            Series("eval/{set}/reward", "held out: {set}"),
        ),
        meaning="Mean reward of the samples: the weighted sum, and each function before its weight.",
    ),
    Chart(
        "Groups whose rewards are all equal",
        (Series("frac_reward_zero_std", "all rewards equal"),),
        form="percent",
    ),
    Chart(
        "Standard deviation of the reward in a group",
        (Series("reward_std", "within a group"),),
    ),
    Chart(
        "Length of the answers",
        (
            Series("completions/mean_length", "mean", "completions/min_length", "completions/max_length"),
            Series("completions/mean_terminated_length", "mean of finished answers"),
            Series("eval/{set}/mean_length", "held out: {set}"),
        ),
        meaning="Length of the sampled answers; the band reaches from the shortest to the longest.",
    ),
    Chart(
        "Answers that a limit cut off",
        (Series("completions/clipped_ratio", "training"), Series("eval/{set}/clipped_ratio", "held out: {set}")),
        form="percent",
    ),
    Chart(
        "Entropy of the policy",
        (Series("entropy", "policy"),),
        meaning="Entropy of the policy at the sampled tokens, in nats; exploration needs it.",
        kinds=("rl", "classical"),
    ),
    Chart(
        "Answers kept by rejection sampling",
        (Series("rft/kept_ratio", "of all answers"), Series("rft/prompts_with_kept", "prompts with a kept answer")),
        form="percent",
        smooth=False,
    ),
    Chart(
        "Entropy of the model",
        (Series("entropy", "model"),),
        meaning="Entropy of the model's distribution at the tokens that it is trained on, in nats.",
        healthy="falls as the model learns the data.",
        kinds=("sft", "rft"),
    ),
    Chart(
        "KL divergence from reference and old policy",
        (
            Series("kl", "from the reference"),
            Series("kl/full", "from the reference, whole vocabulary"),
            Series("kl/teacher", "from the teacher, whole vocabulary"),
            Series("kl/old_full", "within a batch, whole vocabulary"),
            Series("kl/old", "within a batch"),
            Series("approx_kl", "within an update"),
        ),
        meaning="How far the policy has moved: from its reference, and within one update.",
        healthy="grows slowly; within an update it stays below about 0.02. Spikes ask for a smaller learning rate.",
    ),
    Chart(
        "Tokens outside the clip range",
        (
            Series("clip_ratio/low_mean", "lower bound"),
            Series("clip_ratio/high_mean", "upper bound"),
            Series("clip_ratio/region_mean", "either"),
        ),
        meaning="Tokens whose gradient the clip set to 0.",
        form="percent",
    ),
    Chart(
        "Probability ratio of new to old policy",
        (Series("ratio/mean", "mean"), Series("ratio/max", "largest")),
        meaning="Probability of the sampled tokens now over that at the start of the update.",
    ),
    Chart(
        "Log-probabilities: trainer minus sampler",
        (Series("sampling/logprob_difference/mean", "mean"), Series("sampling/logprob_difference/max", "largest")),
        meaning="|trainer − sampler| log-probability of the same tokens under the same weights; logarithmic axis.",
        form="log",
    ),
    Chart(
        "Explained variance of the critic",
        (Series("explained_variance", "explained variance"),),
        meaning="Share of the variance of the returns that the critic explains: 1 is perfect, 0 a constant.",
    ),
    Chart(
        "Value loss of the critic",
        (Series("value_loss", "critic"),),
    ),
    Chart(
        "Adaptive and scheduled coefficients",
        (
            Series("kl/coefficient", "KL to the reference"),
            Series("kl/old_coefficient", "KL to the old policy"),
            Series("kl/teacher_coefficient", "KL to the teacher"),
            Series("constraint/{name}/multiplier", "bound on {name}"),
            Series("entropy/coefficient", "entropy bonus"),
        ),
        meaning="Values of adaptive and scheduled coefficients.",
        healthy="settles. One that runs to its end has a target that is out of reach.",
        smooth=False,
    ),
    Chart(
        "Tokens removed by corrections and masks",
        (
            Series("sequence_mask/dropped", "off-policy sequence mask"),
            Series("correction/dropped", "weight 0"),
            Series("selection/selected", "selected by covariance"),
        ),
        unit="scored tokens",
        meaning="Tokens that corrections and masks take out of the loss.",
        healthy="some per cent. Near one half, the samples are too old, or sampler and trainer disagree.",
        form="percent",
    ),
    Chart(
        "Staleness of the samples",
        (Series("staleness/mean", "mean"), Series("staleness/max", "oldest token")),
    ),
    Chart(
        "Policy loss",
        (Series("loss", "loss"),),
        unit="none",
        meaning="The surrogate that the update minimises. Its value says little, as every batch is scored anew.",
        healthy="small, around zero, without spikes. Watch accuracy and reward instead.",
        kinds=("rl",),
    ),
    Chart(
        "Gradient norm before clipping",
        (Series("grad_norm", "before clipping"),),
    ),
    Chart(
        "Learning rate",
        (Series("learning_rate", "learning rate"),),
        smooth=False,
    ),
    Chart(
        "Time of a step, by phase",
        (Series("time/{name}", "{name}"),),
        unit="seconds",
        meaning="Mean seconds of a step in each of at most 60 stretches of the run, the phases on top of each other.",
        healthy="sampling takes most of it in RL. A phase that grows has answers that grow, or a reward that is slow.",
        form="stacked",
    ),
    Chart(
        "Generated tokens per second",
        (Series("tokens_per_second", "tokens"),),
        kinds=("rl", "classical"),
    ),
    Chart(
        "Tokens trained on per second",
        (Series("tokens_per_second", "tokens"),),
        kinds=("sft", "rft", "reward"),
    ),
    Chart(
        "Dropped groups, failed rewards, skipped updates",
        (
            Series("groups/dropped", "groups filtered"),
            Series("groups/attempts", "rounds of sampling"),
            Series("rewards/failed", "failed rewards"),
            Series("episodes/failed", "failed episodes"),
            Series("updates/skipped", "skipped updates"),
        ),
        unit="count",
        meaning="Data and updates that were dropped.",
        healthy="failed rewards and skipped updates stay at zero.",
        smooth=False,
    ),
)
