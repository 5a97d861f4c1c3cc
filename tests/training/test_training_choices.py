"""Choices of an algorithm that need more than one answer's reward, and schedules of sampling, in tiny runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from reinlm.errors import InputError
from reinlm.runs import load_state
from reinlm.runs.declarations import find_metric
from tiny_runs import ROWS, graded, length, metrics, run_rl, trainer


def test_the_multiplier_of_a_constraint_moves_by_the_logged_cost_and_is_in_the_checkpoint(tmp_path: Path) -> None:
    """λ ← max(0, λ + 0.5 (mean length - 3)), from 0.1; the reward is (R - λ c)/(1 + λ)."""
    bound = {"lagrange": {"reward": "length", "limit": 3.0, "multiplier": 0.1, "rate": 0.5}}
    functions = [graded, {"name": length, "weight": 0.0}]
    result = run_rl(
        tmp_path / "run",
        reward=functions,
        algorithm={"base": "grpo", "kl": None, "constraints": [bound]},
        training={"steps": 4},
        rollout={"max_new_tokens": 6},
    )
    rows = metrics(result.folder)
    multiplier = 0.1
    for row in rows:
        assert row["constraint/length/multiplier"] == pytest.approx(multiplier, rel=1e-12)
        multiplier = max(0.0, multiplier + 0.5 * (row["rewards/length/mean"] - 3.0))
    assert len({row["constraint/length/multiplier"] for row in rows}) == 4
    state = load_state(result.folder / "checkpoints/step_4")
    assert state["run"]["algorithm"]["multipliers"] == pytest.approx((multiplier,))


def test_a_constraint_takes_its_cost_off_the_reward(tmp_path: Path) -> None:
    """Advantages of grpo on (R - λ c)/(1 + λ), λ = 2."""
    bound = {"lagrange": {"reward": "length", "limit": 3.0, "multiplier": 2.0}}
    result = run_rl(
        tmp_path / "run",
        reward=[graded, {"name": length, "weight": 0.0}],
        algorithm={"base": "grpo", "kl": None, "constraints": [bound]},
        rollout={"max_new_tokens": 6},
        training={"steps": 1},
        run={"rollouts_every": 1},
    )
    named, found = earned(result.folder)
    charged = (named["graded"] - 2.0 * named["length"]) / 3.0
    rows = [json.loads(line) for line in (result.folder / "rollouts/step_1.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == named["graded"].tolist()
    adjusted = load_file(result.folder / "rollouts/step_1.safetensors")["update/adjusted_rewards"]
    assert adjusted == pytest.approx(np.repeat(charged, [row["length"] for row in rows]), abs=1e-6)
    assert np.std(named["length"]) > 0
    assert found == pytest.approx(np.concatenate([z_scores(part) for part in charged.reshape(-1, 4)]), abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"constraints": [{"lagrange": ["lenght", 3.0]}]},
            "unknown reward function in a constraint: 'lenght' (did you mean 'length'?",
        ),
        (
            {"constraints": [{"lagrange": ["cost", 3.0]}], "shapers": ["missing_end"]},
            "unknown reward function in a constraint: 'cost' (allowed: graded, length, missing_end)",
        ),
        (
            {"filters": [{"mixed_outcomes": {"reward": "grade"}}]},
            "unknown reward in the filter mixed_outcomes: 'grade' (did you mean 'graded'? Allowed: graded, length, sum)",
        ),
    ],
)
def test_a_reward_that_the_recipe_does_not_have_is_refused_before_a_model_is_loaded(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    functions = [graded, {"name": length, "weight": 0.0}]
    with pytest.raises(InputError, match=f"^{re.escape(told)}"):
        trainer(tmp_path / "run", "no/such/model", reward=functions, algorithm={"base": "grpo", "kl": None} | changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("own", "dropped"), [({}, 2.0), ({"correct_above": 0.5}, 0.0)])
def test_dynamic_sampling_takes_answers_for_right_as_evaluation_does(
    own: dict[str, float], dropped: float, tmp_path: Path
) -> None:
    """Rewards of 0.4 and 0.6 by turns: mixed at 0.5, all wrong at the evaluation's 0.7."""

    def by_turns(completions: list[str], **_: Any) -> list[float]:
        return [0.4 + 0.2 * (number % 2) for number in range(len(completions))]

    result = run_rl(
        tmp_path / "run",
        reward=by_turns,
        algorithm={"base": "grpo", "filters": [{"mixed_outcomes": own}]},
        rollout={"max_attempts": 1},
        training={"steps": 1},
        evaluation={"data": ROWS[:2], "correct_above": 0.7, "max_new_tokens": 4},
    )
    assert metrics(result.folder)[-1]["groups/dropped"] == dropped


def z_scores(values: Any) -> Any:
    return (values - values.mean()) / (values.std() + 1e-6)


def earned(folder: Path) -> tuple[dict[str, Any], Any]:
    """Every reward by name and the advantage of every answer of the first step, which is the same for all its tokens."""
    rows = [json.loads(line) for line in (folder / "rollouts/step_1.jsonl").read_text().splitlines()]
    advantages = load_file(folder / "rollouts/step_1.safetensors")["update/advantages"]
    parts = np.split(advantages, np.cumsum([row["length"] for row in rows])[:-1])
    assert all(np.ptp(part) == 0 for part in parts)
    named = {name: np.array([row["rewards"][name] for row in rows]) for name in rows[0]["rewards"]}
    return named, np.array([part[0] for part in parts])


def test_gdpo_standardises_each_reward_by_itself_then_sums_and_whitens(tmp_path: Path) -> None:
    result = run_rl(
        tmp_path / "run",
        reward=[{"name": graded, "weight": 1.5}, {"name": length, "weight": 0.5}],
        algorithm={"base": "grpo", "kl": None, "advantage": "gdpo"},
        rollout={"max_new_tokens": 8},
        training={"steps": 1},
        run={"rollouts_every": 1},
    )
    named, found = earned(result.folder)
    total = np.zeros(8)
    for name, weight in (("graded", 1.5), ("length", 0.5)):
        total += weight * np.concatenate([z_scores(part) for part in named[name].reshape(-1, 4)])
    expected = (total - total.mean()) / total.std()
    assert found == pytest.approx(expected, abs=1e-3)
    assert np.std(named["length"]) > 0


# ---------------------------------------------------------------------------------------------------- schedules


def test_temperature_and_limit_go_from_start_to_end_as_scheduled(tmp_path: Path) -> None:
    """Five steps, linear: 1.2, 1.1, … 0.8; and 2, 4, … 10 tokens."""
    result = run_rl(
        tmp_path / "run",
        rollout={"temperature": 1.2, "temperature_end": 0.8, "max_new_tokens": 2, "max_new_tokens_end": 10},
        training={"steps": 5},
        run={"rollouts_every": 1},
    )
    rows = metrics(result.folder)
    assert [row["sampling/temperature"] for row in rows] == pytest.approx([1.2, 1.1, 1.0, 0.9, 0.8])
    assert [row["sampling/max_new_tokens"] for row in rows] == [2, 4, 6, 8, 10]
    assert [row["completions/max_length"] for row in rows] == [2, 4, 6, 8, 10]
    for step, row in enumerate(rows, start=1):
        (told,) = {
            tuple(json.loads(line)["segments"][0]["sampling"].values())
            for line in (result.folder / f"rollouts/step_{step}.jsonl").read_text().splitlines()
        }
        assert told == pytest.approx((row["sampling/temperature"], 1.0, 0, row["sampling/max_new_tokens"]))
        assert row["sampling/logprob_difference/max"] < 1e-5


def test_replayed_answers_are_scored_at_the_temperature_that_they_were_sampled_at(tmp_path: Path) -> None:
    """The weights stand still (a rate of 1e-12), so the policy's log-probabilities are the sampler's, of every step."""
    result = run_rl(
        tmp_path / "run",
        rollout={"temperature": 2.0, "temperature_end": 0.5},
        training={"steps": 3, "minibatches": 2, "replay": {"groups": 2, "age": 2}},
        optimizer={"learning_rate": 1e-12},
        run={"rollouts_every": 1},
    )
    assert [row["groups/replayed"] for row in metrics(result.folder)] == [0, 2, 2]
    for step in (1, 2, 3):
        columns = load_file(result.folder / f"rollouts/step_{step}.safetensors")
        sampled = columns["column/rollout_logprobs"]
        assert np.abs(columns["update/logprobs"] - sampled).max() < 1e-4
        assert np.abs(columns["update/old_logprobs"] - sampled).max() < 1e-4
    lines = (result.folder / "rollouts/step_3.jsonl").read_text().splitlines()
    assert {json.loads(line)["segments"][0]["sampling"]["temperature"] for line in lines} > {0.5}


def test_replayed_answers_are_shaped_by_the_limit_that_they_were_sampled_under(tmp_path: Path) -> None:
    """Cut off at 4 and then at 8 tokens, the last half of which is punished from 0 to -1: a full answer loses 1 at either."""
    result = run_rl(
        tmp_path / "run",
        algorithm={"base": "grpo", "kl": None, "shapers": [{"soft_overlong": {"cache": 0.5}}]},
        rollout={"max_new_tokens": 4, "max_new_tokens_end": 8},
        training={"steps": 2, "replay": {"groups": 2, "age": 2}},
        run={"rollouts_every": 1},
    )
    rows = [json.loads(line) for line in (result.folder / "rollouts/step_2.jsonl").read_text().splitlines()]
    full = {(row["length"], row["shaping"][0]["value"]) for row in rows if row["end"] == "length"}
    assert full == {(4, -1.0), (8, -1.0)}


@pytest.mark.parametrize(
    ("rollout", "says"),
    [
        ({"schedule": "cosine"}, "schedule cosine has no effect without temperature_end or max_new_tokens_end"),
        ({"temperature_end": 0.5, "schedule": "constant"}, "have no effect with the schedule constant"),
        ({"max_new_tokens_end": 64}, "64 leaves no room for a prompt"),
    ],
)
def test_a_schedule_that_does_nothing_or_does_not_fit_is_refused(rollout: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        trainer(tmp_path / "run", rollout=rollout)


# ---------------------------------------------------------------------------------------------------- staleness


def test_tokens_are_as_stale_as_the_updates_since_they_were_sampled(tmp_path: Path) -> None:
    """Two updates a step; half of each later batch is the step before's."""
    result = run_rl(tmp_path / "run", training={"steps": 3, "minibatches": 2, "replay": {"groups": 2, "age": 1}})
    rows = metrics(result.folder)
    assert [row["staleness/mean"] for row in rows] == [0.0, 1.0, 1.0]  # 0 of the fresh half, 2 of the other
    assert [row["staleness/max"] for row in rows] == [0.0, 2.0, 2.0]


def test_every_metric_that_a_run_logs_is_described(tmp_path: Path) -> None:
    from tiny_runs import EXAMPLES

    old = {"estimator": "full", "anchor": "old", "coefficient": 0.1, "controller": {"schulman": {"target": 0.01}}}
    result = run_rl(
        tmp_path / "run",
        reward=[graded, {"name": length, "weight": 0.0}],
        algorithm={
            "base": "grpo",
            "kl": [old, {"estimator": "full"}],
            "constraints": [{"lagrange": {"reward": "length", "limit": 3.0}}],
        },
        rollout={"temperature_end": 0.9, "max_new_tokens_end": 5},
        training={"steps": 2, "passes": 2, "replay": {"groups": 2, "age": 2}},
        text={"data": EXAMPLES},
    )
    logged = {name for row in metrics(result.folder) for name in row} - {"step"}
    assert {name for name in logged if find_metric(name) is None} == set()
