"""What callbacks may ask of a run, when it takes effect, and what becomes of callbacks that are wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_helpers import FakeTask, Recorder, Smoothed, logged, loop, rl, sft

import reinlm
from reinlm.loop import Callback, Control, EarlyStopping
from reinlm.loop.early_stopping import Best
from reinlm.runs import METRICS, load_state
from reinlm.runs.declarations import find_metric, read_metrics_info
from reinlm.runs.folder import read_run


class Asks(Callback):
    """Calls `ask(control)` in one event of one step."""

    def __init__(self, ask: Any, handler: str = "on_step_ended", step: int = 2) -> None:
        self.ask, self.step = ask, step
        setattr(self, handler, self._on)

    def _on(self, event: Any, control: Control) -> None:
        if getattr(event, "step", self.step) == self.step:
            self.ask(control)


def run(path: Path, *callbacks: Any, task: FakeTask | None = None, **settings: Any) -> list[dict[str, Any]]:
    loop(path / "run", task or FakeTask(), callbacks, **settings).run()
    return logged(path / "run")


# ------------------------------------------------------------------------------------------------ warn


def test_a_warning_is_shown_and_kept_with_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(control: Control) -> None:
        control.warn("the first")
        control.warn("the second")

    one = loop(tmp_path / "run", FakeTask(), [Asks(both)])
    said: list[str] = []
    monkeypatch.setattr(one, "_say", said.append)
    one.run()
    assert read_run(tmp_path / "run")["findings"] == [
        {"step": 2, "message": "the first"},
        {"step": 2, "message": "the second"},
    ]
    assert said == ["warning: step 2: the first", "warning: step 2: the second"]


@pytest.mark.parametrize("message", ["", "  ", 3, None])
def test_a_warning_says_something(message: Any) -> None:
    with pytest.raises(reinlm.InputError, match="warn needs a message"):
        Control().warn(message)


# ------------------------------------------------------------------------------------------------ log


def test_a_callback_logs_a_metric_of_its_own_through_the_public_api(tmp_path: Path) -> None:
    class Doubled(reinlm.Callback):
        def on_step_ended(self, event: Any, control: Any) -> None:
            control.log("mine/loss", 2 * event.metrics["loss"])

    rl(tmp_path / "rl", [Doubled()])
    sft(tmp_path / "sft", [Doubled()])
    for name, steps in (("rl", 3), ("sft", 4)):
        records = logged(tmp_path / name)
        assert [record["mine/loss"] for record in records] == [2 * record["loss"] for record in records]
        assert len(records) == steps


def test_a_declared_metric_of_ones_own_may_be_logged_and_is_described_in_the_folder(tmp_path: Path) -> None:
    (own,) = reinlm.declare_metrics(reinlm.Metric("mine/{name}/gap", "nats", "distance to the best answer"))
    run(tmp_path, Asks(lambda c: c.log("mine/math/gap", 0.5)))
    del METRICS[own.name]
    carried = read_metrics_info(tmp_path / "run")
    assert find_metric("mine/math/gap", carried) == own
    assert {"loss", "step_time"} <= set(carried)


def test_a_metric_logged_at_any_moment_of_a_step_is_in_its_record(tmp_path: Path) -> None:
    handlers = ["on_step_started", "on_updated", "on_evaluated", "on_step_ended"]
    asking = [Asks(lambda c, h=h: c.log(f"mine/{h}", torch.tensor(3)), h) for h in handlers]
    before = Asks(lambda c: c.log("mine/before", math.nan), "on_evaluated", step=0)
    task = FakeTask(accuracies=dict.fromkeys(range(7), 0.5))
    loop(tmp_path / "run", task, [*asking, before]).run()
    records = logged(tmp_path / "run")
    own = {record["step"]: sorted(name for name in record if name.startswith("mine/")) for record in records}
    assert own == {step: [] for step in range(7)} | {0: ["mine/before"], 2: sorted(f"mine/{h}" for h in handlers)}
    assert records[2]["mine/on_updated"] == 3.0
    assert math.isnan(records[0]["mine/before"])


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("loss", 1.0, "'loss' is a name of the library's own"),
        ("rewards/math/mean", 1.0, "'rewards/math/mean' is a name of the library's own"),
        ("eval/mine", 1.0, "'eval/mine' is a name of the library's own"),
        ("time/mine", 1.0, "'time/mine' is a name of the library's own"),
        ("step", 1.0, "'step' is a name of the library's own"),
        ("", 1.0, "a metric's name has letters"),
        ("a b", 1.0, "a metric's name has letters"),
        ("mine", "high", "metric 'mine' must be a number, not 'high'"),
        ("mine", True, "metric 'mine' must be a number, not True"),
        ("mine", [1.0, 2.0], "metric 'mine' must be a number"),
        ("mine", torch.zeros(2), "metric 'mine' must be a number"),
    ],
)
def test_what_cannot_be_logged_is_refused_by_name(name: str, value: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(reinlm.RunError, match=r"callback Asks failed in _?on") as raised:
        run(tmp_path, Asks(lambda control: control.log(name, value)))
    assert complaint in raised.value.message
    assert isinstance(raised.value.__cause__, reinlm.InputError)


def test_one_name_is_logged_once_a_step_and_never_beside_the_run_s_own(tmp_path: Path) -> None:
    with pytest.raises(reinlm.RunError, match="'mine' was logged in this step by Asks"):
        run(tmp_path / "a", Asks(lambda c: c.log("mine", 1)), Asks(lambda c: c.log("mine", 2)))
    assert logged(tmp_path / "a" / "run")[-1]["mine"] == 1.0

    class Own(FakeTask):
        def step(self, *args: Any) -> Any:
            result = super().step(*args)
            return replace(result, metrics={**result.metrics, "undocumented": 1.0})

    with pytest.raises(reinlm.RunError, match="callback Asks logged 'undocumented', which the run logs itself"):
        run(tmp_path / "b", Asks(lambda c: c.log("undocumented", 2)), task=Own())
    assert logged(tmp_path / "b" / "run")[-1]["undocumented"] == 1.0


@pytest.mark.parametrize("handler", ["on_run_started", "on_logged", "on_saved", "on_run_ended"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda c: c.log("mine", 1),
        lambda c: c.stop("enough"),
        lambda c: c.set_learning_rate(1.0),
        lambda c: c.scale_learning_rate(1.0),
    ],
)
def test_outside_a_step_nothing_may_be_asked_for(handler: str, ask: Any, tmp_path: Path) -> None:
    with pytest.raises(reinlm.RunError, match=f"has no effect in {handler}"):
        run(tmp_path, Asks(ask, handler), task=FakeTask(2), save_every=1)


# ------------------------------------------------------------------------------------------------ stop


def test_a_stop_ends_the_run_with_an_evaluation_and_a_checkpoint(tmp_path: Path) -> None:
    task = FakeTask(9, accuracies={0: 0.1, 3: 0.4, 9: 0.9})
    asking = [Asks(lambda c: c.stop("enough"), step=3), Asks(lambda c: c.stop("too late"), step=3)]
    result = loop(tmp_path / "run", task, asking, evaluate_every=0).run()
    assert (result.summary["steps"], result.summary["stopped"]) == (3, "enough")
    assert result.summary["after"] == {"step": 3, "x/accuracy": 0.4}
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["stopped"] == "enough"
    again = loop(tmp_path / "run", FakeTask(9), resume=True).run()
    assert (again.summary["steps"], again.summary["stopped"]) == (3, "enough")


def test_a_run_stopped_before_its_first_step_leaves_a_checkpoint(tmp_path: Path) -> None:
    task = FakeTask(9, accuracies={0: 1.0})
    result = loop(tmp_path / "run", task, [Asks(lambda c: c.stop("solved"), "on_evaluated", step=0)]).run()
    assert (result.summary["steps"], result.summary["stopped"]) == (0, "solved")
    assert result.summary["checkpoint"].endswith("step_0")


@pytest.mark.parametrize("reason", ["", "  ", None, 3])
def test_a_stop_needs_a_reason(reason: Any, tmp_path: Path) -> None:
    with pytest.raises(reinlm.RunError, match="stop needs a reason"):
        run(tmp_path, Asks(lambda control: control.stop(reason)))


def test_early_stopping_waits_for_its_patience_and_min_delta(tmp_path: Path) -> None:
    accuracies = dict(enumerate([0.5, 0.2, 0.52, 0.53, 0.9, 0.6, 0.95]))
    task = FakeTask(6, accuracies)
    result = loop(tmp_path / "a", task, [EarlyStopping("eval/x/accuracy", patience=3, min_delta=0.1)]).run()
    assert (result.summary["steps"], result.summary["stopped"]) == (
        3,
        "eval/x/accuracy: 3 values without a better one than 0.5",
    )
    task = FakeTask(6, accuracies)
    result = loop(tmp_path / "b", task, [EarlyStopping("eval/x/accuracy", patience=3)]).run()
    assert (result.summary["steps"], result.summary["stopped"]) == (6, None)


def test_early_stopping_sees_what_an_earlier_callback_logs(tmp_path: Path) -> None:
    class Countdown(Callback):
        def on_step_ended(self, event: Any, control: Control) -> None:
            control.log("mine/left", [9.0, 7.0, math.nan, 7.0, 8.0, 1.0][event.step - 1])

    stopping = EarlyStopping("mine/left", patience=2, mode="min")
    result = loop(tmp_path / "run", FakeTask(), [Countdown(), stopping]).run()
    assert result.summary["steps"] == 5
    assert stopping.best == Best(7.0, 2)


def test_early_stopping_works_through_the_public_api_and_goes_on_counting_after_a_resume(tmp_path: Path) -> None:
    def one() -> EarlyStopping:
        return EarlyStopping("grad_norm", patience=3, min_delta=1e6, mode="max")

    whole = sft(tmp_path / "whole", [one()], training={"steps": 9})
    assert whole.summary["steps"] == 4
    with pytest.raises(reinlm.RunError):
        sft(tmp_path / "cut", [one(), Asks(lambda c: 1 / 0, step=2)], training={"steps": 9})
    resumed = sft(tmp_path / "cut", [one()], training={"steps": 9}, resume=True)
    assert resumed.summary["stopped"] == whole.summary["stopped"] != None  # noqa: E711
    assert logged(tmp_path / "cut") == logged(tmp_path / "whole")


def test_early_stopping_on_a_metric_that_never_came_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no step logged 'losss'; did you mean 'loss'"):
        run(tmp_path, EarlyStopping("losss", patience=1))


@pytest.mark.parametrize("wrong", [{"patience": 0}, {"min_delta": -1.0}, {"min_delta": math.nan}, {"mode": "up"}])
def test_early_stopping_refuses_settings_that_make_no_sense(wrong: Any) -> None:
    with pytest.raises(reinlm.InputError, match=next(iter(wrong))):
        EarlyStopping("loss", **({"patience": 1} | wrong))


# ------------------------------------------------------------------------------------------------ learning rate


def test_a_changed_rate_counts_from_the_next_step_on_and_survives_a_resume(tmp_path: Path) -> None:
    def asking() -> list[Callback]:
        return [
            Asks(lambda c: c.set_learning_rate(1e-3), "on_step_started", step=2),
            Asks(lambda c: c.scale_learning_rate(0.5), step=2),
            Asks(lambda c: c.scale_learning_rate(0.1), step=4),
        ]

    settings = {"training": {"steps": 6}, "optimizer": {"learning_rate": 5e-3, "schedule": "cosine"}}
    for verb in (sft, rl):
        whole, cut = tmp_path / f"{verb.__name__}-whole", tmp_path / f"{verb.__name__}-cut"
        verb(whole, asking(), **settings)
        rates = [record["learning_rate"] for record in logged(whole)]
        assert rates[0] == 5e-3
        assert rates[1] < 5e-3
        assert rates[2:] == pytest.approx([5e-4, 5e-4, 5e-5, 5e-5], rel=1e-12)
        with pytest.raises(reinlm.RunError):
            verb(cut, [*asking(), Asks(lambda c: 1 / 0, step=3)], **settings)
        verb(cut, asking(), **settings, resume=True)
        assert logged(cut) == logged(whole)


def test_scaling_leaves_the_schedule_underneath(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"training": {"steps": 5}, "optimizer": {"learning_rate": 5e-3, "schedule": "cosine"}}
    sft(tmp_path / "plain", **settings)
    sft(tmp_path / "scaled", [Asks(lambda c: c.scale_learning_rate(0.5), step=2)], **settings)
    plain, scaled = ([r["learning_rate"] for r in logged(tmp_path / name)] for name in ("plain", "scaled"))
    assert scaled == pytest.approx([*plain[:2], *(0.5 * rate for rate in plain[2:])], rel=1e-12)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "fast", None])
@pytest.mark.parametrize("verb", ["set_learning_rate", "scale_learning_rate"])
def test_a_rate_that_cannot_be_is_refused(verb: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(reinlm.RunError, match=verb):
        run(tmp_path, Asks(lambda control: getattr(control, verb)(value)))


# ------------------------------------------------------------------------------------------------ what cannot be used


@pytest.mark.parametrize(
    ("callbacks", "complaint"),
    [
        ([print], "not a Callback"),
        ([EarlyStopping], "EarlyStopping is a class"),
        (EarlyStopping("loss", patience=1), "callbacks is a list"),
        ([Smoothed(), Recorder(), Recorder(), Smoothed()], "two with state are named 'Smoothed'"),
    ],
)
def test_callbacks_that_cannot_be_used_are_refused_before_anything_is_loaded(
    callbacks: Any, complaint: str, tmp_path: Path
) -> None:
    for verb in (reinlm.sft, reinlm.rl):
        with pytest.raises(reinlm.InputError, match=complaint):
            verb("no/such/model", "no/such/data.jsonl", reward="math", output=tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


class Misspelt(Callback):
    def on_step_finshed(self, event: Any, control: Any) -> None: ...


class Waits(Callback):
    async def on_step_ended(self, event: Any, control: Any) -> None: ...  # type: ignore[override]


class TakesLess(Callback):
    def on_logged(self, event: Any) -> None: ...  # type: ignore[override]


class TakesMore(Callback):
    def load_state_dict(self, state: Any, strict: bool) -> None: ...  # type: ignore[override]


class OnlySaves(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"best": 1.0}


class OnlyLoads(Callback):
    def load_state_dict(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("callback", "complaint"),
    [
        (Misspelt(), r"Misspelt has a method on_step_finshed.*did you mean on_step_\w+\? Handlers: on_run_started, "),
        (Waits(), "Waits: on_step_ended is async"),
        (TakesLess(), r"TakesLess: on_logged cannot be called with \(self, event, control\)"),
        (TakesMore(), r"TakesMore: load_state_dict cannot be called with \(self, state\)"),
        (OnlySaves(), "OnlySaves has state_dict and no load_state_dict: "),
        (OnlyLoads(), "OnlyLoads has load_state_dict and no state_dict: "),
    ],
)
def test_handlers_that_no_event_calls_are_refused_when_they_are_given(
    callback: Callback, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(reinlm.InputError, match=complaint):
        sft(tmp_path / "run", [callback])
    assert not (tmp_path / "run").exists()


def test_two_early_stoppings_on_different_metrics_keep_their_own_state(tmp_path: Path) -> None:
    both = [EarlyStopping("loss", patience=9), EarlyStopping("learning_rate", patience=9)]
    run(tmp_path, *both)
    states = load_state(tmp_path / "run" / "checkpoints" / "last")["callbacks"]
    assert states == {
        f"EarlyStopping({one.metric})": {"value": one.best.value, "since": one.best.since} for one in both
    }


def test_a_resumed_run_without_its_stateful_callback_is_refused(tmp_path: Path) -> None:
    sft(tmp_path / "run", [Smoothed()])
    with pytest.raises(reinlm.InputError, match=r"callbacks with state that are not given: Smoothed"):
        sft(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("state", "complaint"), [({"open": object()}, r"state\.open: cannot store"), ([1, 2], r"\[1, 2\] is no dict")]
)
def test_a_state_that_cannot_be_stored_ends_the_run_by_name(state: Any, complaint: str, tmp_path: Path) -> None:
    class Keeps(Callback):
        def state_dict(self) -> dict[str, Any]:
            found: dict[str, Any] = state
            return found

        def load_state_dict(self, state: Any) -> None: ...

    with pytest.raises(reinlm.RunError, match=f"callback Keeps returned a state_dict: {complaint}"):
        run(tmp_path, Keeps())
    assert not (tmp_path / "run" / "metrics.jsonl").exists()  # found before the first step, not at the first checkpoint


# ------------------------------------------------------------------------------------------------ a callback that raises


@pytest.mark.parametrize("handler", ["on_step_started", "on_updated", "on_step_ended", "on_logged", "on_saved"])
def test_a_callback_that_raises_is_named_and_its_step_is_saved(handler: str, tmp_path: Path) -> None:
    task, others = FakeTask(), Recorder()
    failing = Asks(lambda control: dict[str, Any]()["missing"], handler, step=2)
    step = Asks(lambda control: control.log("mine/after", 1), step=2)
    every = 2 if handler == "on_saved" else 50
    with pytest.raises(reinlm.RunError) as raised:
        loop(tmp_path / "run", task, [failing, step, others], save_every=every).run()
    line = "test_loop_callbacks.py:"
    assert f"callback Asks failed in {handler} (" in raised.value.message
    assert line in raised.value.message
    assert raised.value.message.endswith("KeyError: 'missing'")
    assert [record["step"] for record in logged(tmp_path / "run")] == [1, 2]
    assert logged(tmp_path / "run")[-1]["mine/after"] == 1.0  # the others of the step were called
    assert [others.events[-1].reason, others.events[-1].step] == ["failed", 2]
    assert load_state(tmp_path / "run" / "checkpoints" / "last")["loop"]["done"] == 2
    loop(tmp_path / "whole", FakeTask(), [step]).run()
    resumed = loop(tmp_path / "run", FakeTask(), [step], resume=True)
    resumed.run()
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")


def test_a_failed_callback_hears_of_the_end_alone(tmp_path: Path) -> None:
    class Fails(Recorder):
        def __getattribute__(self, name: str) -> Any:
            kept = super().__getattribute__(name)
            if name != "on_updated":
                return kept

            def fails(event: Any, control: Any) -> None:
                kept(event, control)
                raise AttributeError("wrong")

            return fails

    fails = Fails()
    with pytest.raises(reinlm.RunError, match="AttributeError: wrong"):
        loop(tmp_path / "run", FakeTask(3), [fails]).run()
    assert fails.order == ["on_run_started", "on_step_started", "on_updated", "on_run_ended"]


def test_a_callback_that_raises_when_the_run_starts_or_ends_is_named(tmp_path: Path) -> None:
    with pytest.raises(reinlm.RunError, match="callback Asks failed in on_run_started"):
        loop(tmp_path / "a", FakeTask(3), [Asks(lambda c: 1 / 0, "on_run_started")]).run()
    assert logged(tmp_path / "a") == []
    with pytest.raises(reinlm.RunError, match="callback Asks failed in on_run_ended"):
        loop(tmp_path / "b", FakeTask(2), [Asks(lambda c: 1 / 0, "on_run_ended")]).run()
    assert (tmp_path / "b" / "summary.json").is_file()


def test_an_error_of_the_run_itself_is_not_hidden_by_one_of_a_callback(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone away") as raised:
        loop(tmp_path / "run", FakeTask(3, fails_at=2), [Asks(lambda c: 1 / 0, "on_run_ended", step=1)]).run()
    assert any("callback Asks failed in on_run_ended" in note for note in raised.value.__notes__)


# ------------------------------------------------------------------------------------------------ habits of Stable-Baselines3


def test_a_handler_that_returns_false_ends_the_run_as_it_does_elsewhere(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_step_ended(self, event: Any, control: Any) -> Any:
            return event.step < 3

        def on_saved(self, event: Any, control: Any) -> Any:
            return False  # after the step: nothing can be asked for

    result = loop(tmp_path / "run", FakeTask(6), [Enough()]).run()
    assert [row["step"] for row in logged(tmp_path / "run")] == [1, 2, 3]
    assert result.summary["stopped"] == "callback Enough returned False in on_step_ended"


def test_a_method_of_stable_baselines_is_answered_with_the_handler(tmp_path: Path) -> None:
    class Theirs(Callback):
        def _on_step(self) -> bool:
            return True

    with pytest.raises(
        reinlm.InputError, match=r"Stable-Baselines3's method _on_step.*write on_step_ended\(self, event, co"
    ):
        loop(tmp_path / "run", FakeTask(), [Theirs()])
