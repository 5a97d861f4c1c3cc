"""Which events a run sends, in which order, and what they hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from loop_helpers import FakeTask, Recorder, even, logged, loop, rl, sft

from reinlm.loop import Event, RunEnded, RunStarted, StepEnded
from reinlm.runs import read_metrics


def test_events_come_in_the_order_that_is_documented(tmp_path: Path) -> None:
    seen = Recorder()
    loop(tmp_path / "run", FakeTask(2, {0: 0.1, 2: 0.5}), [seen], save_every=1).run()
    assert seen.order == [
        *("on_run_started", "on_evaluated", "on_logged"),
        *("on_step_started", "on_updated", "on_step_ended", "on_logged", "on_saved"),
        *("on_step_started", "on_updated", "on_evaluated", "on_step_ended", "on_logged", "on_saved"),
        "on_run_ended",
    ]


def test_callbacks_are_called_in_the_order_given(tmp_path: Path) -> None:
    order: list[str] = []
    loop(tmp_path / "run", FakeTask(1), [Recorder("b ", order), Recorder("a ", order)]).run()
    assert order[::2] == [name.replace("a ", "b ") for name in order[1::2]]
    assert order[:2] == ["b on_run_started", "a on_run_started"]


def test_the_run_started_event_says_what_is_run_and_from_where(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    loop(tmp_path / "run", FakeTask(4), [first], save_every=2).run()
    loop(tmp_path / "run", FakeTask(4), [second], resume=True).run()
    config = {"seed": 5, "run": {"output": None}}
    assert first.events[0] == RunStarted("sft", tmp_path / "run", config, 4, done=0, after_step=-1, stopped=None)
    assert second.events[0] == RunStarted("sft", tmp_path / "run", config, 4, done=4, after_step=4, stopped=None)
    assert (first.events[0].over, second.events[0].over) == (False, True)
    assert second.order == ["on_run_started", "on_run_ended"]
    assert second.events[1] == RunEnded("finished", 4, None, tmp_path / "run")


def test_what_an_event_holds_cannot_be_written_to(tmp_path: Path) -> None:
    seen = Recorder()
    rl(tmp_path / "run", [seen], training={"steps": 1})
    by_kind = {type(event).__name__: event for event in seen.events}
    for write in {
        "metrics": lambda: by_kind["StepEnded"].metrics.__setitem__("loss", 0.0),
        "config": lambda: by_kind["RunStarted"].config["rollout"].__setitem__("group_size", 1),
        "group": lambda: setattr(by_kind["GroupScored"].group, "events", ()),
        "field": lambda: setattr(by_kind["StepEnded"], "step", 7),
    }.values():
        with pytest.raises((TypeError, AttributeError)):
            write()
    with pytest.raises(ValueError, match="read-only"):
        by_kind["BatchPrepared"].advantages[0] = 1.0


def test_an_event_keeps_what_it_was_sent_with() -> None:
    metrics = {"loss": 1.0}
    event = StepEnded(1, metrics)
    metrics["loss"] = 2.0
    assert event.metrics["loss"] == 1.0
    assert {kind.handler for kind in Event.__subclasses__()} == {name for name in dir(Recorder) if name[:3] == "on_"}


def test_rl_sends_its_groups_and_the_batch_that_it_makes_of_them(tmp_path: Path) -> None:
    seen = Recorder()
    rl(tmp_path / "run", [seen], training={"steps": 2})
    record = logged(tmp_path / "run")[-1]
    scored = [event for event in seen.events if type(event).__name__ == "GroupScored" and event.step == 2]
    (batch,) = [event for event in seen.events if type(event).__name__ == "BatchPrepared" and event.step == 2]
    (updated,) = [event for event in seen.events if type(event).__name__ == "Updated" and event.step == 2]
    rewards = [reward for event in scored for reward in event.group.returns]
    assert len(rewards) == batch.sequences == 8
    assert np.mean(rewards) == record["reward"]
    assert rewards == [r for e in scored for r in even([str(x.completion) for x in e.group.group.rollouts])]
    assert batch.groups == tuple(event.group for event in scored)
    assert len(batch.advantages) == batch.tokens
    assert float(batch.advantages.std()) == pytest.approx(record["advantage/std"], rel=1e-6)
    assert updated.metrics["loss"] == record["loss"]


def test_sft_sends_how_much_it_trains_on(tmp_path: Path) -> None:
    seen = Recorder()
    sft(tmp_path / "run", [seen], training={"steps": 2})
    batches = [event for event in seen.events if type(event).__name__ == "BatchPrepared"]
    tokens = [record["num_tokens"] for record in logged(tmp_path / "run")]
    assert [event.sequences for event in batches] == [8, 8]
    assert [batches[0].tokens, batches[0].tokens + batches[1].tokens] == tokens


def test_the_logged_event_is_the_record_in_the_file(tmp_path: Path) -> None:
    seen = Recorder()
    sft(tmp_path / "run", [seen])
    events = [event for event in seen.events if type(event).__name__ == "Logged"]
    assert [{"step": event.step, **event.metrics} for event in events] == read_metrics(
        tmp_path / "run" / "metrics.jsonl"
    )
