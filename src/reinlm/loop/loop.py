"""The loop of every verb: steps, evaluation, records, checkpoints, early stop, resume, signals, events to callbacks."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reinlm.errors import RunError
from reinlm.loop.callbacks import Callback, check_callbacks
from reinlm.loop.delivery import Delivery
from reinlm.loop.early_stopping import Best, StopRule
from reinlm.loop.events import Evaluated, Logged, Reason, RunEnded, RunStarted, Saved, StepEnded, StepStarted, read_only
from reinlm.loop.interrupts import Interrupted, Interrupts
from reinlm.loop.run import NO_CHECKPOINT, Run, StepContext
from reinlm.loop.settings import LoopSettings, RunResult
from reinlm.loop.summary import count_updates, summarise
from reinlm.loop.trackers.console import ConsoleTracker
from reinlm.program import command_line
from reinlm.runs.checkpoints import Checkpoints, load_state
from reinlm.runs.folder import RunFolder
from reinlm.runs.metrics import MetricsLog, read_metrics
from reinlm.runs.progress import Progress
from reinlm.runs.schema import RolloutLog
from reinlm.runs.state import copy_state, random_states, restore_random_states


class Loop:
    """Makes the steps, evaluations and checkpoints of a `Run`.

    `run()` is `start()`, `step()` while not `over`, and `finish()`, in a row.

    Args:
        run: what is trained.
        settings: how often to evaluate and save, and when to stop.
        folder: the run's folder; one opened with resume=True continues from its newest checkpoint.
        progress: the progress bar; None shows nothing.
        callbacks: callbacks and trackers, in the order in which they are called.

    Raises:
        InputError: for callbacks that cannot be used (see `check_callbacks`).
    """

    def __init__(
        self,
        run: Run,
        settings: LoopSettings,
        folder: RunFolder,
        progress: Progress | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        progress = progress or Progress(quiet=True)
        self.active_run = run
        self.settings = settings
        self.folder = folder
        self.delivery = Delivery([ConsoleTracker(progress), *check_callbacks(callbacks)])
        self._stop_rule = StopRule(settings.higher_is_better, settings.stop_at, settings.patience)
        self.checkpoints = Checkpoints(folder.checkpoints, keep_last=settings.keep_last, keep_best=self._stop_rule.mode)
        self.done = 0
        """Steps made."""
        self.seconds = 0.0
        """Seconds spent in steps."""
        self.stopped: str | None = None
        """Why the run ends before its last step."""
        self._best = Best()
        self._latest: float | None = None  # the accuracy or loss of the evaluation after the last step
        self._saved: int | None = None
        self._last_checkpoint = NO_CHECKPOINT
        self._checkpoint_seconds = 0.0
        self._interrupts = Interrupts(progress.say)
        self._say = progress.say
        self._started = self._ended = False
        self._failure: Exception | None = None
        """The error of an evaluation; raised once the step is saved."""

    @property
    def over(self) -> bool:
        """Whether no step is left to make."""
        return self.stopped is not None or self.done >= self.active_run.total_steps

    @property
    def running(self) -> bool:
        """Whether it has started, and not ended."""
        return self._started and not self._ended

    def run(self) -> RunResult:
        """Train to the end, from the current step. Raises Interrupted after Ctrl-C or SIGTERM, with everything saved."""
        with self._guarded():
            if not self._started:
                self.start()
            while not self.over:
                self.step()
        return self.finish()

    # ------------------------------------------------------------------------------------------ start, step, finish

    def start(self) -> None:
        """Restore the newest checkpoint of a resumed run, open its files, and evaluate a new run before its first step."""
        with self._guarded():
            self.delivery.state_dict()  # a state that no checkpoint can hold ends the run before its first step
            newest = self.checkpoints.newest() if self.folder.resumed else None
            random = self._restore(newest) if newest is not None else random_states()
            after = self.done if newest is not None else -1
            self.folder.forget_findings(after)
            if newest is not None and self.over:
                self._say(self._already_over())
            self._log = MetricsLog(self.folder.path, after_step=after)
            self._rollouts = RolloutLog(self.folder.path, after_step=after)
            self._started = True
            config = self.folder.read_config()
            self.delivery.send(
                RunStarted(
                    self.active_run.kind,
                    self.folder.path,
                    config,
                    self.active_run.total_steps,
                    self.done,
                    after,
                    self.stopped,
                )
            )
            restore_random_states(random)  # random numbers that a tracker drew must not change the run
            self._raise_failure()
            if newest is None:
                self._conclude(0, self._evaluate(0))
                self._raise_failure()

    def _already_over(self) -> str:
        if self.stopped is not None:
            return f"nothing to resume: this run was stopped after step {self.done}: {self.stopped}"
        more = "--steps N (training.steps) with a larger N goes on"
        return f"nothing to do, this run is finished: all {self.done} steps are made; {more}"

    def step(self) -> Mapping[str, float]:
        """Make one step, or `stride` of them, and return its metrics as they are logged.

        Raises:
            Interrupted: after Ctrl-C or SIGTERM, the step saved.
            RunError: where a callback fails, the step saved. The run's own errors; the steps before are saved if
                the weights have not changed since.
        """
        if not self._started or self._ended or self.over:
            raise RuntimeError("step() comes after start(), while the loop is not over")
        with self._guarded():
            before, stride = self.done, self.settings.stride
            metrics = self._train(min(before - before % stride + stride, self.active_run.total_steps))
            step = self.done
            if self.over or _passed(self.settings.evaluate_every, before, step):
                metrics |= self._try_to_evaluate(step)
            self.delivery.send(StepEnded(step, metrics))
            logged = self._conclude(step, metrics)
            due = self.over or self._interrupts.asked or _passed(self.settings.save_every, before, step)
            if due or self._failed is not None:
                self._save(step)
            self._raise_failure()
            if self._interrupts.asked and not self.over:
                message = f"interrupted after step {step}, which is saved; go on with {self._how_to_resume()}"
                raise Interrupted(message, self._interrupts.asked)
        return logged

    def finish(self) -> RunResult:
        """Save a checkpoint if needed, write summary.json, and end the run; also allowed before its last step.

        Raises:
            RunError: where updates were tried and every one of them was skipped, since none was finite.
        """
        if not self._started or self._ended:
            raise RuntimeError("finish() comes once, after start()")
        with self._guarded():
            if self._saved != self.done:
                self._save(self.done)
            made, skipped = count_updates(read_metrics(self._log.path))
            if skipped and not made and self.over:
                raise RunError(
                    f"all {skipped} updates were skipped, as their loss or gradient was not finite: no weight has changed",
                    hint="lower optimizer.learning_rate, and check the weights of the model and the rewards",
                )
            complete = self.done >= self.active_run.total_steps and self.stopped is None
            summary = self._end("finished" if complete else "stopped", self.stopped)
            self._raise_failure()
        return RunResult(self.folder.path, summary, self.active_run.policy)

    def save(self) -> Path:
        """Write a checkpoint of the steps made, unless it exists; returns its folder."""
        if not self._started:
            raise RuntimeError("save() comes after start()")
        if self._saved != self.done:
            with self._guarded():
                self._save(self.done)
        return Path(self._last_checkpoint)

    # ------------------------------------------------------------------------------------------ the parts of a step

    def _train(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        with self._keeping_what_is_done():
            self._latest = None
            self.delivery.send(StepStarted(step))
            result = self.active_run.step(step, StepContext(self._last_checkpoint, self._rollouts, self.delivery.send))
        self.done = step if result.done is None else result.done
        self.stopped = result.stop
        metrics = dict(result.metrics)
        if self._checkpoint_seconds:
            metrics["time/checkpoint"] = self._checkpoint_seconds
            self._checkpoint_seconds = 0.0
        metrics["step_time"] = time.perf_counter() - started
        self.seconds += metrics["step_time"]
        return metrics

    @contextmanager
    def _keeping_what_is_done(self) -> Iterator[None]:
        """If the block raises, save the steps made before, unless the weights have changed already, and say how to go on."""
        version, latest = self.active_run.version, self._latest
        state = None
        if self.done and self._saved != self.done and version is not None:
            state = self._state()
            state["callbacks"] = copy_state(state["callbacks"])
        try:
            yield
        except Exception as error:
            if state is not None and self.active_run.version == version:
                try:
                    self._write(state, latest)
                except Exception as other:  # noqa: BLE001 - the error of the step is the one to raise
                    error.add_note(f"the steps before could not be saved: {other}")
            self._say_how_to_go_on(error)
            raise

    def _say_how_to_go_on(self, error: BaseException) -> None:
        """Say which steps a run that an error ends has kept, in the console and in a note of the error."""
        if self._saved is not None and self._last_checkpoint != NO_CHECKPOINT:
            steps = "step is" if self._saved == 1 else f"{self._saved} steps are"
            kept = f"the first {steps} saved in {self._last_checkpoint}; go on with {self._how_to_resume()}"
            self._say(kept)
            error.add_note(kept)

    def _try_to_evaluate(self, step: int) -> dict[str, float]:
        """Like `_evaluate`, but keeps an error until the step is saved."""
        try:
            return {} if self._failure is not None else self._evaluate(step)
        except Exception as error:  # noqa: BLE001 - the loop raises it once the step is saved
            self._failure = error
            return {}

    def _evaluate(self, step: int) -> dict[str, float]:
        """Evaluate, and apply the stop rule to the result."""
        started = time.perf_counter()
        found, samples = self.active_run.evaluate(step)
        if not found:
            return {}
        value = self._stop_rule.value(found)
        if value is not None:
            self._latest = value
            self._best = self._best.seen(value, self._stop_rule.mode)
            if step:
                self.stopped = self.stopped or self._stop_rule.stop(value, self._best)
        if samples:
            stage = "before" if step == 0 else "after"
            rows = [{"step": step, **sample} for sample in samples]
            self.folder.write_samples(**{**self.folder.read_samples(), stage: rows})
        self.delivery.send(Evaluated(step, found, samples))
        return {**found, "time/evaluate": time.perf_counter() - started}

    def _conclude(self, step: int, metrics: dict[str, float]) -> Mapping[str, float]:
        """Carry out the requests of callbacks and write the record of the step. Requests take effect only here."""
        if self.stopped is None and self.delivery.control.stopping is not None:
            self.stopped = self.delivery.control.stopping
            if not any(name.startswith("eval/") for name in metrics):
                metrics |= self._try_to_evaluate(step)
        asked = self.delivery.take()
        for verb, value in asked.rates:
            change = self.active_run.set_learning_rate if verb == "set" else self.active_run.scale_learning_rate
            change(value)
        for message in asked.warnings:
            self._say(f"warning: step {step}: {message}")
            self.folder.add_finding(step, message)
        metrics |= self.delivery.without_clashes(asked, metrics)
        if metrics:
            metrics = self._log.append(step, metrics)
            self.delivery.send(Logged(step, metrics))
        view: Mapping[str, float] = read_only(metrics)
        return view

    def _state(self) -> dict[str, Any]:
        """The state in a checkpoint, without the model."""
        return {
            "run": self.active_run.state_dict(),
            "random": random_states(),
            "loop": {"done": self.done, "seconds": self.seconds, "best": asdict(self._best), "stopped": self.stopped},
            "callbacks": self.delivery.state_dict(),
        }

    def _save(self, step: int) -> None:
        started = time.perf_counter()
        self._write(self._state(), self._latest)
        self._checkpoint_seconds = time.perf_counter() - started

    def _write(self, state: Mapping[str, Any], metric: float | None) -> Path:
        """Write a checkpoint of the steps made, after their records."""
        self._log.sync()
        path = self.checkpoints.save(self.done, self.active_run.save, state, metric=metric)
        self._last_checkpoint, self._saved = str(path), self.done
        self.delivery.send(Saved(self.done, path))
        return path

    def _restore(self, path: Path) -> Mapping[str, Any]:
        """Restore a checkpoint; returns the random states, which the caller sets last."""
        state = load_state(path)
        self.active_run.restore(path)
        self.active_run.load_state_dict(state["run"])
        self.delivery.load_state_dict(state["callbacks"])
        loop = state["loop"]
        self.done = self._saved = int(loop["done"])
        self.seconds, self.stopped, self._best = float(loop["seconds"]), loop["stopped"], Best(**loop["best"])
        self._last_checkpoint = str(path)
        random: Mapping[str, Any] = state["random"]
        return random

    # ------------------------------------------------------------------------------------------ how a run ends

    @property
    def _failed(self) -> Exception | None:
        """The error to raise once the step is saved."""
        return self._failure or self.delivery.failure

    def _raise_failure(self) -> None:
        if self._failed is not None:
            self._say_how_to_go_on(self._failed)
            raise self._failed

    def _end(self, reason: Reason, message: str | None, error: BaseException | None = None) -> dict[str, Any]:
        """Write the summary and call the callbacks, once; errors here or before are added as notes to `error`."""
        if not self._started or self._ended:
            return {}
        self._ended = True
        summary = self._summary(reason, message)
        try:
            self.folder.write_summary(summary)
        except OSError as other:
            if error is None:
                raise
            error.add_note(f"summary.json was not written: {other}")
        self.delivery.send(RunEnded(reason, self.done, message, self.folder.path))
        failure = self.delivery.failure
        if error is not None and failure is not None and failure is not error:
            error.add_note(str(failure))
        return summary

    def _summary(self, reason: Reason, message: str | None) -> dict[str, Any]:
        return summarise(
            read_metrics(self._log.path),
            kind=self.active_run.kind,
            steps=self.done,
            ended=reason,
            message=message,
            stopped=self.stopped,
            seconds=self.seconds,
            checkpoint=None if self._last_checkpoint == NO_CHECKPOINT else self._last_checkpoint,
        )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Send RunEnded if the block raises; convert a signal to an Interrupted that says how to resume. May be nested."""
        with self._interrupts.listen():
            try:
                yield
            except Interrupted as error:
                self._end("interrupted", str(error), error)
                raise
            except KeyboardInterrupt:
                written = self._last_checkpoint != NO_CHECKPOINT
                kept = (
                    f"the newest checkpoint is {self._last_checkpoint}" if written else "no checkpoint was written yet"
                )
                message = f"interrupted at once; {kept}; go on with {self._how_to_resume()}"
                interrupted = Interrupted(message, self._interrupts.asked or signal.SIGINT)
                self._end("interrupted", message, interrupted)
                raise interrupted from None
            except BaseException as error:
                self._end("failed", str(error) or type(error).__name__, error)
                raise

    def _how_to_resume(self) -> str:
        usual = (self.active_run.kind, "--resume", "--output", self.folder.path)
        return self.settings.resume_command or command_line(*usual)


def _passed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every
