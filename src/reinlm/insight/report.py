"""`report.html`: one self-contained page on a run, made from its folder alone."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reinlm.errors import InputError
from reinlm.insight.charts import charts
from reinlm.runs.declarations import Metric, read_metrics_info
from reinlm.runs.files import write_atomic
from reinlm.runs.folder import CONFIG_FILE, RUN_FILE, read_run
from reinlm.runs.metrics import METRICS_FILE, numbered, read_lines, read_metrics

REPORT_FILE = "report.html"
MOST_SAMPLES = 12
LONGEST_TEXT = 20_000

_TITLES = {
    "sft": "Supervised fine-tuning",
    "rl": "Reinforcement learning",
    "eval": "Evaluation",
    "quickstart": "Quickstart",
    "classical": "Classical reinforcement learning",
}
_LABELS = {"accuracy": "Accuracy, sampling", "greedy": "Accuracy, greedy", "loss": "Loss", "reward": "Reward"}
_HEADLINE = ("/accuracy", "/accuracy_low", "/accuracy_high", "/loss", "/reward", "/mean_length")
_FRACTIONS = ("accuracy", "greedy", "pass@", "clipped_ratio", "frac_")


def write_report(
    run_folder: str | Path, *, stages: Sequence[str] | None = None, metrics: Mapping[str, Metric] | None = None
) -> Path:
    """Write `report.html` into a run folder and return its path.

    Reads `run.json`, `config.yaml`, `metrics.jsonl`, `metrics_info.json`, `summary.json`, and `samples.json` or
    `rollouts/`, as far as they exist: the report of a run that has just started or was killed is shorter.

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
        raise InputError(f"{folder} is not a run folder", hint=f"a run folder holds {RUN_FILE}")
    runs = [stage["run"] for stage in read]
    if (folder / RUN_FILE).is_file():
        runs.insert(0, read_run(folder))
    summary = _first(_json(path / "summary.json") for path in (folder, *(stage["path"] for stage in reversed(read))))
    samples = _first(_samples(path) for path in (folder, *(stage["path"] for stage in reversed(read))))
    page = _render(
        title=folder.resolve().name,
        subtitle=", then ".join(stage["title"] for stage in read).capitalize(),
        run=runs[0],
        commands=list(dict.fromkeys(run["command"] for run in runs)),
        ended=_ended(_first(_json(path / "summary.json") for path in (folder, read[-1]["path"]))),
        headline=_headline(summary, read),
        facts=_facts(summary),
        notes=[(stage["name"], note) for stage in read for note in stage["run"]["notes"]],
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
    return {
        "path": path,
        "name": name,
        "run": run,
        "title": _TITLES.get(run["kind"], run["kind"]),
        "records": records,
        "last_step": records[-1]["step"] if records else None,
        "charts": charts(records, run["kind"], {**(metrics or {}), **read_metrics_info(path)}),
        "config": config.read_text(encoding="utf-8") if config.is_file() else "",
    }


def _json(path: Path) -> Any:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}", hint="remove the file to leave it out") from None


def _first(values: Any) -> Any:
    return next((value for value in values if value), None)


def _headline(summary: Mapping[str, Any] | None, stages: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Figures before and after: from the summary, or else the first and last values of evaluations or curves."""
    summary = summary or {}
    before, after = (_side(summary, side) for side in ("before", "after"))
    shared = [name for name in before if name in after and not name.endswith(("_low", "_high"))]
    ends = {} if shared else _ends(stages)
    rows = [_row(name, before[name], after[name], _interval(before, name), _interval(after, name)) for name in shared]
    return rows + [_row(name, *pair) for name, pair in ends.items()]


def _side(summary: Mapping[str, Any], side: str) -> dict[str, float]:
    """The figures of one side: `X_before` with `X_before_interval`, or the main ones of the mapping `before`."""
    figures = {}
    for key, value in summary.items():
        name = key.removesuffix(f"_{side}")
        if name != key and _is_number(value):
            figures[name] = value
            low_high = summary.get(f"{key}_interval") or ()
            figures |= {f"{name}_{end}": bound for end, bound in zip(("low", "high"), low_high, strict=False)}
    nested = summary.get(side) or {}
    return figures | {name: value for name, value in nested.items() if name.endswith(_HEADLINE) and _is_number(value)}


def _interval(figures: Mapping[str, float], name: str) -> str:
    low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
    return f"{100 * low:.1f}–{_percent(high)}" if low is not None and high is not None else ""


def _ends(stages: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """First and last value of every held-out accuracy and loss, or without any of reward and loss."""
    ends = {}
    for stage in stages:
        series: dict[str, list[float]] = {}
        for record in stage["records"]:
            for name, value in record.items():
                if not math.isnan(value):
                    series.setdefault(name, []).append(value)
        names = [name for name, values in series.items() if len(values) > 1]
        held_out = [name for name in names if name.startswith("eval/") and name.endswith(("/accuracy", "/loss"))]
        prefix = f"{stage['name']}: " if len(stages) > 1 else ""
        for name in held_out or [name for name in ("reward", "loss") if name in names]:
            ends[prefix + name] = (series[name][0], series[name][-1])
    return ends


def _row(name: str, before: float, after: float, around_before: str = "", around_after: str = "") -> dict[str, str]:
    fraction = _is_fraction(name)
    change = f"{100 * (after - before):+.1f} points" if fraction else f"{after - before:+.4g}"
    label = _LABELS.get(name) or (name if "/" in name else name.replace("_", " ").capitalize())
    show = _percent if fraction else _number_text
    return {
        "label": label,
        "before": show(before),
        "after": show(after),
        "change": change,
        "around_before": around_before,
        "around_after": around_after,
    }


def _facts(summary: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The other figures of the summary."""
    facts = []
    for key, value in (summary or {}).items():
        if _is_number(value) and not key.endswith(("_before", "_after")):
            text = _percent(value) if _is_fraction(key) else _number_text(value)
            facts.append((key.replace("_", " "), text))
    ended, message = _ended(summary), (summary or {}).get("message")
    stopped = (summary or {}).get("stopped")
    return facts + ([(ended, str(message or stopped))] if message or stopped else [])


def _ended(summary: Mapping[str, Any] | None) -> str:
    """How a run ended. Summaries of earlier versions contain only `stopped`."""
    if summary is None:
        return "not finished"
    ended = str(summary.get("ended", "stopped" if summary.get("stopped") else "finished"))
    return "stopped early" if ended == "stopped" else ended


def _is_fraction(name: str) -> bool:
    return any(part in name for part in _FRACTIONS) and "return" not in name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _number_text(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _samples(path: Path) -> list[dict[str, Any]] | None:
    """Pairs of an earlier and a later answer: from `samples.json`, else from the first and the last step of `rollouts/`."""
    sides = _json(path / "samples.json")
    if sides:
        before = [_sample(row, _side_label(row, "before")) for row in sides.get("before", [])]
        after = [_sample(row, _side_label(row, "after")) for row in sides.get("after", [])]
    else:
        steps = numbered(path / "rollouts", ".jsonl")
        if not steps:
            return None
        logged = [steps[0], steps[-1]] if len(steps) > 1 else steps
        before, *rest = [
            [_sample(row, f"sampled in step {step:,}") for _, row in read_lines(file)] for step, file in logged
        ]
        after = rest[0] if rest else []
    return _pair(before, after)[:MOST_SAMPLES]


def _side_label(row: Mapping[str, Any], side: str) -> str:
    """When an answer was sampled: the step, or `side` for rows without one."""
    if "step" not in row:
        return side
    return f"after step {row['step']:,}" if row["step"] else "before training"


def _pair(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of prompt, before, after; answers to the same prompt stand in one row, in order."""
    rows: list[dict[str, Any]] = []
    waiting: dict[str, list[dict[str, Any]]] = {}
    for sample in before:
        row = {"prompt": sample["prompt"], "answer": sample["answer"], "before": sample, "after": None}
        rows.append(row)
        waiting.setdefault(sample["prompt"], []).append(row)
    for sample in after:
        if waiting.get(sample["prompt"]):
            waiting[sample["prompt"]].pop(0)["after"] = sample
        else:
            rows.append({"prompt": sample["prompt"], "answer": sample["answer"], "before": None, "after": sample})
    if before and after and not any(row["before"] and row["after"] for row in rows):
        firsts, lasts = (
            rows[: len(before)],
            rows[len(before) :],
        )  # different prompts before and after: show both, alternating
        rows = [row for pair in zip(firsts, lasts, strict=False) for row in pair]
    return rows


def _sample(row: Mapping[str, Any], when: str) -> dict[str, Any]:
    reward = row["reward"] if _is_number(row.get("reward")) else None
    correct = row.get("correct")
    return {
        "when": when,
        "answer": _text(row["answer"]) if row.get("answer") is not None else None,
        "prompt": _text(row.get("prompt", "")),
        "completion": _text(row.get("completion", "")),
        "reward": f"{reward:.3g}" if reward is not None else None,
        "good": correct if correct is not None else reward is not None and reward > 0,
        "end": _end(row),
    }


def _end(row: Mapping[str, Any]) -> str | None:
    """How an answer ended; None for a stop token and for an episode that the environment terminated."""
    end = row.get("end")
    if row.get("terminated"):
        return None
    if row.get("truncated", end == "length"):
        return "cut off" if end in ("length", None) else f"cut off: {end}"
    return None if end in ("stop", None) else str(end)


def _text(value: Any) -> str:
    """Text as it is; chat messages as `role: content`, with a line for every tool that a message calls."""
    if isinstance(value, list):
        value = "\n\n".join(_message(m) if isinstance(m, dict) else str(m) for m in value)
    text = str(value)
    return (
        text
        if len(text) <= LONGEST_TEXT
        else f"{text[:LONGEST_TEXT]}\n… ({len(text) - LONGEST_TEXT:,} characters more)"
    )


def _message(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content)
    calls = [call.get("function", call) for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    role, thoughts = message.get("role", "?"), message.get("reasoning_content")
    lines = [f"{role}, thinking: {thoughts}"] if thoughts else []
    lines += [f"{role}: {content}".rstrip()] if content or not thoughts else []
    return "\n".join(lines + [f"→ {call.get('name', '?')}({_arguments(call)})" for call in calls])


def _arguments(call: Mapping[str, Any]) -> str:
    arguments = call.get("arguments", "")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _render(**context: Any) -> str:
    import jinja2
    from plotly.offline import get_plotlyjs

    folder = Path(__file__).parent / "templates"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [get_plotlyjs(), (folder / "report.js").read_text(encoding="utf-8")]
    # Only these scripts may run, whatever an answer that is shown contains.
    policy = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    style = (folder / "report.css").read_text(encoding="utf-8")
    return environment.get_template("report.html").render(**context, scripts=scripts, policy=policy, style=style)
