"""Environments and other parts by name, from the command line: a user's own, and those that nobody knows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest_cli import FAST_RL
from test_cli_bad_input import refused

from reinlm.metrics import LIBRARY
from reinlm.parts import PARTS
from reinlm.runs.declarations import find_metric
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
        (["-e", "mine.py:Thrice"], ["environment 'mine.py:Thrice': mine.py has no 'Thrice'"]),
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


BAD = """
import dataclasses
from reinlm.config import Config
from reinlm.environments import StepResult
from reinlm.parts import part
from reinlm.rollouts.engines import InProcessConfig

class Sits:
    def reset(self, task): return None

class Acts(Sits):
    def step(self, action): return StepResult(reward=1.0, terminated=True)

class Sized(Acts):
    def __init__(self, size): self.size = size

class Divides(Acts):
    def step(self, action): return 1 / 0

class Raises(Acts):
    def __init__(self): raise OSError("no board")

class Four(Acts):
    def step(self, action): return None, 1.0, True, False

class Infinite(Acts):
    def step(self, action): return StepResult(reward=float("inf"), terminated=True)

class Huge(Acts):
    def step(self, action): return StepResult(reward={"a": 1e308, "b": 1e308}, terminated=True)

def nothing(): return None

number = 3

@part("environment", "no_build_of_a_test")
class NoBuild(Config):
    pass

@part("engine", "bad_of_a_test")
class BadConfig(InProcessConfig):
    fault: str

    def build(self, policy, **options):
        if self.fault == "build":
            return policy.no_such_thing
        return object() if self.fault == "object" else Bad(super().build(policy, **options), self.fault)

class Bad:
    def __init__(self, inner, fault): self.inner, self.fault = inner, fault
    def __getattr__(self, name): return getattr(self.inner, name)

    def update(self, weights, version):
        if self.fault == "update":
            raise KeyError("weights")
        self.inner.update(weights, version)

    async def generate(self, request):
        found = await self.inner.generate(request)
        match self.fault:
            case "raises": raise ValueError("no\\nserver")
            case "type": return found.token_ids
            case "length": return dataclasses.replace(found, columns={"version": found.columns["version"][1:]})
"""


@pytest.fixture
def bad(run, place):
    (place / "bad.py").write_text(BAD)
    yield run
    PARTS["environment"].pop("no_build_of_a_test", None)
    PARTS["engine"].pop("bad_of_a_test", None)


@pytest.mark.parametrize(
    ("environment", "culprits"),
    [
        ("Sits", ["environment 'bad.py:Sits': Sits has no method 'step'"]),
        ("number", ["environment 'bad.py:number' is of type int, not a class"]),
        ("Sized", ["environment 'bad.py:Sized'", "missing a required argument: 'size'", "{key: value}"]),
        ("nothing", ["environment nothing: NoneType has no method 'reset'"]),
        ("Raises", ["environment Raises cannot be made for task d.jsonl:", "OSError: no board (", "bad.py:21)"]),
        ("Divides", ["environment Divides, task d.jsonl:", "step raised ZeroDivisionError", "bad.py:18)"]),
        ("Four", ["step returned a tuple of 4, not (observation, reward, terminated, truncated, info)"]),
        ("Infinite", ["environment Infinite, task d.jsonl:", "step returned a reward of inf, which is not finite"]),
        ("Huge", ["its rewards are too large to be added up: a 1e+308 x 1, b 1e+308 x 1"]),
    ],
)
def test_an_environment_that_cannot_be_used_is_named_in_one_line(bad, environment, culprits):
    refused(bad("-e", f"bad.py:{environment}", "rollout.stop_strings=['0','1','2','3']"), *culprits, written=None)


def test_a_part_without_build_is_named(bad):
    refused(bad("-e", "no_build_of_a_test", "imports=[bad.py]"), "NoBuild has no method 'build'")


@pytest.mark.parametrize(
    ("fault", "culprits"),
    [
        ("build", ["build raised AttributeError", "no_such_thing", "bad.py:46)"]),
        ("object", ["object has no method 'generate'"]),
        ("update", ["update raised KeyError: 'weights' (", "bad.py:55)"]),
        ("raises", ["generate raised ValueError: no server (", "bad.py:61)"]),
        ("type", ["generate returned a ndarray, not a Completion for request '1/0/0/d.jsonl:"]),
        ("length", ["generate raised ValueError: the column 'version' has shape (", "tokens (", "bad.py:63)"]),
    ],
)
def test_an_engine_that_cannot_be_used_is_named_in_one_line(bad, fault, culprits):
    engine = f"rollout.engine={{bad_of_a_test: {{fault: {fault}}}}}"
    refused(bad("-r", "exact_match", "imports=[bad.py]", engine), "engine bad_of_a_test", *culprits, written=None)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_every_metric_of_a_run_is_declared(run, algorithm):
    assert run("-r", "exact_match", "-a", algorithm, "evaluation.data={held_out: d.jsonl}").code == 0
    logged = {name for record in read_metrics(Path("out/metrics.jsonl")) for name in record} - {"step"}
    assert {name for name in logged if find_metric(name) is None} == set()
    assert {"staleness/mean", "ratio/moved", "num_tokens", "eval/held_out/accuracy"} <= logged


def test_metrics_lists_all_tells_one_and_writes_the_page(reinlm):
    assert reinlm("metrics", "eval/gsm8k/pass@8").out.splitlines()[:2] == ["eval/gsm8k/pass@8", "unit     fraction"]
    refused(reinlm("metrics", "rato/mean"), "unknown metric 'rato/mean'", "did you mean 'ratio/mean'?")
    refused(reinlm("metrics", "entropy", "--page"), "--page prints the whole page")
    listed = reinlm("metrics").out
    names = [line.partition(" (")[0] for line in listed.splitlines() if not line.startswith("    ")]
    assert names == [metric.name for metric in LIBRARY]
    assert listed.startswith("entropy (nats per token)\n    entropy of the policy at the scored tokens\n")
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert reinlm("metrics", "--page").out == page.read_text()
