"""Which folder holds the model that a path means: run folders stand for the checkpoint that they ended with."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reinlm.errors import InputError

CHECKPOINTS = "checkpoints"
_ENDING = re.compile(r"\.(jsonl|json|csv|parquet)(\.gz)?$", re.IGNORECASE)


def model_folder(path: str) -> str:
    """The model's folder that `path` means; anything that is no run folder is returned as it is.

    A run folder and its `checkpoints/` stand for `checkpoints/last`, a folder of `reinlm quickstart` for that of its last
    stage, and a file `last` or `best` (where links cannot be made) for the checkpoint that it names.

    Raises:
        InputError: a run without a checkpoint, or without a language model; a folder of several runs; a recipe.
    """
    folder = Path(path).expanduser()
    if folder.is_file() and folder.name in ("last", "best") and folder.parent.name == CHECKPOINTS:
        return str(folder.with_name(folder.read_text(encoding="utf-8").strip()))
    if folder.suffix in (".yaml", ".yml") and folder.is_file():
        raise InputError(
            f"{path} is a recipe, not a model", hint=f"give recipe={path!r}; on the command line it stands first, alone"
        )
    if not folder.is_dir() or (folder / "config.json").is_file():
        return path
    if (folder / "agent.json").is_file():
        raise _classical(folder)
    if folder.name == CHECKPOINTS and (folder.parent / "run.json").is_file():
        return _last(folder.parent)
    if (folder / "run.json").is_file():
        return _last(folder)
    if runs := sorted(file.parent for file in folder.glob("*/run.json")):
        raise InputError(f"{path} is a folder of {len(runs)} runs, not a model", hint=f"take one of them: {runs[0]}")
    return path


def checkpoint_note(path: str) -> str | None:
    """One line on a model that is a checkpoint of a run: which step it is, and where the best one is; None for others."""
    folder = Path(path).expanduser()
    step = _read(folder / "checkpoint.json").get("step")
    if step is None:
        return None
    best = folder.with_name("best")
    better = folder.name != "best" and best.is_dir() and best.resolve() != folder.resolve()
    also = f"; the best by its evaluation is {best} ({best.resolve().name})" if better else ""
    return f"model: {path}, after step {step} of its run{also}"


def short_names(paths: Sequence[str]) -> list[str]:
    """Names for several models or files: the last parts of their paths, as many as tell them apart, without the ending of a file.

    Example:
        >>> short_names(["runs/sft", "runs/rl"]), short_names(["a/last", "b/last"]), short_names(["data/test.jsonl"])
        (['sft', 'rl'], ['a/last', 'b/last'], ['test'])
    """
    parts = [[part for part in _ENDING.sub("", path).split("/") if part not in ("", ".")] or [path] for path in paths]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len({*names}) == len(names):
            return names
    return list(paths)


def _classical(folder: Path) -> InputError:
    return InputError(
        f"{folder} holds a classical agent, which is no language model",
        hint=f"reinlm.classical.load({str(folder)!r}) is the agent, and reinlm.classical.evaluate(agent) evaluates it",
    )


def _last(run: Path) -> str:
    kind = _read(run / "run.json").get("kind")
    if kind == "classical":
        raise _classical(run)
    if kind == "quickstart":
        run = run / "rl" if (run / "rl").is_dir() else run / "sft"
    last = run / CHECKPOINTS / "last"
    if last.exists():
        return model_folder(str(last)) if last.is_file() else str(last)
    summary = _read(run / "summary.json")
    why = f": it {summary['ended']}: {summary.get('message')}" if summary.get("message") else ""
    raise InputError(f"{run} is a run without a checkpoint{why}", hint="give a run that has saved one, or a model")


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
