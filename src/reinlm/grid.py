"""A grid of recipes × settings × seeds as a queue of runs that goes on where it was stopped, and their comparison.

OUTPUT/queue.json               the runs that are planned, by the name of their folder
OUTPUT/grpo-group_size=8-seed0/ a run folder, for each of them
OUTPUT/compare.html
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reinlm.config import differences, parse_yaml, redact
from reinlm.errors import InputError, error_line
from reinlm.insight.compare import PAGE_FILE, Comparison, compare_queue, write_page
from reinlm.loop import Interrupted
from reinlm.recipe import merge_settings, override, read
from reinlm.runs.checkpoints import newest_checkpoint
from reinlm.runs.files import json_safe, write_json
from reinlm.runs.folder import CHECKPOINTS, RUN_FILE, read_run

QUEUE_FILE = "queue.json"
_GROUPED = ("wandb", "trackio")
"""Trackers that know groups of runs."""

Start = Callable[[dict[str, Any], bool, bool], Any]
"""Runs one tree of settings: (tree, resume, overwrite)."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a queue: the name of its folder, and its settings."""

    name: str
    tree: Mapping[str, Any]


def plan(
    recipes: Sequence[Any], *, grid: Sequence[str] = (), changes: Iterable[str] = (), seeds: int = 1
) -> list[PlannedRun]:
    """Every recipe with every combination of the grid and every seed.

    Args:
        recipes: YAML files or mappings.
        grid: axes, each `key=value,value,…`; commas inside brackets and quotes separate nothing.
        changes: overrides `key=value` of all runs.
        seeds: as many, from the recipe's own `seed` on.

    Raises:
        InputError: for an axis that is none, a key that stands on two axes or beside a change, and fewer seeds than 1.

    Example:
        plan(["grpo.yaml", "dapo.yaml"], grid=["optimizer.learning_rate=1e-6,2e-6"], seeds=3)     # 12 runs
    """
    check_seeds(seeds)
    axes = [_axis(text) for text in grid]
    changes = list(changes)
    fixed = [change.partition("=")[0] for change in changes]
    for key, values in axes:
        if [other for other, _ in axes].count(key) > 1 or key in fixed:
            raise InputError(f"{key} is given twice", hint="give all its values on one axis")
        if len(set(values)) < len(values):
            raise InputError(f"the grid gives {key} a value twice: {', '.join(values)}")
        if key == "seed" or key.startswith("run."):
            raise InputError(
                f"{key} is no axis of a grid", hint="seeds=N runs several seeds; the folders have their own names"
            )
    planned: dict[str, PlannedRun] = {}
    names = _recipe_names(recipes)
    for recipe, stem in zip(recipes, names, strict=True):
        base = override(read(recipe), changes)
        for point in itertools.product(*(values for _, values in axes)):
            words = [f"{key}={value}" for (key, _), value in zip(axes, point, strict=True)]
            tree = override(base, words)
            first = tree.get("seed", 0)
            if not isinstance(first, int):
                raise InputError(f"seed: {first!r} is no whole number")
            short = [f"{key.rpartition('.')[2]}={value}" for (key, _), value in zip(axes, point, strict=True)]
            for seed in range(first, first + seeds):
                name = re.sub(r"[^\w.=+-]+", "_", "-".join([*([stem] if stem else []), *short, f"seed{seed}"]))
                if name in planned:
                    raise InputError(f"two runs of the grid would have the folder {name}", hint="rename a recipe")
                planned[name] = PlannedRun(name, {**tree, "seed": seed})
    return [*planned.values()]


def check_seeds(seeds: Any) -> None:
    """Raise InputError for what is no number of seeds."""
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise InputError(f"seeds is {seeds!r}, and must be a whole number from 1 on", hint="seeds=3 runs three seeds")


def run_queue(
    planned: Sequence[PlannedRun],
    output: str | Path,
    start: Start,
    *,
    kind: str,
    say: Callable[[str], None],
    metrics: Sequence[str] = (),
) -> Comparison:
    """Run what is planned, one after the other, and compare; called again with the same plan, it goes on where it was stopped.

    Finished runs are kept, begun ones resume from their newest checkpoint, and one that fails is named and does not stop the
    others. A larger plan may be given later: what is there of it is kept.

    Args:
        start: runs one tree of settings.
        kind: of the runs: "rl", "sft" or "dpo".
        say: shows a line.

    Raises:
        InputError: where `output` holds something else, or another plan under the same names. RunError: where every run failed.
    """
    folder = Path(output)
    _check_output(folder, planned)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / QUEUE_FILE, _stored(folder) | {run.name: _storable(run.tree) for run in planned})
    failed: dict[str, str] = {}
    for number, run in enumerate(planned, 1):
        where, path = f"{number}/{len(planned)} {run.name}", folder / run.name
        if _finished(path):
            say(f"{where}: finished before")
            continue
        resume = newest_checkpoint(path / CHECKPOINTS)[0] is not None
        say(f"{where}: {'goes on' if resume else 'starts'}")
        tree = _grouped(merge_settings(run.tree, {"run": {"output": str(path)}}), folder.resolve().name)
        try:
            start(tree, resume, not resume and (path / RUN_FILE).is_file())
        except KeyboardInterrupt as error:
            hint = f"{number - 1} of {len(planned)} runs were made; the same command goes on"
            raise Interrupted(f"interrupted in {run.name}: {hint}", getattr(error, "signum", 2)) from error
        except Exception as error:  # noqa: BLE001 - one failed run must not stop the others
            failed[run.name] = getattr(error, "message", None) or error_line(error)
            say(f"{where}: failed: {failed[run.name]}")
    comparison = compare_queue(
        [folder / run.name for run in planned if (folder / run.name / RUN_FILE).is_file()],
        kind=kind,
        metrics=metrics,
        failed=failed,
    )
    return replace(comparison, page=write_page(comparison, folder / PAGE_FILE))


# --------------------------------------------------------------------------------------------------------- the grid


def _axis(text: str) -> tuple[str, list[str]]:
    key, separator, values = text.partition("=")
    parts = [part.strip() for part in _split(values)]
    if not separator or not key.strip() or not all(parts):
        raise InputError(
            f"cannot read the axis {text!r}", hint="an axis is KEY=VALUE,VALUE,…, such as algorithm=grpo,dapo"
        )
    for part in parts:
        parse_yaml(part, f"axis {key}")
    return key.strip(), parts


def _split(text: str) -> list[str]:
    """Parts between the commas that stand outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _recipe_names(recipes: Sequence[Any]) -> list[str]:
    """The stems of recipe files, and numbers for mappings; nothing where there is one recipe, a mapping."""
    if len(recipes) == 1 and isinstance(recipes[0], Mapping):
        return [""]
    return [f"recipe{n}" if isinstance(recipe, Mapping) else Path(recipe).stem for n, recipe in enumerate(recipes)]


# -------------------------------------------------------------------------------------------------------- the queue


def _storable(tree: Mapping[str, Any]) -> Any:
    """Settings as queue.json holds them: functions by name, secrets redacted."""

    def named(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): named(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [named(item) for item in value]
        if callable(value):
            return f"<{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)} given in Python>"
        return value

    return json_safe(redact(named(tree)))


def _stored(folder: Path) -> dict[str, Any]:
    file = folder / QUEUE_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError:
        raise InputError(f"{file} is damaged", hint="give another output, or remove the file") from None
    return dict(found)


def _check_output(folder: Path, planned: Sequence[PlannedRun]) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file, not a folder", hint="give a folder for the runs")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / QUEUE_FILE).is_file():
        raise InputError(f"folder {folder} exists and holds no queue of runs", hint="give another output")
    stored = _stored(folder)
    for run in planned:
        if run.name in stored:
            changed = differences(stored[run.name], _storable(run.tree))
            if changed:
                hint = "give another output, or the settings that the queue was started with"
                if any(text.startswith("training.") for text in changed):
                    hint += f"; `--resume --output {folder / run.name} --steps N` lengthens one of its runs"
                raise InputError(
                    f"{folder} holds {run.name} with other settings: {'; '.join(changed)}",
                    hint=hint,
                )


def _finished(path: Path) -> bool:
    file = path / "summary.json"
    if not file.is_file():
        return False
    try:
        read_run(path)
        return json.loads(file.read_text(encoding="utf-8")).get("ended") in ("finished", "stopped")
    except ValueError:
        return False


def _grouped(tree: dict[str, Any], group: str) -> dict[str, Any]:
    """The runs of a queue as one group in the trackers that know groups, unless the recipe names one."""
    trackers = tree["run"].get("trackers")
    if not isinstance(trackers, list):
        return tree
    named = []
    for one in trackers:
        name, settings = (one, {}) if isinstance(one, str) else next(iter(one.items()))
        named.append({name: {"group": group, **(settings or {})}} if name in _GROUPED else one)
    return {**tree, "run": {**tree["run"], "trackers": named}}
