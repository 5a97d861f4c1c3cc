"""However a run ends, its callbacks are told and a report is left behind; Ctrl-C once saves, twice stops at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from loop_helpers import FakeTask, Recorder, even, logged, loop, rl, sft

import reinlm
from reinlm.classical.run import ClassicalConfig, run_classical
from reinlm.config import build
from reinlm.insight.tracker import ReportTracker
from reinlm.loop import Callback, Interrupted, RunEnded
from reinlm.runs import load_state


class At(Callback):
    """Does something at the end of a step."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_step_ended(self, event: Any, control: Any) -> None:
        if event.step == self.step:
            self.act(control)


def press(control: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def failing(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    if trainer_state.global_step >= 2:
        raise OSError("the reward's server has gone away")
    return even(completions)


ENDINGS = {
    "finished": (None, None, 4, None),
    "stopped": (lambda control: control.stop("enough"), None, 2, "enough"),
    "interrupted": (press, Interrupted, 2, "interrupted after step 2, which is saved"),
    "failed": (lambda control: 1 / 0, reinlm.RunError, 2, "callback At failed in on_step_ended"),
}


@pytest.mark.parametrize("reason", ENDINGS)
def test_a_report_is_left_behind_however_a_run_ends(reason: str, tmp_path: Path) -> None:
    act, error, steps, message = ENDINGS[reason]
    seen = Recorder()
    callbacks = [*([At(2, act)] if act else []), seen]
    if error is None:
        sft(tmp_path / "run", callbacks)
    else:
        with pytest.raises(error, match=message):
            sft(tmp_path / "run", callbacks)
    ended = seen.events[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.reason, ended.step, ended.folder) == (reason, steps, tmp_path / "run")
    assert message in (ended.message or "") if message else ended.message is None
    assert [type(event) for event in seen.events].count(RunEnded) == 1
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["done"] == steps
    report = (tmp_path / "run" / "report.html").read_text()
    assert f'"x":{list(range(1, steps + 1))}'.replace(" ", "") in report.replace(" ", "")


def test_a_report_is_left_behind_by_a_reward_that_raises(tmp_path: Path) -> None:
    seen = Recorder()
    with pytest.raises(reinlm.RunError, match="gone away"):
        rl(tmp_path / "run", [seen], reward={"functions": failing, "time_limit": None}, training={"steps": 5})
    assert seen.events[-1].reason == "failed"
    assert "reward 'failing' raised OSError" in seen.events[-1].message
    assert (tmp_path / "run" / "report.html").is_file()
    assert [record["step"] for record in logged(tmp_path / "run")] == [1, 2]


def test_a_report_is_left_behind_by_an_environment_that_raises(tmp_path: Path, monkeypatch: Any) -> None:
    from reinlm.classical.tabular.table import TableAgent

    config = {"algorithm": "q_learning", "env": "CliffWalking-v1", "steps": 6000, "output": str(tmp_path / "run")}
    calls = []
    step = TableAgent.step

    def breaks(self: Any, action: int) -> Any:
        calls.append(action)
        if len(calls) > 4000:
            raise OSError("the environment has gone away")
        return step(self, action)

    monkeypatch.setattr(TableAgent, "step", breaks)
    with pytest.raises(OSError, match="gone away"):
        run_classical(build(ClassicalConfig, config), reports=[ReportTracker()])
    assert (tmp_path / "run" / "report.html").is_file()
    assert logged(tmp_path / "run") == logged(tmp_path / "run" / "seeds" / "0") != []


def test_a_report_that_cannot_be_written_does_not_hide_why_the_run_ended(tmp_path: Path) -> None:
    def spoil(control: Any) -> None:
        (tmp_path / "run" / "report.html").mkdir()
        raise KeyError("first")

    with pytest.raises(reinlm.RunError, match="KeyError: 'first'") as raised:
        sft(tmp_path / "run", [At(1, spoil)])
    assert "callback ReportTracker failed in on_run_ended" in raised.value.__notes__[0]


# ------------------------------------------------------------------------------------------------ step by step


def test_start_step_and_finish_are_run_in_a_row(tmp_path: Path) -> None:
    whole = loop(tmp_path / "whole", FakeTask(3, {0: 0.1, 3: 0.2})).run()
    stepwise = loop(tmp_path / "stepwise", FakeTask(3, {0: 0.1, 3: 0.2}))
    stepwise.start()
    records = []
    while not stepwise.over:
        records.append(stepwise.step())
    result = stepwise.finish()
    assert logged(tmp_path / "stepwise") == logged(tmp_path / "whole")
    assert [record["loss"] for record in records] == [r["loss"] for r in logged(tmp_path / "whole")[1:]]
    assert {k: result.summary[k] for k in ("steps", "before", "after")} == {
        k: whole.summary[k] for k in ("steps", "before", "after")
    }


def test_a_run_that_is_finished_early_is_saved_and_goes_on_later(tmp_path: Path) -> None:
    seen = Recorder()
    early = loop(tmp_path / "run", FakeTask(5), [seen])
    early.start()
    early.step()
    early.step()
    result = early.finish()
    assert (result.summary["steps"], seen.events[-1].reason) == (2, "stopped")
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["done"] == 2
    loop(tmp_path / "run", FakeTask(5), resume=True).run()
    loop(tmp_path / "whole", FakeTask(5)).run()
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_verbs_of_a_loop_come_in_their_order(tmp_path: Path) -> None:
    one = loop(tmp_path / "run", FakeTask(1))
    for verb in (one.step, one.finish):
        with pytest.raises(RuntimeError, match="after start"):
            verb()
    one.run()
    for verb in (one.step, one.finish):
        with pytest.raises(RuntimeError):
            verb()


def test_between_steps_ctrl_c_is_python_s_own(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    one = loop(tmp_path / "run", FakeTask(3))
    one.start()
    one.step()
    assert signal.getsignal(signal.SIGINT) is before


# ------------------------------------------------------------------------------------------------ Ctrl-C, in a process


SCRIPT = """
    import sys, time
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from loop_helpers import even, rl

    def slow(completions, trainer_state, **_):
        if trainer_state.global_step == 2:
            Path({mark!r}).touch()
            time.sleep({seconds})
        return even(completions)

    rl({folder!r}, reward={{"functions": slow, "time_limit": None}}, training={{"steps": 9}}, quiet=False,
       run={{"save_every": 1}})
"""


def interrupted(tmp_path: Path, seconds: float, presses: int) -> tuple[str, float]:
    """Run the script, press Ctrl-C so often in its third step, and return what it said and how long it took to end."""
    mark, folder = tmp_path / "mark", tmp_path / "run"
    values = {"tests": str(Path(__file__).parent), "mark": str(mark), "folder": str(folder), "seconds": seconds}
    script = textwrap.dedent(SCRIPT).format(**values)
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    while not mark.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    started = time.monotonic()
    for _ in range(presses):
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    return said, time.monotonic() - started


def test_the_first_ctrl_c_finishes_the_step_and_saves_it(tmp_path: Path) -> None:
    said, _ = interrupted(tmp_path, seconds=1.5, presses=1)
    assert "Interrupted: interrupted after step 3, which is saved; go on with reinlm rl --resume" in said
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["done"] == 3
    assert (tmp_path / "run" / "report.html").is_file()


def test_the_second_ctrl_c_stops_at_once_and_names_the_newest_checkpoint(tmp_path: Path) -> None:
    said, took = interrupted(tmp_path, seconds=90, presses=2)
    assert took < 30
    newest = tmp_path / "run" / "checkpoints" / "step_2"
    assert f"Interrupted: interrupted at once; the newest checkpoint is {newest}; go on with" in said
    assert load_state(newest)["loop"]["done"] == 2
    assert [record["step"] for record in logged(tmp_path / "run")] == [1, 2]
    assert (tmp_path / "run" / "report.html").is_file()
