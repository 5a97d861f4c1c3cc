"""Environments and other parts by name, from the command line: a user's own, and those that nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest_cli import FAST_RL
from test_cli_bad_input import refused

from reinlm.parts import PARTS
from reinlm.runs.declarations import describe
from reinlm.runs.metrics import read_metrics

MINE = '''
from reinlm.config import Config
from reinlm.environments import StepResult
from reinlm.parts import part
from reinlm.schedules import schedule

class Twice:
    """Two turns; the second answer is worth its length."""

    def reset(self, task):
        self.turn = 0

    def step(self, action):
        self.turn += 1
        if self.turn == 2:
            return StepResult(reward=float(len(action.token_ids)), terminated=True)
        return StepResult("1+", reward={"first": 0.5})

@part("environment", "twice_of_a_test")
class TwiceConfig(Config):
    def build(self):
        return Twice()

@schedule("square_of_a_test")
def square(done):
    return (1.0 - done) ** 2
'''


@pytest.fixture
def run(reinlm, place):
    (place / "mine.py").write_text(MINE)

    def call(*words: str, model: str = "model"):
        given = ("run.rollouts_every=1", "-m", model, "-d", "d.jsonl", "-o", "out", "-q", "--steps", "2")
        return reinlm("rl", *FAST_RL, "rollout.max_new_tokens=3", *given, *words)

    yield call
    PARTS["environment"].pop("twice_of_a_test", None)


def rows(step: int = 1) -> list[dict]:
    return [json.loads(line) for line in Path(f"out/rollouts/step_{step}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "words",
    [["--environment", "mine.py:Twice"], ["-e", "twice_of_a_test", "imports=[mine.py]"]],
    ids=["file", "name"],
)
def test_an_environment_of_ones_own_gives_the_rewards(run, words):
    outcome = run(*words)
    assert outcome.code == 0, outcome.err
    whole = [row for row in rows() if row["terminated"]]
    assert whole
    assert {row["turns"] for row in whole} == {2}
    assert {tuple(row["rewards"]) for row in whole} == {("first", "Twice")}
    record = read_metrics(Path("out/metrics.jsonl"))[-1]
    assert record["rewards/first/mean"] == 0.5
    assert record["episodes/mean_turns"] == pytest.approx(np.mean([row["turns"] for row in rows(2)]))
    trained = [row for step in (1, 2) for row in rows(step) if row["reward"] is not None]
    assert record["num_tokens"] == sum(row["length"] for row in trained)  # an answer without a reward reaches no loss


def test_rewards_of_functions_and_of_the_environment_add_up(run):
    assert run("-e", "mine.py:Twice", "-r", "exact_match").code == 0
    assert {tuple(row["rewards"]) for row in rows() if row["terminated"]} == {("first", "Twice", "exact_match")}
    assert all(row["reward"] == pytest.approx(sum(row["rewards"].values())) for row in rows())


def test_a_schedule_of_ones_own_is_known_by_its_name(run):
    words = ("imports=[mine.py]", "rollout.temperature_end=0.5", "rollout.schedule=square_of_a_test")
    assert run(*words, "-r", "exact_match").code == 0
    assert [record["sampling/temperature"] for record in read_metrics(Path("out/metrics.jsonl"))[-2:]] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("words", "culprits"),
    [
        (["-e", "gues"], ["unknown environment 'gues'", "question"]),
        (["-e", "question"], ["'reward' is required"]),
        (["-e", "mine.py:Thrice"], ["environment 'mine.py:Thrice': mine.py has no class 'Thrice'"]),
        (["-e", "other.py:Twice"], ["no such file: other.py"]),
        (
            ["environment={twice_of_a_test: {turns: 3}}", "imports=[mine.py]"],
            ["environment twice_of_a_test", "'turns'"],
        ),
        (["-r", "math", "rollout.engine=vlm"], ["unknown engine 'vlm'", "in_process"]),
        (["-r", "math", "optimizer.name=adamm"], ["unknown optimizer 'adamm'", "adamw"]),
        (["-r", "math", "optimizer.schedule=cosin"], ["optimizer.schedule", "unknown schedule 'cosin'", "cosine"]),
        (["-r", "math", "rollout.schedule=cosin"], ["rollout.schedule", "unknown schedule 'cosin'", "cosine"]),
        (["-r", "math", "run.tensorboard=null", "run.trackers=[tensorbord]"], ["tracker 'tensorbord'", "tensorboard"]),
        (["-r", "math", "-a", "gpro"], ["unknown algorithm 'gpro'", "grpo"]),
        (["-r", "math", "algorithm={base: grpo, gate: clop}"], ["gate", "'clop'", "clip"]),
        (["-r", "math", "imports=[nowhere.py]"], ["imports: no such file: nowhere.py"]),
        (["-r", "math", "imports=[reinlm.nowhere]"], ["imports: cannot import reinlm.nowhere"]),
        (["-r", "math", "imports=[broken.py]"], ["imports: broken.py raises ZeroDivisionError", "(broken.py:2)"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[-1] else None,
)
def test_what_nobody_knows_is_named_before_a_model_is_loaded(run, place, words, culprits):
    (place / "broken.py").write_text("import math\n1 / 0\n")
    refused(run(*words, model="no_such_model"), *culprits)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_every_metric_of_a_run_is_declared(run, algorithm):
    assert run("-r", "exact_match", "-a", algorithm, "evaluation.data={held_out: d.jsonl}").code == 0
    logged = {name for record in read_metrics(Path("out/metrics.jsonl")) for name in record} - {"step"}
    assert {name for name in logged if describe(name) is None} == set()
    assert {"staleness/mean", "ratio/moved", "num_tokens", "eval/held_out/accuracy"} <= logged


def test_the_help_of_metrics_tells_one_and_writes_the_page(reinlm):
    assert reinlm("metrics", "eval/gsm8k/pass@8").out.splitlines()[:2] == ["eval/gsm8k/pass@8", "unit     fraction"]
    refused(reinlm("metrics", "rato/mean"), "unknown metric 'rato/mean'", "did you mean 'ratio/mean'?")
    refused(reinlm("metrics"), "either a NAME or --page")
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert reinlm("metrics", "--page").out == page.read_text()
