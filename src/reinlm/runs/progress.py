"""The progress display of a run: a bar with the main figures, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from reinlm.runs.metrics import leading

SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "reward": ("reward", "{:.3f}"),
    "return": ("return", "{:.1f}"),
    "episode_length": ("length", "{:.0f}"),
    "episodes": ("episodes", "{:,.0f}"),
    "entropy": ("entropy", "{:.2f}"),
    "kl": ("kl", "{:.4f}"),
    "completions/mean_length": ("length", "{:.0f}"),
    "tokens_per_second": ("tok/s", "{:,.0f}"),
}
"""metric -> (label, format), in the order shown."""

HIDDEN_BESIDE_REWARD = "loss"
"""Not shown where there is a reward, because the value of a surrogate loss is not informative."""

LINE_SECONDS = 10.0
"""Without a terminal a line is printed this often, and at every evaluation."""


@contextmanager
def silenced(*, quiet: bool) -> Iterator[None]:
    """Within it transformers, datasets and the libraries below them show no messages, bars and warnings, if `quiet`.

    Where there is no terminal, as in a log file, they show no bars.
    """
    if not quiet and sys.stderr.isatty():
        yield
        return
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        if not quiet:
            yield
            return
        logging.set_verbosity_error()
        with warnings.catch_warnings():
            for package in ("transformers", "torch", "peft", "datasets", "huggingface_hub", "accelerate"):
                warnings.filterwarnings("ignore", module=rf"{package}(\.|$)")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class _Bar(RichProgress):
    """A bar with the figures on a line of their own, where a narrow terminal cannot push it off the screen."""

    figures = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        yield Text(f"  {self.figures}", no_wrap=True, overflow="ellipsis")


class Progress:
    """Shows a run on standard error. `quiet` shows nothing."""

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, quiet=quiet)
        self.quiet = quiet
        self._bar: _Bar | None = None
        self._last_line = 0.0
        self._result, self._evaluated = "", 0
        self._total = 0
        self._first, self._started = 0, time.monotonic()

    @contextmanager
    def run(self, title: str, total: int, done: int) -> Iterator[None]:
        """Show steps `done` to `total` of a run."""
        self._total, self._title, self._result = total, title, ""
        self._first, self._started = done, time.monotonic()
        if self.quiet or not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with _Bar(*columns, console=self.console) as bar:
            self._bar = bar
            self._task = bar.add_task(title, total=total, completed=done)
            try:
                yield
            finally:
                self._bar = None

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a finished step."""
        evaluated = leading(metrics)
        if evaluated:
            self._result = " ".join(_result(name, metric, metrics[metric]) for name, metric in evaluated.items())
            self._evaluated = step
        figures = self._figures(metrics, step)
        if self._bar is not None:
            self._bar.figures = figures
            self._bar.update(self._task, completed=step)
        elif not self.quiet and (evaluated or step == self._total or time.monotonic() - self._last_line > LINE_SECONDS):
            self._last_line = time.monotonic()
            left = f"  {_duration(self._left(step))} left" if step > self._first else ""
            print(f"{self._title} {step}/{self._total}  {figures}{left}", file=sys.stderr, flush=True)

    def _left(self, step: int) -> float:
        """Seconds to the last step, at the pace since the run began or was resumed."""
        return (time.monotonic() - self._started) / (step - self._first) * (self._total - step)

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            (self._bar.console if self._bar else self.console).print(
                text, markup=False, highlight=False, soft_wrap=True
            )

    def _figures(self, metrics: Mapping[str, float], step: int) -> str:
        shown = [
            f"{label} {form.format(metrics[name])}"
            for name, (label, form) in SHOWN.items()
            if name in metrics and not (name == HIDDEN_BESIDE_REWARD and "reward" in metrics)
        ]
        when = "" if self._evaluated == step else f" (step {self._evaluated})"
        return "  ".join([*shown, f"{self._result}{when}"] if self._result else shown)


def _duration(seconds: float) -> str:
    """Hours, minutes and seconds: `1:02:03`, `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _result(name: str, metric: str, value: float) -> str:
    return f"{name} accuracy {value:.1%}" if metric.endswith("/accuracy") else f"{name} reward {value:.3f}"
