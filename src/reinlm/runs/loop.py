"""The loop that every run shares: steps, evaluation, metrics, checkpoints, early stop, resume, Ctrl-C."""

from __future__ import annotations

import math
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from reinlm.runs.checkpoints import Checkpoints, load_state
from reinlm.runs.folder import RunFolder
from reinlm.runs.metrics import MetricsLog, RolloutLog, read_metrics
from reinlm.runs.progress import Progress
from reinlm.runs.state import random_states, restore_random_states


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after everything was saved. The message says how to go on."""


class Task(Protocol):
    """What a run brings to the loop."""

    kind: str
    policy: Any
    """What is trained; `RunResult` hands it on."""
    total_steps: int
    rollouts: RolloutLog | None
    stop_reason: str | None
    """Why the run cannot usefully go on; None while it can."""
    last_checkpoint: str

    def step(self, step: int) -> dict[str, float]:
        """Train up to this step (from 1) and return its metrics."""

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Metrics `eval/SET/…` and sample answers; both empty where nothing is to be evaluated."""

    def save(self, folder: Path) -> None:
        """Write what is trained into a checkpoint's folder."""

    def restore(self, folder: Path) -> None:
        """Take back, bit for bit, what `save` wrote."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class LoopSettings:
    """How often a loop looks, judges and saves.

    Example: a run of 200 steps judged by accuracy every 50, saved every 100:
        LoopSettings(higher_is_better=True, evaluate_every=50, save_every=100)
    """

    higher_is_better: bool
    """Judged by `eval/…/accuracy`, or else by `eval/…/loss`."""
    stride: int = 1
    """Steps from one call of the task, and one line of metrics, to the next."""
    evaluate_every: int = 0
    """Steps between evaluations; 0: at the start and the end alone."""
    stop_at: float | None = None
    patience: int | None = None
    save_every: int = 50
    """Steps between checkpoints; 0: at the end alone."""
    keep_last: int = 2
    tensorboard: bool = True
    resume_command: str | None = None
    """What an interrupted run is told to go on with; by default `reinlm KIND --resume --output FOLDER`."""


@dataclass(frozen=True)
class RunResult:
    """What a finished run leaves: its folder, the figures of summary.json, and the trained policy."""

    folder: Path
    summary: dict[str, Any]
    policy: Any = field(repr=False)


class Loop:
    """Drives a task through its run folder."""

    def __init__(self, task: Task, settings: LoopSettings, folder: RunFolder, progress: Progress) -> None:
        self.task = task
        self.settings = settings
        self.folder = folder
        self.progress = progress
        self.checkpoints = Checkpoints(
            folder.checkpoints,
            keep_last=settings.keep_last,
            keep_best="max" if settings.higher_is_better else "min",
        )
        self.done = 0
        self.seconds = 0.0
        self.best: float | None = None
        self.since_best = 0
        self.latest: float | None = None
        """What the evaluation after the step just made found; None where there was none."""
        self.stopped: str | None = None
        self._interrupted = False
        self._checkpoint_seconds = 0.0

    def run(self) -> RunResult:
        """Train to the end. Raises Interrupted after Ctrl-C, with everything saved."""
        newest = self.checkpoints.newest() if self.folder.resumed else None
        if newest is not None:
            self._restore(newest)
        after = self.done if newest is not None else -1
        self.log = MetricsLog(self.folder.path, after_step=after, tensorboard=self.settings.tensorboard)
        self.task.rollouts = RolloutLog(self.folder.path, after_step=after)
        try:
            with self._catch_interrupt(), self.progress.run(self.task.kind, self.task.total_steps, self.done):
                if newest is None:
                    self._record(0, {})
                while self.done < self.task.total_steps and self.stopped is None:
                    self._step(min(self.done + self.settings.stride, self.task.total_steps))
        finally:
            self.log.close()
        return self._finish()

    def _step(self, step: int) -> None:
        started = time.perf_counter()
        self.latest = None
        metrics = self.task.step(step)
        self.done = step
        self.stopped = self.task.stop_reason
        if self._checkpoint_seconds:
            metrics["time/checkpoint"] = self._checkpoint_seconds
            self._checkpoint_seconds = 0.0
        seconds = time.perf_counter() - started
        self.seconds += seconds
        metrics["step_time"] = seconds
        self._record(step, metrics)
        every = self.settings.save_every
        last = step == self.task.total_steps or self.stopped is not None
        if last or self._interrupted or (every and step % every == 0):
            self._save(step)
        if self._interrupted and not last:
            raise Interrupted(f"interrupted after step {step}, which is saved; go on with {self._how_to_resume()}")

    def _record(self, step: int, metrics: dict[str, float]) -> None:
        """Evaluate where it is due, and write the step's line."""
        every = self.settings.evaluate_every
        if step == 0 or step == self.task.total_steps or self.stopped is not None or (every and step % every == 0):
            started = time.perf_counter()
            found, samples = self.task.evaluate(step)
            if found:
                metrics = {**metrics, **found, "time/evaluate": time.perf_counter() - started}
                self._judge(found, step)
                self._keep_samples("before" if step == 0 else "after", samples)
        if metrics:
            self.log.append(step, metrics)
            self.progress.update(step, metrics)

    def _judge(self, found: Mapping[str, float], step: int) -> None:
        """Early stop, from the first set's accuracy, or loss where nothing is sampled."""
        settings = self.settings
        judged = "/accuracy" if settings.higher_is_better else "/loss"
        value = next((value for name, value in found.items() if name.endswith(judged)), math.nan)
        if math.isnan(value):  # not one verdict, or a model that is no good: nothing to compare
            return
        better = self.best is None or (value > self.best if settings.higher_is_better else value < self.best)
        self.best, self.since_best = (value, 0) if better else (self.best, self.since_best + 1)
        self.latest = value
        if step and settings.stop_at is not None and settings.higher_is_better and value >= settings.stop_at:
            self.stopped = self.stopped or f"evaluation reached {value:.3f}, at least stop_at={settings.stop_at}"
        if step and settings.patience is not None and self.since_best >= settings.patience:
            self.stopped = self.stopped or f"{self.since_best} evaluations without a better one (patience)"

    def _keep_samples(self, stage: str, samples: list[dict[str, Any]]) -> None:
        if not samples:
            return
        kept = self.folder.read_samples()
        self.folder.write_samples(**{**kept, stage: samples})

    # ------------------------------------------------------------------------------------------ state

    def _save(self, step: int) -> None:
        started = time.perf_counter()
        state = {
            "task": self.task.state_dict(),
            "random": random_states(),
            "loop": {
                "done": self.done,
                "seconds": self.seconds,
                "best": self.best,
                "since_best": self.since_best,
                "stopped": self.stopped,
            },
        }
        path = self.checkpoints.save(step, self.task.save, state, metric=self.latest)
        self.task.last_checkpoint = str(path)
        self._checkpoint_seconds = time.perf_counter() - started

    def _restore(self, path: Path) -> None:
        state = load_state(path)
        self.task.restore(path)
        self.task.load_state_dict(state["task"])
        self.task.last_checkpoint = str(path)
        loop = state["loop"]
        self.done, self.seconds = int(loop["done"]), float(loop["seconds"])
        self.best, self.since_best, self.stopped = loop["best"], int(loop["since_best"]), loop["stopped"]
        restore_random_states(state["random"])

    def _finish(self) -> RunResult:
        """summary.json from the metrics file, so that a run killed here and resumed writes the same."""
        records = read_metrics(self.folder.path / "metrics.jsonl")
        summary: dict[str, Any] = {
            "kind": self.task.kind,
            "steps": self.done,
            "stopped": self.stopped,
            "train_seconds": self.seconds,
            "checkpoint": str(self.checkpoints.newest()),
        }
        evaluations = [r for r in records if any(name.startswith("eval/") for name in r)]
        if evaluations:
            summary["before"] = _evaluated(evaluations[0])
            summary["after"] = _evaluated(evaluations[-1])
        samples = sum(record.get("samples", 0.0) for record in records)
        if samples and self.seconds:
            summary["samples_per_second"] = samples / self.seconds
        self.folder.write_summary(summary)
        return RunResult(self.folder.path, summary, self.task.policy)

    # ------------------------------------------------------------------------------------------ Ctrl-C

    def _how_to_resume(self) -> str:
        usual = f"reinlm {self.task.kind} --resume --output {shlex.quote(str(self.folder.path))}"
        return self.settings.resume_command or usual

    @contextmanager
    def _catch_interrupt(self) -> Iterator[None]:
        """The first Ctrl-C lets the step finish and saves; the second stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_interrupt(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            self.progress.say("interrupt: this step is finished and saved first; press Ctrl-C again to stop at once")

        before = signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt:
            newest = self.checkpoints.newest()
            kept = f"the newest checkpoint is {newest}" if newest else "no checkpoint was written yet"
            raise Interrupted(f"interrupted at once; {kept}; go on with {self._how_to_resume()}") from None
        finally:
            signal.signal(signal.SIGINT, before)


def _evaluated(record: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": record["step"]} | {n.removeprefix("eval/"): v for n, v in record.items() if n.startswith("eval/")}
