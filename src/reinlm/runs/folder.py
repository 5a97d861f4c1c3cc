"""`RunFolder`: creating, locking and resuming a run folder, and its configuration files."""

from __future__ import annotations

import functools
import json
import os
import platform
import shlex
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

import reinlm
from reinlm.config import differences, dump_yaml, merge, parse_yaml, redact
from reinlm.errors import InputError
from reinlm.importing import refuse_while_importing
from reinlm.runs import locks
from reinlm.runs.checkpoints import newest_checkpoint
from reinlm.runs.files import remove, write_atomic, write_json
from reinlm.sources import RUN_HEADER, Key, annotate

RUN_SCHEMA_VERSION = 1
RUN_FILE = "run.json"
CONFIG_FILE = "config.yaml"
HELD_OUT_FILE = "held_out.json"
"""Of `reinlm reward`: what the report draws of held-out judgements at the last evaluation: `step`, and `sets` by name."""
CHECKPOINTS = "checkpoints"
SpelledOut = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class RunFolder:
    """A run folder that this process alone writes.

    config.yaml      the resolved configuration, secrets redacted; usable as a recipe
    run.json         schema version, kind, command, versions, when it was created and resumed
    metrics.jsonl, metrics_info.json, tensorboard/, rollouts/, checkpoints/step_N/, samples.json, held_out.json,
    summary.json, report.html

    Make one with `create`. It is a context manager: leaving it gives the folder's lock back, as `close` does and as happens
    where nothing refers to it any longer.
    """

    def __init__(self, path: Path, *, resumed: bool, lock: int | None) -> None:
        self.path = path
        self.resumed = resumed
        """Whether the run goes on from what an earlier process left."""
        self._unlock = weakref.finalize(self, locks.release, lock)

    @staticmethod
    def check(
        path: str | Path,
        *,
        kind: str,
        config: Mapping[str, Any],
        resume: bool = False,
        overwrite: bool = False,
        may_change: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
        spelled_out: SpelledOut = dict,
    ) -> None:
        """Raise what `create` would raise, and leave nothing behind: for before a model is loaded."""
        locks.check_free(Path(path))
        RunFolder._check(path, kind, config, resume, overwrite, may_change, defaults, spelled_out)

    @staticmethod
    def _check(
        path: str | Path,
        kind: str,
        config: Mapping[str, Any],
        resume: bool,
        overwrite: bool,
        may_change: Iterable[str],
        defaults: Mapping[str, Any] | None,
        spelled_out: SpelledOut,
    ) -> None:
        path = Path(path)
        if resume and overwrite:
            raise InputError("resume and overwrite exclude each other", hint="resume goes on, overwrite starts again")
        _check_place(path)
        if resume:
            _check_resume(path, kind, _storable(config), tuple(may_change), _storable(defaults or {}), spelled_out)
        elif _contents(path):
            known = (path / RUN_FILE).is_file()
            if overwrite and not known:
                raise InputError(
                    f"{path} is not a run folder and not empty, so it is not overwritten",
                    hint="give another folder, or empty this one yourself",
                )
            if not overwrite and not _failed_at_once(path):
                what = "run folder" if known else "folder"
                hint = "give --resume to go on, --overwrite to start again, or another folder"
                raise InputError(f"{what} {path} exists", hint=hint if known else "give another folder")

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        kind: str,
        config: Mapping[str, Any],
        command: str | Sequence[str],
        resume: bool = False,
        overwrite: bool = False,
        may_change: Iterable[str] = (),
        defaults: Mapping[str, Any] | None = None,
        spelled_out: SpelledOut = dict,
        sources: Mapping[Key, str] | None = None,
        notes: Sequence[str] = (),
        models: Sequence[Mapping[str, Any]] = (),
    ) -> RunFolder:
        """Make the folder (or take it over) once training really starts.

        Args:
            path: the folder; parents are made.
            kind: "sft", "rl", …
            config: the resolved configuration as plain values (`model_dump(mode="json")`).
            command: what reproduces the run; a list of words is quoted for a shell.
            resume: go on in a folder of the same kind, schema version and configuration.
            overwrite: remove an existing run folder first; one of a run that failed before its first step is replaced without.
            may_change: dotted keys, or prefixes of them, that may differ on resume, such as "run" or "steps"; "data.+" allows
                further keys below "data".
            defaults: the configuration of a run that sets nothing: what holds on resume for keys that config.yaml lacks.
            spelled_out: gives an earlier config.yaml the form of `config`, so that two spellings of one value are equal.
            sources: what gave each value that is no default, by its path; config.yaml says so in comments.
            notes: what a user should know of the run, for run.json and the report.
            models: the ledger of the models in memory (`reinlm.runs.ledger`), likewise.

        Raises:
            InputError: for a folder that exists, is no run folder, differs, is in use by another run, or whose checkpoints
                cannot be read.
        """
        refuse_while_importing("RunFolder.create")
        path, config, may_change = Path(path), _storable(config), tuple(may_change)
        how = (kind, config, resume, overwrite, may_change, defaults, spelled_out)
        locks.check_free(path)
        cls._check(path, *how)
        path.mkdir(parents=True, exist_ok=True)
        lock = locks.acquire(path)
        try:
            # Another process may have made the folder between the first look and the lock.
            cls._check(path, *how)
            if not resume:
                _empty(path)
            _write_run_files(path, kind, config, command, notes, models, sources or {}, resume=resume)
        except BaseException:
            locks.release(lock)
            raise
        return cls(path, resumed=resume, lock=lock)

    @property
    def checkpoints(self) -> Path:
        """Where `Checkpoints` lie."""
        return self.path / CHECKPOINTS

    def read_config(self) -> dict[str, Any]:
        """What config.yaml holds: everything resolved, secrets redacted."""
        file = self.path / CONFIG_FILE
        return dict(parse_yaml(file.read_text(encoding="utf-8"), str(file)) or {})

    def write_summary(self, summary: Mapping[str, Any]) -> Path:
        """Write `summary.json`: the figures that the run is judged by."""
        write_json(self.path / "summary.json", summary)
        return self.path / "summary.json"

    def write_samples(self, **stages: Sequence[Mapping[str, Any]]) -> Path:
        """Write `samples.json`: rows of prompt, completion, reward and end, for the report to set side by side.

        Example: the same prompts before and after training:
            run.write_samples(before=[{"prompt": "2+2=", "completion": "5", "reward": 0.0, "end": "stop"}],
                              after=[{"prompt": "2+2=", "completion": "4", "reward": 1.0, "end": "stop"}])
        """
        write_json(self.path / "samples.json", stages)
        return self.path / "samples.json"

    def add_finding(self, step: int, message: str) -> None:
        """Add what the run found in a step to `findings` of run.json, for the report."""
        run = read_run(self.path)
        run["findings"].append({"step": step, "message": message})
        write_json(self.path / RUN_FILE, run)

    def forget_findings(self, after: int) -> None:
        """Remove the findings of steps after this one, which are made again."""
        run = read_run(self.path)
        kept = [finding for finding in run["findings"] if finding["step"] <= after]
        if len(kept) < len(run["findings"]):
            write_json(self.path / RUN_FILE, {**run, "findings": kept})

    def read_samples(self) -> dict[str, Any]:
        """What `write_samples` wrote; empty before."""
        file = self.path / "samples.json"
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}

    def close(self) -> None:
        """Release the lock. The folder is not changed."""
        self._unlock()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_run(path: str | Path) -> dict[str, Any]:
    """What `run.json` says: schema_version, kind, command, versions, created, resumed, notes, and findings with their step.

    Raises:
        InputError: for a folder that is no run folder, or one of another schema version.
    """
    path = Path(path)
    try:
        run = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        found = run["schema_version"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a run folder", hint=f"a run folder holds {RUN_FILE}") from None
    if found != RUN_SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {found}; this reinlm reads version {RUN_SCHEMA_VERSION}",
            hint=f"use the version that wrote it: {run.get('versions', {}).get('reinlm', 'unknown')}",
        )
    return {**run, "findings": run.get("findings", [])}


def notes_in(run: Mapping[str, Any]) -> list[str]:
    """The notes of what `read_run` returned, then its findings with their steps."""
    return [*run.get("notes", ()), *(f"step {found['step']}: {found['message']}" for found in run["findings"])]


def check_resumable(path: str | Path, kind: str) -> None:
    """Raises InputError where a folder holds no run, or one of another kind ("sft", "rl", …)."""
    path = Path(path)
    if (path / "queue.json").is_file() and not (path / RUN_FILE).is_file():
        runs = sorted(file.parent for file in path.glob(f"*/{RUN_FILE}"))
        command = read_run(runs[0])["command"] if runs else ""
        more = f"; `--resume --output {runs[0]} --steps N` lengthens one of its runs" if runs else ""
        raise InputError(
            f"nothing to resume: {path} is a queue of runs, of --seeds or compare",
            hint=f"the command that started it goes on{f' with it: {command}' if command else ''}{more}",
        )
    if not (path / RUN_FILE).is_file():
        raise InputError(f"nothing to resume: {path} is not a run folder", hint="start the run without --resume")
    found = read_run(path)["kind"]
    if found != kind:
        raise InputError(f"{path} holds a run of kind {found!r}, not {kind!r}", hint="give another folder")


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file, not a folder", hint="give the name of a folder for the run")
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise InputError(f"{path} cannot be made: {nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"{path} cannot be written: no permission in {nearest}")
    try:
        with tempfile.TemporaryDirectory(dir=nearest, prefix=".reinlm-"):
            pass
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror} in {nearest}", hint="give another folder"
        ) from error


def _check_resume(
    path: Path,
    kind: str,
    config: dict[str, Any],
    may_change: tuple[str, ...],
    defaults: Mapping[str, Any],
    spelled_out: SpelledOut,
) -> None:
    check_resumable(path, kind)
    try:
        old = parse_yaml((path / CONFIG_FILE).read_text(encoding="utf-8"), str(path / CONFIG_FILE))
    except FileNotFoundError:
        raise InputError(
            f"nothing to resume: {path} has no {CONFIG_FILE}", hint="start again with --overwrite"
        ) from None
    changed = [
        line
        for line in differences(_storable(spelled_out(merge(defaults, old))), config)
        if not _allowed(line, may_change)
    ]
    if changed:
        more = f" (and {len(changed) - 1} more: {'; '.join(changed[1:])})" if changed[1:] else ""
        key = changed[0].partition(": ")[0]
        raise InputError(
            f"cannot resume {path} with a changed configuration: {changed[0]}{more}",
            hint=f"a run keeps what its results depend on: leave {key} out, to resume with what {path / CONFIG_FILE} holds, or "
            "start another run in another folder",
        )
    newest_checkpoint(path / CHECKPOINTS)


def _allowed(line: str, may_change: tuple[str, ...]) -> bool:
    key, _, values = line.partition(": ")
    added = f"{key.rpartition('.')[0]}.+" in may_change and values.startswith("None -> ")
    return added or any(key == allowed or key.startswith(f"{allowed}.") for allowed in may_change)


def _contents(path: Path) -> list[Path]:
    return [child for child in path.iterdir() if child.name != locks.LOCK_FILE] if path.is_dir() else []


_WRITTEN = frozenset({
    RUN_FILE, CONFIG_FILE, CHECKPOINTS, "metrics.jsonl", "metrics_info.json", "tensorboard", "rollouts", "samples.json",
    HELD_OUT_FILE, "summary.json", "report.html",
})  # fmt: skip
"""What a run writes into its folder."""


def _failed_at_once(path: Path) -> bool:
    """Whether a folder holds nothing but what a run wrote that failed before its first step."""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        failed = (summary["ended"], summary["steps"]) == ("failed", 0)
    except (OSError, ValueError, LookupError, TypeError):
        return False
    made = (path / CHECKPOINTS).is_dir() and any((path / CHECKPOINTS).iterdir())
    return failed and not made and all(child.name in _WRITTEN for child in _contents(path))


def _empty(path: Path) -> None:
    """`run.json` goes last: while anything is left, the folder still counts as a run that may be overwritten."""
    for child in sorted(_contents(path), key=lambda child: child.name == RUN_FILE):
        remove(child)


def _write_run_files(
    path: Path,
    kind: str,
    config: dict[str, Any],
    command: str | Sequence[str],
    notes: Sequence[str],
    models: Sequence[Mapping[str, Any]],
    sources: Mapping[Key, str],
    *,
    resume: bool,
) -> None:
    line = command if isinstance(command, str) else shlex.join(command)
    start = {
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "command": line,
        "versions": _versions(),
    }
    if resume:
        run = read_run(path)
        run["resumed"].append(start)
    else:
        run = {"schema_version": RUN_SCHEMA_VERSION, "kind": kind, "command": line, "versions": start["versions"]}
        run |= {"created": start["time"], "resumed": []}
    run["notes"] = list(notes)
    run["models"] = list(models)
    title = f"{RUN_HEADER}{kind}, schema version {RUN_SCHEMA_VERSION}: the resolved configuration, secrets redacted.\n"
    # run.json first: it is what makes the folder a run folder, that --overwrite may clear after a crash.
    write_json(path / RUN_FILE, run)
    write_atomic(path / CONFIG_FILE, title + annotate(dump_yaml(config), sources))


def _storable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as it is stored and compared: redacted, and nothing that YAML could not hold."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)

    return dict(plain(redact(config)))


@functools.cache
def _versions() -> Mapping[str, str]:
    versions = {"reinlm": reinlm.__version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a tool that only reads runs has no need of it
            continue
    return versions
