"""The charts of a report: which metrics share a chart. Meanings and units come from the metric declarations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reinlm.insight.svg import FEW, tick_text
from reinlm.runs.declarations import Metric, find_metric, pattern
from reinlm.runs.metrics import leading

MOST_POINTS = 500
"""Longer series are averaged down to this many points, which keeps the page small."""

MOST_STACKED = 60
"""The same for stacked areas."""
ROUNDING = 1e-6
"""Losses below this are 0 but for rounding."""

Records = Sequence[Mapping[str, Any]]


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


_REWARD = "Mean reward, by function"
_GOLD = "Held-out reward and gold score"

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
        _GOLD,
        (Series("eval/{set}/reward", "reward: {set}"), Series("eval/{set}/gold", "gold: {set}")),
        unit="reward, gold score",
        meaning="Mean over held-out answers of the reward that is trained on (the proxy) and of the gold score, which is not.",
        healthy="both rise. Where the reward goes on rising and the gold score falls, the policy exploits the reward.",
        needs="eval/{set}/gold",
        smooth=False,
    ),
    Chart(
        _REWARD,
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

_UNDECLARED = Metric("undeclared", "none", "its unit and meaning are not declared")

# pass@1 is the accuracy by another name
_COVERED = ("step", "time", "eval/{set}/pass@1", "eval/{set}/accuracy_low", "eval/{set}/accuracy_high")


def charts(records: Records, kind: str, metrics: Mapping[str, Metric]) -> list[dict[str, Any]]:
    """The figures of a run, as plain values for the page: title, unit, caption, form, and curves with their points.

    `metrics` are the declarations by name; a logged metric without one has neither unit nor healthy range. The loss of an
    RL run that is 0 up to rounding, as that of one update of standardised advantages is by construction, is left out.
    """
    names = _names(records)
    figures, shown = [], {name for known in _COVERED for name, _ in _matches(known, names)}
    if kind == "rl" and all(abs(record.get("loss", 0.0)) < ROUNDING for record in records):
        shown.add("loss")
    reward_first = any(name.endswith("/reward") for name in leading(names).values())
    for chart in sorted(CHARTS, key=lambda chart: chart.title not in (_GOLD, _REWARD)) if reward_first else CHARTS:
        if (chart.kinds and kind not in chart.kinds) or (chart.needs and not any(_matches(chart.needs, names))):
            continue
        curves = []
        for series in chart.series:
            for name, parts in _matches(series.metric, names):
                if name not in shown:
                    curves.append(_curve(records, series, name, parts, metrics, chart))
                    shown.update({name, *(bound.format(**parts) for bound in (series.low, series.high) if bound)})
        if curves:
            figures.append(_figure(chart, curves, metrics))
    figures += [_other(records, name, metrics) for name in names if name not in shown]
    return [_of_actions(figure) for figure in figures] if kind == "classical" else figures


def _of_actions(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure of a classical run: it has actions in place of tokens."""
    words = (("Tokens", "Actions"), ("tokens", "actions"), ("token", "action"))
    changed = {key: value for key, value in figure.items() if isinstance(value, str)}
    for before, after in words:
        changed = {key: text.replace(before, after) for key, text in changed.items()}
    return {**figure, **changed}


def split_constant_charts(figures: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[dict[str, Any]]]:
    """The figures with something to draw, and rows of title, label, value, unit for those that are constant throughout."""
    drawn, rows = [], []
    for chart in figures:
        values = [{y for y in curve["y"] if y is not None} for curve in chart["curves"]]
        if any(len(found) > 1 for found in values):
            drawn.append(chart)
            continue
        for curve, (value,) in zip(chart["curves"], values, strict=True):
            label = curve["label"] if chart["legend"] else ""
            row = {"title": chart["title"], "label": label, "value": value, "unit": chart["unit"]}
            rows.append(row | {"percent": chart["form"] == "percent", "meaning": chart["meaning"]})
    return drawn, rows


def smoothing(points: int) -> int | None:
    """How many values the moving average of a curve of so many points is over: a thirtieth; None where none is drawn.

    Example:
        >>> smoothing(300)
        11
    """
    return None if points <= FEW else max(points // 60, 1) * 2 + 1


def _figure(
    chart: Chart, curves: list[dict[str, Any]], metrics: Mapping[str, Metric], other: bool = False
) -> dict[str, Any]:
    described = (find_metric(series.metric, metrics) for series in chart.series)
    info = next((metric for metric in described if metric is not None), _UNDECLARED)
    return {
        "title": chart.title,
        "unit": info.unit if chart.unit is None else chart.unit,
        "meaning": _sentence(info.meaning) if chart.meaning is None else chart.meaning,
        "healthy": _with_full_stop(info.healthy) if chart.healthy is None else chart.healthy,
        "criterion": _criterion(curves, percent=chart.form == "percent"),
        "unhealthy": _with_full_stop(info.bad) if chart.healthy is None else "",
        "form": chart.form,
        "smoothing": sorted({curve["window"] for curve in curves if "window" in curve}),
        "curves": curves,
        "legend": len(chart.series) > 1 or any("{" in series.label for series in chart.series),
        "other": other,
    }


def _criterion(curves: Sequence[Mapping[str, Any]], *, percent: bool) -> str:
    """What the declared ranges ask for, and how many of the logged values meet it."""
    said = []
    for curve in curves:
        if "healthy" in curve:
            low, high = (None if bound is None else tick_text(bound, percent=percent) for bound in curve["healthy"])
            asked = f"at most {high}" if low is None else f"at least {low}" if high is None else f"{low} to {high}"
            asked = asked if low != high else f"{low}"
            said.append(f"{curve['label']}: {asked} ({curve['inside']:,} of {curve['logged']:,} values)")
    return "; ".join(said)


def _sentence(text: str) -> str:
    return _with_full_stop(text[:1].upper() + text[1:])


def _with_full_stop(text: str) -> str:
    return f"{text}." if text else ""


def _other(records: Records, name: str, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    series = Series(name, name)
    chart = Chart(name, (series,))
    return _figure(chart, [_curve(records, series, name, {}, metrics, chart)], metrics, other=True)


def _names(records: Records) -> list[str]:
    """The metrics with at least one finite value, in the order of their first appearance."""
    names: dict[str, None] = {}
    for record in records:
        names.update((name, None) for name, value in record.items() if _finite(value) is not None)
    return list(names)


def _matches(metric: str, names: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    form = pattern(metric)
    return [(name, match.groupdict()) for name in names if (match := form.fullmatch(name))]


def _curve(
    records: Records, series: Series, name: str, parts: Mapping[str, str], metrics: Mapping[str, Metric], chart: Chart
) -> dict[str, Any]:
    columns = {"y": name}
    if series.low and series.high:
        columns |= {"low": series.low.format(**parts), "high": series.high.format(**parts)}
    stacked = chart.form == "stacked"  # a phase that a step lacks took no time
    rows = [{name: 0.0, **record} for record in records if stacked or name in record]
    most = MOST_STACKED if stacked else MOST_POINTS
    label = series.label.format(**parts) if parts else series.label
    steps = [record["step"] for record in rows]
    curve: dict[str, Any] = {"label": label, "x": [part[-1] for part in _stretches(steps, most)]}
    for key, column in columns.items():
        values = [_mean(part) for part in _stretches([_finite(record.get(column)) for record in rows], most)]
        if any(value is not None for value in values):
            curve[key] = values
    if chart.smooth and chart.form != "stacked" and (window := smoothing(len(curve["x"]))):
        curve["window"] = window
    info = find_metric(name, metrics)
    if info is not None and info.healthy_range is not None:
        logged = [value for record in rows if (value := _finite(record[name])) is not None]
        low, high = info.healthy_range
        inside = [v for v in logged if (low is None or v >= low) and (high is None or v <= high)]
        curve |= {"healthy": [low, high], "inside": len(inside), "logged": len(logged)}
    return curve


def _stretches(values: list[Any], most: int) -> list[list[Any]]:
    size = max(1, math.ceil(len(values) / most))
    return [values[start : start + size] for start in range(0, len(values), size)]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _finite(value: Any) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number and math.isfinite(value) else None


def find_chart(
    name: str, curves: list[dict[str, Any]], metrics: Mapping[str, Metric], *, percent: bool
) -> dict[str, Any]:
    """A figure of one metric with curves of one's own, such as one for each group of runs."""
    for curve in curves:
        if window := smoothing(len(curve["x"])):
            curve["window"] = window
    info = find_metric(name, metrics) or _UNDECLARED
    chart = Chart(name, (Series(name, "{run}"),), info.unit, form="percent" if percent else "plain")
    return _figure(chart, curves, {name: info})
