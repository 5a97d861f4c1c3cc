"""`report.html`: one self-contained page on a run, made from its folder alone."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reinlm.config import parse_yaml
from reinlm.errors import InputError
from reinlm.insight.charts import ROUNDING, charts, split_constant_charts
from reinlm.insight.judgements import read_judgements
from reinlm.insight.page import is_fraction, is_number, number_text, percent, percent_range, read_json, render
from reinlm.insight.samples import read_samples
from reinlm.runs.declarations import Metric, read_metrics_info
from reinlm.runs.files import write_atomic
from reinlm.runs.folder import CONFIG_FILE, RUN_FILE, notes_in, read_run
from reinlm.runs.ledger import rows as ledger_rows
from reinlm.runs.metrics import CURVES, HEADLINE, METRICS_FILE, TAIL, ends, read_metrics
from reinlm.sources import DEFAULT_OF, leaves, read_sources

REPORT_FILE = "report.html"

_TITLES = {
    "sft": "Supervised fine-tuning",
    "rl": "Reinforcement learning",
    "rft": "Rejection sampling",
    "dpo": "Direct preference learning",
    "reward": "Reward model",
    "eval": "Evaluation",
    "quickstart": "Quickstart",
    "classical": "Classical reinforcement learning",
}
_LABELS = {
    "accuracy": "Accuracy, sampling",
    "greedy": "Accuracy, greedy",
    "loss": "Loss",
    "reward": "Reward",
    "return": "Return",
}
_SETUP = {
    "model": ("model", "path"),
    "data": ("data", "path"),
    "algorithm": ("algorithm",),
    "reward": ("reward", "functions"),
    "environment": ("environment",),
    "env": ("env",),
    "seed": ("seed",),
}


def write_report(
    run_folder: str | Path, *, stages: Sequence[str] | None = None, metrics: Mapping[str, Metric] | None = None
) -> Path:
    """Write `report.html` into a run folder and return its path.

    Reads `run.json`, `config.yaml`, `metrics.jsonl`, `metrics_info.json`, `summary.json`, `held_out.json`, and `samples.json`
    or `rollouts/`, as far as they exist: the report of a run that has just started or was killed is shorter.

    Args:
        run_folder: a run, or a folder of several runs such as `quickstart/sft` and `quickstart/rl`.
        stages: the names of its runs in their order; by default the folder itself where it has logged anything, then
            the runs in it by the time of their creation.
        metrics: declarations for metrics that the folder has none of, as a run of an earlier version: `reinlm.metrics.METRICS`.

    Raises:
        InputError: where there is no run, or a file in it is damaged, naming file and line.
    """
    folder = Path(run_folder)
    read = [_read_stage(folder / name, name, metrics) for name in stages] if stages else _find_stages(folder, metrics)
    if not read:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a run folder: there is no such folder", hint="give the folder of a run")
        raise InputError(f"{folder} is not a run folder", hint=f"a run folder holds {RUN_FILE}")
    runs = [stage["run"] for stage in read]
    if (folder / RUN_FILE).is_file():
        runs.insert(0, read_run(folder))
    sides = _sides(read)
    summary = _first(
        read_json(path / "summary.json") for path in (folder, *(stage["path"] for stage in reversed(read)))
    )
    samples = _first(read_samples(path, sides) for path in (folder, *(stage["path"] for stage in reversed(read))))
    page = render(
        "report.html",
        title=folder.resolve().name,
        subtitle=", then ".join(stage["title"] for stage in read).capitalize(),
        run=runs[0],
        commands=list(dict.fromkeys(run["command"] for run in runs if run["command"])),
        ended=_ended(_first(read_json(path / "summary.json") for path in (folder, read[-1]["path"]))),
        headline=_headline(summary, read, sides),
        facts=_facts(summary),
        notes=[(stage["name"], note) for stage in read for note in notes_in(stage["run"])],
        samples=samples,
        picture=_picture(folder),
        stages=read,
    )
    write_atomic(folder / REPORT_FILE, page)
    return folder / REPORT_FILE


def _picture(folder: Path) -> str | None:
    """`picture.svg` of the folder as a data URL: an image cannot run scripts, whatever the file contains."""
    path = folder / "picture.svg"
    if not path.is_file():
        return None
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _find_stages(folder: Path, metrics: Mapping[str, Metric] | None) -> list[dict[str, Any]]:
    runs = [path.parent for path in folder.glob(f"*/{RUN_FILE}")]
    inner = sorted((_read_stage(path, path.name, metrics) for path in runs), key=lambda stage: stage["run"]["created"])
    if (folder / METRICS_FILE).is_file() or (not inner and (folder / RUN_FILE).is_file()):
        return [_read_stage(folder, folder.resolve().name, metrics), *inner]
    return inner


def _read_stage(path: Path, name: str, metrics: Mapping[str, Metric] | None) -> dict[str, Any]:
    run = read_run(path)
    records = read_metrics(path / METRICS_FILE) if (path / METRICS_FILE).is_file() else []
    config = path / CONFIG_FILE
    text = config.read_text(encoding="utf-8") if config.is_file() else ""
    drawn, constant = split_constant_charts(
        charts(records, run["kind"], {**(metrics or {}), **read_metrics_info(path)})
    )
    return {
        "path": path,
        "name": name,
        "run": run,
        "title": _TITLES.get(run["kind"], run["kind"]),
        "records": records,
        "last_step": records[-1]["step"] if records else None,
        "charts": drawn,
        "constants": constant,
        "judgements": read_judgements(path, records),
        "config": text,
        "models": ledger_rows(run["models"]) if run.get("models") else [],
        "setup": _setup(parse_yaml(text, str(config)) or {}, text),
    }


def _setup(config: Mapping[str, Any], text: str) -> list[tuple[str, str]]:
    """What was trained on what: the main entries of the configuration, the algorithm with the choices that were given.

    Args:
        text: of the configuration, whose comments say what gave each value.
    """
    found = []
    for name, path in _SETUP.items():
        value: Any = config
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else value
        if isinstance(value, Mapping):
            value = value.get("base", value.get("name", next(iter(value), None)))
        if isinstance(value, list | tuple):
            value = ", ".join(_name(item) for item in value) if len(value) <= 4 else f"{len(value)} rows"
        if name == "algorithm" and value is not None:
            value = ", ".join([str(value), *_given_choices(config, text)])
        if value is not None and value != "question":
            found.append((name, str(value) if len(str(value)) <= 120 else f"{str(value)[:120]}…"))
    return found


def _given_choices(config: Mapping[str, Any], text: str) -> list[str]:
    """The values of an algorithm's choices that the algorithm did not bring along: `clip.high=0.3`, `aggregation=token_mean`."""
    base = config["algorithm"].get("base") if isinstance(config.get("algorithm"), Mapping) else None
    values, found = dict(leaves(config)), []
    for path, source in read_sources(text).items():
        brought = source == base or source.startswith(DEFAULT_OF)
        if (
            path[0] == "algorithm"
            and len(path) > 1
            and path[1] not in ("base", "name")
            and not brought
            and path in values
        ):
            found.append(f"{'.'.join(path[-2:] if len(path) > 3 else path[1:])}={values[path]}")
    return found


def _name(item: Any) -> str:
    return str(item.get("name", next(iter(item), ""))) if isinstance(item, Mapping) else str(item)


def _first(values: Any) -> Any:
    return next((value for value in values if value), None)


def _sides(stages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What the figures and samples of a folder of several runs compare: its last run with what came before."""
    if len(stages) < 2:
        return "before", "after"
    before, after = (str(stage["name"]) for stage in stages[-2:])
    return f"after {before}", f"after {after}"


def _headline(
    summary: Mapping[str, Any] | None, stages: Sequence[Mapping[str, Any]], sides: tuple[str, str]
) -> dict[str, Any] | None:
    """A table of the main figures: of the summary, `X_before` and `X_after`, or else the ends of evaluations or curves."""
    before, after = (_side(summary or {}, side) for side in ("before", "after"))
    if shared := [name for name in before if name in after]:
        return {"columns": sides, "rows": [_row(name, before[name], after[name]) for name in shared]}
    rows = _ends(stages)
    return {"columns": ("start", "end"), "rows": rows, "tail": TAIL} if rows else None


def _side(summary: Mapping[str, Any], side: str) -> dict[str, dict[str, Any]]:
    """The figures `X_before` or `X_after` of a summary, with `X_before_interval`."""
    figures = {}
    for key, value in summary.items():
        name = key.removesuffix(f"_{side}")
        if name != key and is_number(value):
            low_high = summary.get(f"{key}_interval")
            figures[name] = {"value": value, "around": percent_range(*low_high) if low_high else "", "step": None}
    return figures


def _ends(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Start and result of the evaluations of every run, and of its reward, loss or return where it has fewer than two."""
    rows = []
    for stage in stages:
        values: dict[str, list[Mapping[str, Any]]] = {}
        for record in stage["records"]:
            for name, value in record.items():
                if math.isfinite(value):
                    values.setdefault(name, []).append(record)
        names = [name for name in values if name.startswith("eval/") and name.endswith(HEADLINE)]
        if all(len(values[name]) < 2 for name in names):
            names += [name for name in CURVES.get(stage["run"]["kind"], ()) if name in values]
        prefix = f"{stage['name']}: " if len(stages) > 1 else ""
        for name in names:
            if any(abs(record[name]) >= ROUNDING for record in values[name]) or name.startswith("eval/"):
                rows.append(_row(prefix + name, *(_end_of(records, name) for records in ends(name, values[name]))))
    return rows


def _end_of(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The mean over some steps, which are named; an interval where there is one step."""
    first, last = records[0], records[-1]
    low, high = (first.get(f"{name}_{end}") for end in ("low", "high"))
    around = ""
    if low is not None and high is not None and len(records) == 1:
        around = percent_range(low, high) if is_fraction(name) else f"{low:.3g}–{high:.3g}"
    step = f"step {first['step']:,}" if len(records) == 1 else f"steps {first['step']:,} to {last['step']:,}"
    return {"value": math.fsum(record[name] for record in records) / len(records), "around": around, "step": step}


def _row(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the headline; of a single evaluation there is no change, and one value: that of a set that was added later
    stands at the end."""
    fraction = is_fraction(name)
    show = percent if fraction else number_text
    once = before["step"] is not None and before["step"] == after["step"]
    added = once and "eval/" in name and before["step"] != "step 0"
    moved = after["value"] - before["value"]
    ends = [{**end, "value": show(end["value"])} for end in (before, after)]
    return {
        "label": _LABELS.get(name) or (name if "/" in name else name.replace("_", " ").capitalize()),
        "before": None if added else ends[0],
        "after": None if once and not added else ends[1],
        "change": "" if once else f"{100 * moved:+.1f} points" if fraction else f"{moved:+.4g}",
    }


def _facts(summary: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The other figures of the summary."""
    facts = []
    for key, value in (summary or {}).items():
        if is_number(value) and not key.endswith(("_before", "_after")) and (value or key != "updates_skipped"):
            text = percent(value) if is_fraction(key) else number_text(value)
            name = key.removesuffix("_seconds")
            facts.append(
                (name.replace("_", " "), text) if name == key else (f"{name} time".replace("_", " "), f"{text} s")
            )
    ended, message = _ended(summary), (summary or {}).get("message")
    stopped = (summary or {}).get("stopped")
    return facts + ([(ended, str(message or stopped))] if message or stopped else [])


def _ended(summary: Mapping[str, Any] | None) -> str:
    """How a run ended. Summaries of earlier versions contain only `stopped`."""
    if summary is None:
        return "not finished"
    ended = str(summary.get("ended", "stopped" if summary.get("stopped") else "finished"))
    return "stopped early" if ended == "stopped" else ended
