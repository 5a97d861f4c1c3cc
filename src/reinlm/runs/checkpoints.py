"""Checkpoints, written atomically.

`checkpoints/step_N/` is what the caller writes (a Hugging Face directory) with the trainer's state beside it:
`trainer_state.json` and `trainer_state.safetensors` (see `reinlm.runs.state`), and `checkpoint.json`, which lists every
file with its size and its SHA-256. It is written under a temporary name, synced and renamed; `last` and `best` are links
that point to one.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from reinlm.errors import InputError, error_line
from reinlm.runs.files import remove, sync, sync_tree, write_atomic, write_json
from reinlm.runs.metrics import numbered
from reinlm.runs.state import check_tensors, read_state, write_state

CHECKPOINT_VERSION = 2
MANIFEST = "checkpoint.json"

Write = Callable[[Path], None]


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: the run's `checkpoints/`; made where it is missing. What an interrupted save left there is cleared away.
        keep_last: how many of the newest to keep, 1 or more.
        keep_best: keep the one with the largest ("max") or smallest ("min") metric too; None keeps no best.
    """

    def __init__(self, folder: Path, *, keep_last: int = 2, keep_best: Literal["max", "min"] | None = "max") -> None:
        if keep_last < 1:
            raise InputError(f"keep_last must be 1 or more, not {keep_last}")
        self.folder = Path(folder)
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear()

    def save(self, step: int, write: Write, state: Mapping[str, Any], *, metric: float | None = None) -> Path:
        """Write `step_N`, point `last` (and `best`) to it, and remove what is no longer kept.

        Args:
            step: updates made so far. A checkpoint of the same step is replaced.
            write: writes the model's files into the folder that it is given.
            state: the trainer's state, whatever `pack_state` takes.
            metric: what `keep_best` compares; NaN and None never are the best.
        """
        temporary = self.folder / f".tmp-step_{step}"
        if temporary.exists():
            remove(temporary)
        temporary.mkdir()
        write(temporary)
        write_state(temporary, state)
        paths = {str(path.relative_to(temporary)): path for path in _files(temporary)}
        manifest = {
            "version": CHECKPOINT_VERSION,
            "step": step,
            "metric": metric,
            "files": {name: path.stat().st_size for name, path in paths.items()},
            "sha256": {name: _digest(path) for name, path in paths.items()},
        }
        write_json(temporary / MANIFEST, manifest)
        sync_tree(temporary)
        final = self.folder / f"step_{step}"
        self._place(temporary, final)
        self._point("last", final)
        self._prune(step)
        return final

    def newest(self) -> Path | None:
        """As `newest_checkpoint`, with a warning for each damaged one that is passed over."""
        found, damaged = newest_checkpoint(self.folder)
        for path, defect in damaged.items():
            warnings.warn(f"{path} is passed over: {defect}", stacklevel=2)
        return found

    def best(self) -> Path | None:
        """The checkpoint with the best metric, the earliest among equals; None where none has one."""
        sign = {"max": 1.0, "min": -1.0, None: 0.0}[self.keep_best]
        scored = [(sign * value, path) for _, path in numbered(self.folder) if (value := _metric(path)) is not None]
        return max(scored, key=lambda pair: pair[0])[1] if sign and scored else None

    def _place(self, temporary: Path, final: Path) -> None:
        """Rename into place; an older checkpoint of the same step stays readable until then."""
        old = self.folder / f".old-{final.name}"
        if final.exists():
            os.rename(final, old)
        os.rename(temporary, final)
        sync(self.folder)
        if old.exists():
            remove(old)

    def _point(self, name: str, target: Path) -> None:
        """Make `name` a relative link to `target`; where links cannot be made, a file that holds its name."""
        temporary = self.folder / f".tmp-{name}"
        if temporary.is_symlink() or temporary.exists():
            remove(temporary)
        try:
            os.symlink(target.name, temporary)
            os.replace(temporary, self.folder / name)
            sync(self.folder)
        except OSError:
            write_atomic(self.folder / name, target.name + "\n")

    def _prune(self, step: int) -> None:
        """Remove what is not kept. A later step than the one just saved was damaged, and the run resumed before it."""
        kept = [path for number, path in numbered(self.folder) if number <= step]
        self._remove(path for number, path in numbered(self.folder) if number > step)
        best = self.best()
        if best:
            self._point("best", best)
        self._remove(path for path in kept[: -self.keep_last] if path != best)

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            removed = self.folder / f".tmp-{path.name}"
            os.rename(path, removed)  # so that a half-removed one is never taken for a checkpoint
            remove(removed)

    def _clear(self) -> None:
        for path in self.folder.glob(".old-step_*"):
            final = self.folder / path.name.removeprefix(".old-")
            if final.exists():
                remove(path)
            else:
                os.rename(path, final)
        for path in self.folder.glob(".tmp-*"):
            remove(path)


def newest_checkpoint(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The newest checkpoint in `checkpoints/` that can be read, None before the first; and why newer ones cannot be.

    Raises:
        InputError: where there are checkpoints and none of them can be read, or one of another version comes first.
    """
    damaged: dict[Path, str] = {}
    for _, path in reversed(numbered(folder)):
        defect = _defect(path) or _unreadable(path)
        if defect is None:
            return path, damaged
        damaged[path] = defect
    if damaged:
        reasons = "; ".join(f"{path.name}: {defect}" for path, defect in damaged.items())
        raise InputError(
            f"no checkpoint in {folder} can be read ({reasons})",
            hint="put the files back from a copy, or start again with --overwrite (overwrite=True) or in another folder",
        )
    return None, damaged


def load_state(path: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint, tensors on the CPU.

    Raises:
        InputError: where there is no checkpoint, one of another version, or one that cannot be read.
    """
    path = linked_folder(path)
    manifest = _manifest(path)
    if manifest is None:
        raise InputError(f"{path} is not a checkpoint", hint=f"a checkpoint is a folder with {MANIFEST}")
    _check_version(path, manifest)
    try:
        return read_state(path)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"the trainer's state in {path} cannot be read: {error_line(error)}",
            hint="remove this checkpoint to go on from the one before it",
        ) from None


def load_step(path: Path) -> int:
    """The number of updates made when the checkpoint was written."""
    manifest = _manifest(linked_folder(path))
    if manifest is None:
        raise InputError(f"{path} is not a checkpoint", hint=f"a checkpoint is a folder with {MANIFEST}")
    return int(manifest["step"])


def linked_folder(path: Path) -> Path:
    """The folder meant by `checkpoints/last` where links could not be made and `last` is a file that names it."""
    path = Path(path)
    if path.name in ("last", "best") and path.is_file():
        return path.with_name(path.read_text(encoding="utf-8").strip())
    return path


def _digest(path: Path) -> str:
    """SHA-256 of a file; one that has not changed since is not read again: a resume looks at its checkpoint several times."""
    stat = path.stat()
    return _digest_of(path.absolute(), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=1024)
def _digest_of(path: Path, *_identity: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(manifest, dict) and {"version", "step", "files"} <= manifest.keys()
    tables = known and all(isinstance(manifest.get(name, {}), dict) for name in ("files", "sha256"))
    return manifest if tables else None


def _metric(path: Path) -> float | None:
    metric = (_manifest(path) or {}).get("metric")
    return metric if metric is not None and math.isfinite(metric) and _defect(path) is None else None


def _check_version(path: Path, manifest: Mapping[str, Any]) -> None:
    if manifest["version"] != CHECKPOINT_VERSION:
        raise InputError(
            f"{path} has checkpoint version {manifest['version']}, not {CHECKPOINT_VERSION}",
            hint="resume with the version of reinlm that wrote it",
        )


def _unreadable(path: Path) -> str | None:
    """What is wrong with the contents of a whole checkpoint: its JSON, the headers of its tensors, or any byte.

    A checkpoint of an earlier version has no digests; its bytes are taken as they are.
    """
    manifest = _manifest(path) or {}
    _check_version(path, manifest)
    digests = manifest.get("sha256", {})
    for name in manifest["files"]:
        try:
            if name.endswith(".json"):
                json.loads((path / name).read_text(encoding="utf-8"))
            elif name.endswith(".safetensors"):
                check_tensors(path / name)
        except ValueError as error:
            return f"{name} is damaged: {error_line(error)}"
        if name in digests and _digest(path / name) != digests[name]:
            return f"{name} is damaged: its bytes are not those that were written"
    return None


def _defect(path: Path) -> str | None:
    """What keeps a checkpoint from being whole; None where it is."""
    manifest = _manifest(path)
    if manifest is None:
        return f"it has no readable {MANIFEST}"
    for name, size in manifest["files"].items():
        if not (path / name).is_file() or (path / name).stat().st_size != size:
            return f"{name} is missing or cut short"
    return None
