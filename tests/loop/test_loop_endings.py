"""However a run ends, `RunEnded` is sent and a report is left behind; a signal once saves, twice stops at once."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_helpers import ROWS, FakeTask, Recorder, Smoothed, even, logged, loop, rl, sft, tiny

import reinlm
from reinlm.classical.run import ClassicalConfig, run_classical
from reinlm.config import build
from reinlm.insight.tracker import ReportTracker
from reinlm.loop import Callback, Interrupted, RunEnded, StepReport
from reinlm.runs import MetricsLog, load_state
from reinlm.runs.checkpoints import Checkpoints

pytestmark = pytest.mark.no_cover


class At(Callback):
    """Does something at the end of a step."""

    def __init__(self, step: int, act: Any) -> None:
        self.step, self.act = step, act

    def on_step_ended(self, event: Any, control: Any) -> None:
        if event.step == self.step:
            self.act(control)


def press(control: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Started(Callback):
    """Its state is a list that it changes in place, also in a step that then raises."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step_started(self, event: Any, control: Any) -> None:
        self.steps.append(event.step)
        control.log("mine/started", len(self.steps))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        self.steps = state["steps"]


down: set[str] = set()
"""What is out of reach."""


def failing(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
    if trainer_state.global_step >= 2 and "server" in down:
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


def test_a_reward_that_raises_leaves_the_steps_before_it_a_summary_and_a_report(tmp_path: Path) -> None:
    seen = Recorder()
    options: dict[str, Any] = {"training": {"steps": 5, "replay": {"groups": 1}}}
    options["reward"] = {"functions": failing, "time_limit": None, "retry_delay": 0.01}
    down.add("server")
    with pytest.raises(reinlm.RunError, match="gone away"):
        rl(tmp_path / "run", [Smoothed(), Started(), seen], **options)
    down.clear()
    assert seen.events[-1].reason == "failed"
    assert "reward 'failing' raised OSError" in seen.events[-1].message
    assert [record["step"] for record in logged(tmp_path / "run")] == [1, 2]
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["done"] == 2  # save_every is 50
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["ended"], summary["steps"]) == ("failed", 2)
    assert "gone away" in summary["message"]
    report = (tmp_path / "run" / "report.html").read_text()
    assert '<span class="badge bad">failed</span>' in report
    assert "gone away" in report
    rl(tmp_path / "run", [Smoothed(), Started()], resume=True, **options)
    rl(tmp_path / "whole", [Smoothed(), Started()], **options)
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_a_step_that_raises_after_its_update_is_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    class Half(FakeTask):
        def step(self, step: int, *context: Any) -> Any:
            result = super().step(step, *context)
            if step == 4:
                raise OSError("after the update")
            return result

    with pytest.raises(OSError, match="after the update"):
        loop(tmp_path / "run", Half(), save_every=2).run()
    with pytest.raises(OSError, match="after the update"):
        loop(tmp_path / "later", Half(), save_every=3).run()
    with pytest.raises(OSError, match="after the update"):
        loop(tmp_path / "none", Half(), save_every=9).run()
    saved = [
        sorted(path.name for path in (tmp_path / n / "checkpoints").glob("step_*")) for n in ("run", "later", "none")
    ]
    assert saved == [["step_2"], ["step_3"], []]


def test_an_evaluation_that_raises_does_not_lose_its_step(tmp_path: Path) -> None:
    class Unjudged(FakeTask):
        def evaluate(self, step: int) -> Any:
            if step == 2:
                raise OSError("the judge has gone away")
            return super().evaluate(step)

    with pytest.raises(OSError, match="judge"):
        loop(tmp_path / "run", Unjudged(4)).run()
    assert [record["step"] for record in logged(tmp_path / "run")] == [1, 2]
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["done"] == 2
    loop(tmp_path / "run", FakeTask(4), resume=True).run()
    loop(tmp_path / "whole", FakeTask(4)).run()
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


@pytest.mark.parametrize("steps", [3, 2])
def test_a_run_of_skipped_updates_alone_fails_and_is_left_with_its_summary(steps: int, tmp_path: Path) -> None:
    training = {"steps": steps, "batch_size": 8}
    made = reinlm.SFTTrainer(tiny(), ROWS, output=tmp_path / "run", run={"trackers": []}, training=training, quiet=True)
    with torch.no_grad():
        next(made.policy.model.parameters()).fill_(math.nan)
    with pytest.raises(reinlm.RunError, match=f"all {steps} updates were skipped.*no weight has changed"):
        made.train()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["ended"], summary["updates_skipped"]) == ("failed", steps)
    assert f"<dt>updates skipped</dt><dd>{steps}</dd>" in (tmp_path / "run" / "report.html").read_text()


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
    kept, report = raised.value.__notes__
    assert f"the first step is saved in {tmp_path / 'run' / 'checkpoints' / 'step_1'}; go on with " in kept
    assert "reinlm sft --resume" in kept
    assert "callback ReportTracker failed in on_run_ended" in report


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


def test_between_steps_signals_are_python_s_own(tmp_path: Path) -> None:
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    one = loop(tmp_path / "run", FakeTask(3))
    one.start()
    one.step()
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_handler_of_sigterm_that_the_program_has_set_stays(tmp_path: Path) -> None:
    came = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        loop(tmp_path / "run", FakeTask(2), [At(1, lambda control: os.kill(os.getpid(), signal.SIGTERM))]).run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert came == [signal.SIGTERM]


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


def interrupted(tmp_path: Path, seconds: float, presses: int, signum: int = signal.SIGINT) -> tuple[str, float]:
    """Run the script, signal so often in its third step, and return what it printed and how long it took to end."""
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
        process.send_signal(signum)
    _, said = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    return said, time.monotonic() - started


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_the_first_signal_finishes_the_step_and_saves_it(signum: int, tmp_path: Path) -> None:
    said, _ = interrupted(tmp_path, seconds=1.5, presses=1, signum=signum)
    assert "Interrupted: interrupted after step 3, which is saved; go on with " in said
    assert "reinlm rl --resume" in said
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["done"] == 3
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_second_signal_stops_at_once_and_names_the_newest_checkpoint(signum: int, tmp_path: Path) -> None:
    said, took = interrupted(tmp_path, seconds=90, presses=2, signum=signum)
    assert took < 30
    newest = tmp_path / "run" / "checkpoints" / "step_2"
    assert f"Interrupted: interrupted at once; the newest checkpoint is {newest}; go on with" in said
    assert load_state(newest)["loop"]["done"] == 2
    assert [record["step"] for record in logged(tmp_path / "run")] == [1, 2]
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_run_that_makes_steps_by_the_batch_is_logged_evaluated_and_saved_where_it_stands(tmp_path: Path) -> None:
    class Batches(FakeTask):
        def step(self, step: int, *context: Any) -> Any:
            result = super().step(step, *context)
            return StepReport(result.metrics, done=-(-step // 7) * 7)

    task = Batches(28, {14: 0.2, 21: 0.4, 28: 0.6})
    result = loop(tmp_path / "run", task, stride=2, evaluate_every=10, save_every=20, keep_last=9).run()
    rows = logged(tmp_path / "run")
    assert [row["step"] for row in rows] == [7, 14, 21, 28]
    assert [row["step"] for row in rows if "eval/x/accuracy" in row] == [14, 21, 28]
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("step_*")) == ["step_21", "step_28"]
    assert result.summary["steps"] == 28


def test_records_reach_the_disk_before_a_checkpoint_and_steps_do_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    synced, append, save = MetricsLog.sync, MetricsLog.append, Checkpoints.save

    def noted(name: str, call: Any) -> Any:
        def calling(*args: Any, **kwargs: Any) -> Any:
            done.append(name)
            return call(*args, **kwargs)

        return calling

    monkeypatch.setattr(MetricsLog, "sync", noted("sync", synced))
    monkeypatch.setattr(MetricsLog, "append", noted("step", append))
    monkeypatch.setattr(Checkpoints, "save", noted("save", save))
    sft(tmp_path / "run", training={"steps": 4}, run={"save_every": 2})
    assert done.count("step") >= 4
    assert [name for name in done if name != "step"] == ["sync", "save"] * 2
