"""The page on callbacks: its example runs, its recipe is read, and its events are those that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from reinlm.config import build
from reinlm.insight import write_report
from reinlm.loop import Event
from reinlm.loop.trackers import registry
from reinlm.runs import METRICS, MetricsLog, RunFolder
from reinlm.training.sections import RunConfig

PAGE = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text(encoding="utf-8")


def test_the_example_halves_the_rate_after_ten_steps_without_a_better_reward() -> None:
    scope: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0], scope)
    patience = scope["callbacks"][0]
    asked: list[Any] = []

    class Control:
        def log(self, name: str, value: float) -> None:
            asked.append(value)

        def scale_learning_rate(self, factor: float) -> None:
            asked.append(f"times {factor}")

    for step in range(12):
        event = type("Event", (), {"metrics": {"reward": 0.5 if step == 0 else 0.1}, "step": step})
        patience.on_step_ended(event, Control())
    assert asked == [*range(11), "times 0.5", 1]
    assert patience.state_dict() == {"best": 0.5, "since": 1}


def test_a_declared_metric_is_logged_and_shown_with_its_unit_and_range(tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    example, declaration = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(example, scope)
    exec(declaration, scope)
    RunFolder.create(tmp_path, kind="sft", config={}, command="", overwrite=True).close()
    log = MetricsLog(tmp_path)
    log.append(1, {"mine/since_best": 3.0})
    log.append(2, {"mine/since_best": 12.0})
    page = write_report(tmp_path).read_text(encoding="utf-8")
    (drawn,) = [found for found in re.findall(r"<figure>.*?</figure>", page, re.DOTALL) if "mine/since_best" in found]
    assert "mine/since_best, in steps: mine/since_best 3 at step 1, 12 at step 2" in drawn
    assert "Steps since the reward last rose." in drawn
    assert "at most 10 (1 of 2 values)" in drawn
    del METRICS["mine/since_best"]


def test_the_recipe_is_read() -> None:
    written = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    names = [next(iter(spec)) for spec in build(RunConfig, written["run"]).chosen_trackers]
    assert names == ["tensorboard", "wandb", "trackio"]


def test_every_event_tracker_and_setting_is_on_the_page() -> None:
    assert all(f"`{kind.__name__}`" in PAGE for kind in Event.__subclasses__())
    for name in ("tensorboard", "wandb", "trackio"):
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
        assert all(f"`{setting}`" in line for setting in registry._KINDS[name].config.model_fields)
