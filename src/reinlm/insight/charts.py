"""The charts of a report: which metrics share one, what it means, and what healthy looks like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reinlm.runs.names import describe, pattern

MOST_POINTS = 1500
"""A longer series is averaged in as many stretches, so that a page of a long run opens at once."""

Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Series:
    """A curve, or one for each reward or evaluation set that its name stands for.

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
    """One figure and its caption. It is shown where a run has logged any of its series."""

    title: str
    unit: str
    series: tuple[Series, ...]
    meaning: str
    healthy: str
    kinds: tuple[str, ...] = ()
    """The kinds of run that it is for; empty for all."""
    form: str = "plain"
    """How the vertical axis reads: plain, percent, log, or stacked (seconds on top of each other)."""
    smooth: bool = True
    """Whether the page's smoothing applies: not to what carries no noise."""


CHARTS: tuple[Chart, ...] = (
    Chart(
        "Held-out accuracy",
        "answers that are right",
        (
            Series("eval/{set}/accuracy", "{set}", "eval/{set}/accuracy_low", "eval/{set}/accuracy_high"),
            Series("eval/{set}/pass@{k}", "{set} pass@{k}"),
        ),
        "Share of problems that training never showed and that the model gets right; the band is the 95 % interval.",
        "rises and stays up. Reward that climbs while this stands still means that the reward is being gamed.",
        form="percent",
    ),
    Chart(
        "Return",
        "reward per episode",
        (Series("return", "mean", "return/low_seed", "return/high_seed"),),
        "Undiscounted return of the episodes that ended since the last point, exploration included; of several seeds the "
        "mean, and the band from the worst seed to the best. Steps or episodes, as the budget was given.",
        "rises and stays up. A band that does not close: some seeds have not found what others have.",
        kinds=("classical",),
    ),
    Chart(
        "Episode length",
        "steps",
        (Series("episode_length", "mean"),),
        "Length of the episodes that ended since the last point.",
        "moves as the return does.",
        kinds=("classical",),
    ),
    Chart(
        "TD error",
        "reward",
        (Series("td_error", "mean size"),),
        "How far values were from their targets, before the update.",
        "falls to the size of the noise. Growth without end is divergence.",
        kinds=("classical",),
    ),
    Chart(
        "Loss",
        "nats per token",
        (Series("loss", "training"), Series("eval/{set}/loss", "held out: {set}")),
        "How surprised the model is by the demonstrations: cross-entropy of the trained tokens.",
        "falls quickly, then slowly. Held-out loss that turns upwards means overfitting.",
        kinds=("sft",),
    ),
    Chart(
        "Token accuracy",
        "trained tokens",
        (Series("mean_token_accuracy", "training"),),
        "Trained tokens that were the model's first choice.",
        "rises with falling loss.",
        form="percent",
    ),
    Chart(
        "Reward by function",
        "reward",
        (
            Series("reward", "weighted sum"),
            Series("rewards/{name}/mean", "{name}"),
            Series("eval/{set}/reward", "held out: {set}"),
        ),
        "Mean reward of the samples: the weighted sum, and each function before its weight.",
        "the one that states your goal rises; one that rises alone is being gamed.",
    ),
    Chart(
        "Groups without a signal",
        "groups",
        (Series("frac_reward_zero_std", "all rewards equal"),),
        "Groups whose samples all earned the same reward: they teach nothing.",
        "well below one. Near one, the problems are too hard or too easy for the model.",
        form="percent",
    ),
    Chart(
        "Reward spread",
        "reward",
        (Series("reward_std", "within a group"),),
        "Standard deviation of the reward within a group, averaged over the groups.",
        "clearly above zero; it shrinks as the task is learned.",
    ),
    Chart(
        "Answer length",
        "tokens",
        (
            Series("completions/mean_length", "mean", "completions/min_length", "completions/max_length"),
            Series("completions/mean_terminated_length", "mean of finished answers"),
            Series("eval/{set}/mean_length", "held out: {set}"),
        ),
        "Length of the sampled answers; the band reaches from the shortest to the longest.",
        "moves for a reason. A steady climb without more accuracy is padding; a collapse is a shortcut.",
    ),
    Chart(
        "Answers cut off",
        "answers",
        (Series("completions/clipped_ratio", "training"), Series("eval/{set}/clipped_ratio", "held out: {set}")),
        "Answers that the length limit ended before the model did.",
        "close to zero. Above a tenth, raise the limit or look for rambling.",
        form="percent",
    ),
    Chart(
        "Entropy",
        "nats per token",
        (Series("entropy", "policy"),),
        "How undecided the policy is at each token; exploration lives on it.",
        "falls gently. A drop to zero ends learning (raise the upper clip bound); a rise means noise is winning.",
    ),
    Chart(
        "KL divergence",
        "nats per token",
        (
            Series("kl", "from the reference"),
            Series("kl/full", "from the reference, whole vocabulary"),
            Series("kl/old", "within a batch"),
            Series("approx_kl", "within an update"),
        ),
        "How far the policy has moved: from its reference, and within one update.",
        "grows slowly; within an update it stays below about 0.02. Spikes ask for a smaller learning rate.",
    ),
    Chart(
        "Clip fraction",
        "scored tokens",
        (
            Series("clip_ratio/low_mean", "lower bound"),
            Series("clip_ratio/high_mean", "upper bound"),
            Series("clip_ratio/region_mean", "either"),
        ),
        "Tokens whose movement the clip stopped.",
        "up to some per cent; more for sequence ratios. Zero where a batch makes one update, as nothing has moved yet.",
        form="percent",
    ),
    Chart(
        "Probability ratio",
        "ratio",
        (Series("ratio/mean", "mean"), Series("ratio/max", "largest")),
        "Probability of the sampled tokens now over that at the start of the update.",
        "mean close to one; the largest within a few units.",
    ),
    Chart(
        "Sampler and trainer apart",
        "nats",
        (Series("sampling/logprob_difference/mean", "mean"), Series("sampling/logprob_difference/max", "largest")),
        "|trainer − sampler| log-probability of the same tokens under the same weights. Logarithmic.",
        "below 1e-4 in float32, some 1e-2 in bfloat16. More is a bug or a stale sampler: training is off-policy.",
        form="log",
    ),
    Chart(
        "What the critic explains",
        "share of the returns' variance",
        (Series("explained_variance", "explained variance"),),
        "How much of what answers earn the critic foresees from each state, before the update. One is perfect, zero a constant.",
        "rises above one half before the policy moves. Below zero the critic is worse than no critic: warm it up longer.",
    ),
    Chart(
        "Value loss",
        "reward squared",
        (Series("value_loss", "critic"),),
        "The critic's loss per token.",
        "falls, and rises a little whenever the policy has moved.",
    ),
    Chart(
        "Coefficients that move",
        "none",
        (
            Series("kl/coefficient", "KL to the reference"),
            Series("kl/old_coefficient", "KL to the old policy"),
            Series("entropy/coefficient", "entropy bonus"),
        ),
        "What adaptive and scheduled coefficients stood at.",
        "settles. One that runs to its end has a target that is out of reach.",
        smooth=False,
    ),
    Chart(
        "Off-policy samples",
        "scored tokens",
        (
            Series("sequence_mask/dropped", "left behind and masked"),
            Series("correction/dropped", "weight 0"),
            Series("selection/selected", "selected by covariance"),
        ),
        "Tokens that corrections and masks take out of the loss.",
        "some per cent. Near one half, the samples are too old, or sampler and trainer disagree.",
        form="percent",
    ),
    Chart(
        "Policy loss",
        "none",
        (Series("loss", "loss"),),
        "The surrogate that the update minimises. Its value says little, as every batch is scored anew.",
        "small, around zero, without spikes. Watch accuracy and reward instead.",
        kinds=("rl",),
    ),
    Chart(
        "Gradient norm",
        "none",
        (Series("grad_norm", "before clipping"),),
        "Norm of the gradient before it is clipped.",
        "steady. Spikes are odd batches or a learning rate that is too high; a gap was not finite.",
    ),
    Chart(
        "Learning rate",
        "none",
        (Series("learning_rate", "learning rate"),),
        "The schedule as it ran.",
        "warm-up, then the decay that you asked for.",
        smooth=False,
    ),
    Chart(
        "Time per phase",
        "seconds",
        (Series("time/{name}", "{name}"),),
        "Where each step's time goes.",
        "sampling takes most of it in RL. A phase that grows has answers that grow, or a reward that is slow.",
        form="stacked",
    ),
    Chart(
        "Throughput",
        "tokens per second",
        (Series("tokens_per_second", "tokens"),),
        "Tokens handled in a step over its time.",
        "level. A decline usually follows answer length.",
    ),
    Chart(
        "Left out",
        "count",
        (
            Series("groups/dropped", "groups filtered"),
            Series("groups/attempts", "rounds of sampling"),
            Series("rewards/failed", "failed rewards"),
            Series("updates/skipped", "skipped updates"),
        ),
        "Data and updates that did not reach the weights.",
        "failed rewards and skipped updates stay at zero.",
        smooth=False,
    ),
)

# pass@1 is the accuracy by another name
_COVERED = ("step", "time", "eval/{set}/pass@1", "eval/{set}/accuracy_low", "eval/{set}/accuracy_high")


def charts(records: Records, kind: str) -> list[dict[str, Any]]:
    """The figures of a run, as plain values for the page: title, unit, caption, form, and curves with their points."""
    names = _names(records)
    figures, shown = [], {name for known in _COVERED for name, _ in _matches(known, names)}
    for chart in CHARTS:
        if chart.kinds and kind not in chart.kinds:
            continue
        curves = []
        for series in chart.series:
            for name, parts in _matches(series.metric, names):
                if name not in shown:
                    curves.append(_curve(records, series, name, parts))
                    shown.update({name, *(bound.format(**parts) for bound in (series.low, series.high) if bound)})
        if curves:
            figures.append(_figure(chart, curves))
    return figures + [_other(records, name) for name in names if name not in shown]


def _figure(chart: Chart, curves: list[dict[str, Any]], other: bool = False) -> dict[str, Any]:
    named = len(chart.series) > 1 or any("{" in series.label for series in chart.series)
    figure = asdict(chart) | {"curves": curves, "legend": named, "other": other}
    return {key: value for key, value in figure.items() if key not in ("series", "kinds")}


def _other(records: Records, name: str) -> dict[str, Any]:
    info = describe(name)
    meaning = f"{info.description[0].upper()}{info.description[1:]}." if info else "A metric of your own."
    chart = Chart(name, info.unit if info else "", (), meaning, healthy="")
    return _figure(chart, [_curve(records, Series(name, name), name, {})], other=True)


def _names(records: Records) -> list[str]:
    """The metrics with at least one finite value, in the order of their first appearance."""
    names: dict[str, None] = {}
    for record in records:
        names.update((name, None) for name, value in record.items() if _finite(value) is not None)
    return list(names)


def _matches(metric: str, names: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    form = pattern(metric)
    return [(name, match.groupdict()) for name in names if (match := form.fullmatch(name))]


def _curve(records: Records, series: Series, name: str, parts: Mapping[str, str]) -> dict[str, Any]:
    columns = {"y": name}
    if series.low and series.high:
        columns |= {"low": series.low.format(**parts), "high": series.high.format(**parts)}
    rows = [record for record in records if name in record]
    label = series.label.format(**parts) if parts else series.label
    steps = [record["step"] for record in rows]
    curve: dict[str, Any] = {"label": label, "x": [part[-1] for part in _stretches(steps)]}
    for key, column in columns.items():
        values = [_mean(part) for part in _stretches([_finite(record.get(column)) for record in rows])]
        if any(value is not None for value in values):
            curve[key] = values
    return curve


def _stretches(values: list[Any]) -> list[list[Any]]:
    size = max(1, math.ceil(len(values) / MOST_POINTS))
    return [values[start : start + size] for start in range(0, len(values), size)]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and math.isfinite(value) else None
