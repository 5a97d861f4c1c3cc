"""A run whose reward functions fail: steps without any reward are passed over, and the end is saved."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import reinlm
from tiny_runs import ROWS, metrics, settings, tiny

AWAY: set[int] = set()
"""Steps in which the service is away."""


def service(completions: list[str], trainer_state: Any, log_metric: Any) -> list[float]:
    if trainer_state.global_step in AWAY:
        raise ConnectionError("503")
    log_metric("length", sum(map(len, completions)) / len(completions))
    return [float(len(text)) for text in completions]


def run(folder: Path, **changes: Any) -> Any:
    reward = {"functions": service, "time_limit": None, "retries": 1, "retry_delay": 0.001, **changes.pop("reward", {})}
    return reinlm.rl(
        tiny(), ROWS, reward=reward, output=folder, quiet=True, **settings(training={"steps": 4}), **changes
    )


def test_under_skip_a_service_that_is_away_for_a_while_costs_its_steps_alone(tmp_path: Path) -> None:
    AWAY.update({1, 2})
    run(tmp_path / "run", reward={"on_reward_error": "skip", "one_by_one": False})
    rows = metrics(tmp_path / "run")
    AWAY.clear()
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row.get("rewards/service/failed", 0.0) for row in rows] == [0.0, 8.0, 8.0, 0.0]
    assert [row.get("rewards/service/retries", 0.0) for row in rows] == [0.0, 2.0, 2.0, 0.0]
    assert ["loss" in row for row in rows] == [True, False, False, True]
    assert rows[0]["rewards/service/logged/length"] == pytest.approx(rows[0]["rewards/service/mean"])


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_one_that_stays_away_ends_the_run_saved_and_it_goes_on_later(policy: str, tmp_path: Path) -> None:
    AWAY.update({1, 2, 3})
    skip = {"on_reward_error": "skip", "one_by_one": False, "max_failed_steps": 2} if policy == "skip" else {}
    with pytest.raises(reinlm.RunError) as caught:
        run(tmp_path / "run", reward=skip)
    AWAY.clear()
    done = 2 if policy == "skip" else 1
    said = rf"checkpoints/step_{done}; go on with \S*reinlm rl --resume"
    assert any(re.search(said, note) for note in caught.value.__notes__)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended"] == "failed"
    run(tmp_path / "run", resume=True, reward={"retries": 5})  # such settings may change
    assert [row["step"] for row in metrics(tmp_path / "run")] == [1, 2, 3, 4]
