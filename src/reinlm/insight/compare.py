"""Runs side by side: groups of seeds, means with intervals, and one page of overlaid curves. Reads run folders alone."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reinlm.config import parse_yaml
from reinlm.errors import InputError, RunError, unknown
from reinlm.insight.charts import find_chart
from reinlm.insight.findings import identical_groups, notes_of, updates_in_force, updates_that_differ
from reinlm.insight.page import interval_text, is_fraction, number_text, percent, read_json, render
from reinlm.intervals import mean_interval
from reinlm.program import command_line
from reinlm.runs.declarations import Metric, find_metric, read_metrics_info
from reinlm.runs.files import write_atomic
from reinlm.runs.folder import CONFIG_FILE, RUN_FILE, notes_in, read_run
from reinlm.runs.metrics import CURVES, JUDGED, METRICS_FILE, TAIL, ends, read_metrics
from reinlm.sources import DEFAULT_OF

PAGE_FILE = "compare.html"
OF_ONE_RUN = ("seed", "seeds", "run", "resolved", "imports", "output", "tensorboard")
"""Keys in which the runs of a group may differ."""
LONGEST_NAME = 60
"""Characters of a group's name; longer ones give way to the last parts of their keys, then to the names of the folders."""
SEEDS = "seeds"
"""The folder of a classical run with a run folder for each seed, named by it."""


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison."""

    folder: Path
    kind: str
    seed: int | None
    ended: str
    """finished, stopped early, interrupted, failed, or not finished."""
    config: Mapping[str, Any] = field(repr=False)
    records: Sequence[Mapping[str, Any]] = field(repr=False)
    implied: frozenset[str] = field(default=frozenset(), repr=False)
    """Dotted keys that the named algorithm sets, as the comments of the run's configuration say."""
    notes: tuple[str, ...] = ()
    """What the run said at its start."""
    updates: str | None = None
    """Updates of a batch in force, `8 (1 × 8)`: passes times minibatches; None where its configuration says none."""

    @property
    def steps(self) -> int:
        """The last step that was logged; 0 before the first."""
        return int(self.records[-1]["step"]) if self.records else 0

    def value(self, metric: str) -> float | None:
        """The last evaluation; of a metric of training the mean over the last tenth of its values; None without any."""
        known = [r[metric] for r in self.records if metric in r and math.isfinite(r[metric])]
        if not known:
            return None
        _, last = ends(metric, known)
        return math.fsum(last) / len(last)


@dataclass(frozen=True)
class Comparison:
    """Groups of runs that differ in their seed alone, and what they reached."""

    groups: Mapping[str, tuple[ComparedRun, ...]]
    """By name: the settings in which the groups differ, or their folders where that is too long."""
    metrics: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    """For each metric and group: metric, group, runs, mean, low and high (Student's 95 % interval, None for one run), values,
    seeds."""
    page: Path | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    """Runs of a queue that failed, with what went wrong."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By dotted key and group: the settings that differ, where the names of the groups do not say them."""
    updates: Mapping[str, str] = field(default_factory=dict)
    """By group: the updates of a batch, `8 (1 × 8)`, where groups differ in them."""
    identical: tuple[str, ...] = ()
    """One sentence for each set of groups that are identical in every figure."""
    notes: tuple[str, ...] = ()
    """The notes of the runs, each once; with the names of the groups where not all have it."""

    def means(self, metric: str) -> str:
        """A metric with what its figure is: `reward: of training, mean of the last 1/10 of the logged values`."""
        return f"{metric}: {'' if metric.startswith('eval/') else 'of training, '}{_how(metric)}"

    def frame(self) -> Any:
        """The rows as a pandas frame. Raises InputError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise InputError("frame() needs pandas, which is not installed", hint="read .rows") from None
        return pandas.DataFrame([*self.rows])


def compare_runs(folders: Sequence[str | Path], *, metrics: Sequence[str] = ()) -> Comparison:
    """Compare finished or running runs.

    Args:
        folders: run folders, or folders of run folders.
        metrics: names of logged metrics; by default the accuracies, losses, rewards and returns of the evaluations that all
            groups have, and the reward, loss or return of training.

    Raises:
        InputError: for a folder that holds no run, one that is given twice, runs of different kinds, fewer than two runs, and
            metrics that no run has.
    """
    found = _expand(folders)
    if len(found) < 2:
        raise InputError(
            f"compare needs at least two runs, and {found[0] if found else 'none'} is all that is given",
            hint=f"give more run folders; of a single run: {command_line('report', found[0] if found else 'runs/NAME')}",
        )
    return _compared([_read(folder) for folder in found], metrics, {})


def compare_queue(
    folders: Sequence[Path], *, kind: str, metrics: Sequence[str], failed: Mapping[str, str]
) -> Comparison:
    """The same of the runs of a queue, of which there may be one, and some may have failed.

    Raises:
        RunError: where every run failed, with the first reason.
    """
    runs = [_read(folder) for folder in folders]
    if failed and not any(run.ended in ("finished", "stopped") for run in runs):
        name, why = next(iter(failed.items()))
        raise RunError(
            f"every {kind} run failed; the first, {name}: {why}", hint="correct the settings and start it again"
        )
    return _compared(runs, metrics, failed)


def _compared(runs: Sequence[ComparedRun], metrics: Sequence[str], failed: Mapping[str, str]) -> Comparison:
    kinds = sorted({run.kind for run in runs})
    if len(kinds) > 1:
        first = {kind: next(run.folder for run in runs if run.kind == kind) for kind in kinds}
        listed = ", ".join(f"{folder} ({kind})" for kind, folder in first.items())
        raise InputError(f"runs of different kinds cannot be compared: {listed}", hint="give runs of one kind")
    groups, settings = _groups(runs)
    chosen = _metrics(runs, metrics)
    return Comparison(
        groups,
        chosen,
        tuple(_rows(groups, chosen)),
        failed=dict(failed),
        settings=settings,
        updates=updates_that_differ(groups),
        identical=tuple(identical_groups(groups)),
        notes=tuple(notes_of(groups)),
    )


def write_page(comparison: Comparison, path: str | Path) -> Path:
    """Write the comparison as a self-contained page, and return its path.

    Raises InputError for a place that cannot be written.
    """
    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(
            f"cannot write {path}: not a file in an existing folder", hint="give a file such as compare.html"
        )
    every = [run for runs in comparison.groups.values() for run in runs]
    declared = {name: metric for run in every for name, metric in read_metrics_info(run.folder).items()}
    page = render(
        "compare.html",
        title=path.stem if path.stem != "compare" else path.absolute().parent.name,
        comparison=comparison,
        tables=[_table(comparison, metric, declared) for metric in comparison.metrics],
        figures=[_figure(comparison.groups, metric, declared) for metric in comparison.metrics],
        several=any(len(runs) > 1 for runs in comparison.groups.values()),
    )
    write_atomic(path, page)
    return path


def overlaid(runs: Sequence[ComparedRun], metric: str) -> dict[str, Any] | None:
    """The mean curve of a group with the lowest and the highest run, at the steps that all its runs have logged.

    None where there are no such steps; a run without the metric does not count.
    """
    logged = [{r["step"]: r[metric] for r in run.records if metric in r and math.isfinite(r[metric])} for run in runs]
    logged = [values for values in logged if values]
    if not logged:
        return None
    steps = sorted(set.intersection(*map(set, logged)))
    if not steps:
        return None
    columns = [[values[step] for values in logged] for step in steps]
    curve: dict[str, Any] = {"x": steps, "y": [math.fsum(column) / len(column) for column in columns]}
    if len(logged) > 1:
        curve |= {"low": [min(column) for column in columns], "high": [max(column) for column in columns]}
    return curve


# ---------------------------------------------------------------------------------------------------------- reading


def _expand(folders: Sequence[str | Path]) -> list[Path]:
    """Run folders; a folder without a run of its own stands for the runs in it, a classical run for its seeds."""
    found: list[Path] = []
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(
                f"{folder} is not a run folder: there is no such folder",
                hint="give folders of runs, or recipes to run, such as recipe.yaml --grid algorithm=grpo,ppo",
            )
        if seeds := [path.parent for path in folder.glob(f"{SEEDS}/*/{RUN_FILE}")]:
            found += sorted(seeds, key=lambda path: (len(path.name), path.name))
            continue
        inner = sorted(path.parent for path in folder.glob(f"*/{RUN_FILE}"))
        own = (folder / RUN_FILE).is_file() and ((folder / METRICS_FILE).is_file() or not inner)
        if not own and not inner:
            raise InputError(f"{folder} is not a run folder", hint=f"a run folder holds {RUN_FILE}")
        found += [folder] if own else inner
    seen: dict[Path, Path] = {}
    for folder in found:
        if folder.resolve() in seen:
            raise InputError(f"{folder} is given twice", hint="give each run once")
        seen[folder.resolve()] = folder
    return found


def _read(folder: Path) -> ComparedRun:
    run = read_run(folder)
    file = folder / CONFIG_FILE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    config = parse_yaml(text, str(file)) or {}
    summary = read_json(folder / "summary.json")
    ended = "not finished" if summary is None else str(summary.get("ended", "finished"))
    metrics = folder / METRICS_FILE
    records = read_metrics(metrics) if metrics.is_file() else []
    seed = int(folder.name) if folder.parent.name == SEEDS and folder.name.isdecimal() else config.get("seed")
    return ComparedRun(
        folder,
        run["kind"],
        seed,
        ended,
        config,
        records,
        _implied(text, config),
        tuple(notes_in(run)),
        updates_in_force(config, text) if run["kind"] == "rl" else None,
    )


def _implied(text: str, config: Mapping[str, Any]) -> frozenset[str]:
    """Dotted keys whose line ends with the algorithm's name as a comment."""
    algorithm = _flat({"algorithm": config.get("algorithm")}).get("algorithm")
    found, path = set(), [(-1, "")]
    for line in text.splitlines():
        known = _ENTRY.match(line)
        if known is None:
            continue
        while path[-1][0] >= len(known["indent"]):
            path.pop()
        key = f"{path[-1][1]}.{known['key']}".lstrip(".")
        path.append((len(known["indent"]), key))
        if line.endswith(f"  # {algorithm}") or (key.startswith("algorithm.") and f"  # {DEFAULT_OF}" in line):
            found.add(key)
    return frozenset(found)


_ENTRY = re.compile(r"(?P<indent> *)(?P<key>[^\s#:-][^\s:]*):(\s|$)")


def _groups(
    runs: Sequence[ComparedRun],
) -> tuple[dict[str, tuple[ComparedRun, ...]], dict[str, dict[str, str]]]:
    """Groups by name, and the settings in which they differ where the names do not say them."""
    flat = [_flat({k: v for k, v in run.config.items() if k not in OF_ONE_RUN}) for run in runs]
    differing = _differing(flat)
    groups: dict[str, list[int]] = {}
    for place, values in enumerate(flat):
        groups.setdefault(repr([(key, values.get(key)) for key in differing]), []).append(place)
    said = [
        {
            key: _shown(values.get(key))
            for key in differing
            if key == "algorithm"
            or key in _differing([other for other in flat if other.get("algorithm") == values.get("algorithm")])
            or (key in values and key not in run.implied)
        }
        for run, values in zip(runs, flat, strict=True)
    ]
    members = [*groups.values()]
    last = [key.rpartition(".")[2] for key in differing]
    short = {key: name if last.count(name) == 1 else key for key, name in zip(differing, last, strict=True)}
    for called in ({key: key for key in differing}, short):
        names = [
            ", ".join(f"{called[key]}={value}" for key, value in said[group[0]].items()) or "all runs"
            for group in members
        ]
        fitting = len({*names}) == len(names) and all(len(name) <= LONGEST_NAME for name in names)
        if fitting:
            break
    if fitting:
        settings = {}
    else:
        settings = {
            key: {place: said[group[0]].get(key, "") for place, group in enumerate(members)}
            for key in differing
            if any(key in said[group[0]] for group in members)
        }
        names = _folder_names([runs[group[0]].folder for group in members])
    found = {name: tuple(runs[place] for place in group) for name, group in zip(names, members, strict=True)}
    return found, {key: {names[place]: value for place, value in row.items()} for key, row in settings.items()}


def _differing(flat: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for values in flat for key in values)
    return [key for key in keys if len({repr(values.get(key)) for values in flat}) > 1]


def _folder_names(folders: Sequence[Path]) -> list[str]:
    """The name of a run's folder without its seed; the whole path where two are the same."""
    names = []
    for folder in folders:
        own = folder.parent.parent if folder.parent.name == SEEDS else folder
        name = re.sub(r"[-_]?seed\d+$", "", own.absolute().name)
        names.append(name or own.absolute().parent.name)
    return names if len({*names}) == len(names) else [str(folder) for folder in folders]


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Leaves of a configuration by their dotted keys; `algorithm: grpo` and `algorithm: {base: grpo}` are the same key."""
    if not isinstance(tree, Mapping) or not tree:
        return {path: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, path if (path, key) == ("algorithm", "base") else f"{path}.{key}" if path else str(key))
    return found


def _shown(value: Any) -> str:
    text = "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _metrics(runs: Sequence[ComparedRun], asked: Sequence[str]) -> tuple[str, ...]:
    logged = dict.fromkeys(
        name for run in runs for record in run.records for name in record if name not in ("step", "time")
    )
    for name in asked:
        if name not in logged:
            raise unknown("metric of these runs", name, logged)
    if asked:
        return tuple(dict.fromkeys(asked))
    judged = [name for name in logged if name.startswith("eval/") and name.endswith(JUDGED)]
    return (*judged, *(name for name in CURVES.get(runs[0].kind, ()) if name in logged))


def _rows(groups: Mapping[str, Sequence[ComparedRun]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for metric in metrics:
        for label, runs in groups.items():
            known = [(run.seed, value) for run in runs if (value := run.value(metric)) is not None]
            if not known:
                continue
            mean, low, high = mean_interval([value for _, value in known])
            row = {"metric": metric, "group": label, "runs": len(known), "mean": mean, "low": low, "high": high}
            rows.append(row | {"values": [value for _, value in known], "seeds": [seed for seed, _ in known]})
    return rows


# ------------------------------------------------------------------------------------------------------------- page


def _how(metric: str) -> str:
    """What the figure of a run is."""
    return "last evaluation" if metric.startswith("eval/") else f"mean of the last 1/{TAIL} of the logged values"


def _table(comparison: Comparison, metric: str, declared: Mapping[str, Metric]) -> dict[str, Any]:
    show = percent if is_fraction(metric) else number_text
    rows = [
        {
            "group": row["group"],
            "runs": row["runs"],
            "mean": show(row["mean"]),
            "interval": interval_text(row, show),
            "values": ", ".join(map(show, row["values"])),
        }
        for row in comparison.rows
        if row["metric"] == metric
    ]
    info = find_metric(metric, declared)
    return {"metric": metric, "how": _how(metric), "unit": info.unit if info else "none", "rows": rows}


def _figure(
    groups: Mapping[str, Sequence[ComparedRun]], metric: str, declared: Mapping[str, Metric]
) -> dict[str, Any] | None:
    curves = [
        {"label": label, **curve} for label, runs in groups.items() if (curve := overlaid(runs, metric)) is not None
    ]
    if not curves:
        return None
    return find_chart(metric, curves, declared, percent=is_fraction(metric))
