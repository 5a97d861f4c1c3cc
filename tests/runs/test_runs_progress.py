"""Without a terminal: plain lines, one for every step or for ten seconds, with the time that is left."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console
from transformers.utils import logging

from reinlm.runs.progress import Progress, silenced


def test_a_line_without_a_terminal_says_step_figures_and_time_left(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 60.0, 60.0, 60.0, 120.0, 120.0, 120.0, 180.0, 180.0, 180.0])
    monkeypatch.setattr("reinlm.runs.progress.time.monotonic", lambda: next(clock))
    progress = Progress(console=Console(file=io.StringIO()))
    with progress.run("rl", 3, 0):
        progress.update(1, {"reward": 0.5})
        progress.update(2, {"reward": 0.75})
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"rl 1/3  reward 0\.500  \d+:\d\d left", first)
    assert second.startswith("rl 2/3  reward 0.750  ")
    assert "\x1b" not in first


def test_an_accuracy_of_an_earlier_step_is_shown_with_that_step(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(console=Console(file=io.StringIO()))
    with progress.run("rl", 3, 0):
        progress.update(1, {"reward": 0.1, "eval/test/accuracy": 0.5})
        progress.update(3, {"reward": 0.2})
    first, last = capsys.readouterr().err.splitlines()
    assert "test accuracy 50.0%" in first
    assert "(step" not in first
    assert "test accuracy 50.0% (step 1)" in last


def test_of_rewards_that_are_no_verdicts_the_mean_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """They are logged before the accuracy."""
    progress = Progress(console=Console(file=io.StringIO()))
    graded = {"eval/test/reward": 7.25, "eval/test/rewards/reward": 7.25, "eval/test/accuracy": 0.5}
    with progress.run("rl", 2, 0):
        progress.update(1, graded)
        progress.update(2, {"eval/test/accuracy": 0.5, "eval/test/reward": 0.5})
    first, last = capsys.readouterr().err.splitlines()
    assert "test reward 7.250" in first
    assert "accuracy" not in first
    assert "test accuracy 50.0%" in last


@pytest.mark.parametrize(
    ("terminal", "quiet", "bars"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_bars_of_transformers_are_on_terminals_alone(
    terminal: bool, quiet: bool, bars: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    enabled, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.enable_progress_bar()
    with silenced(quiet=quiet):
        assert logging.is_progress_bar_enabled() == bars
        assert (logging.get_verbosity() == level) == (not quiet)
    assert logging.is_progress_bar_enabled()
    if not enabled:
        logging.disable_progress_bar()
