"""Natural mistakes with run folders: comparing, queues of seeds, resuming, reports. One line that says what to write instead."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import reinlm
from reinlm.cli import main
from reinlm.insight.report import write_report
from reinlm.runs.folder import RunFolder
from reinlm.runs.metrics import MetricsLog
from tiny_runs import EXAMPLES, saved, tiny

RECIPE = """
model: model
data: d.jsonl
reward: exact_match
rollout: {group_size: 4, batch_size: 8, max_new_tokens: 4}
training: {steps: 1}
run: {tensorboard: false}
"""


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Call = Callable[..., Outcome]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def place(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model, data, a recipe, runs of two kinds, and folders that are no runs."""
    (tmp_path / "model").symlink_to(model)
    (tmp_path / "d.jsonl").write_text(
        "".join(json.dumps({**row, "answer": row["completion"]}) + "\n" for row in EXAMPLES)
    )
    (tmp_path / "grpo.yaml").write_text(RECIPE)
    (tmp_path / "other.yaml").write_text(RECIPE + "algorithm: dapo\n")
    for name, kind, seed in (("a", "rl", 0), ("b", "rl", 1), ("tuned", "sft", 0)):
        with RunFolder.create(tmp_path / "runs" / name, kind=kind, config={"seed": seed}, command="x") as run:
            MetricsLog(run.path).append(1, {"reward": 0.5, "loss": 1.0})
            run.write_summary({"ended": "finished", "steps": 1})
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "text.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(place: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    def command(*words: str) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([*words])
        return Outcome(int(stop.value.code or 0), *capfd.readouterr())

    return command


RL = ["rl", "grpo.yaml", "-q"]
MISTAKES: dict[str, tuple[list[str], list[str]]] = {
    "nothing to compare": (["compare"], ["nothing to compare", "give run folders, or recipes"]),
    "a folder that is not there": (
        ["compare", "runs/a", "runs/z"],
        ["runs/z is not a run folder: there is no such folder"],
    ),
    "a folder that is no run": (
        ["compare", "runs/a", "notes"],
        ["notes is not a run folder", "a run folder holds run.json"],
    ),
    "an empty folder": (["compare", "empty"], ["empty is not a run folder"]),
    "a single run": (["compare", "runs/a"], ["at least two runs, and runs/a is all"]),
    "a run with itself": (["compare", "runs/a", "runs/../runs/a"], ["runs/../runs/a is given twice"]),
    "a run and the folder of it": (["compare", "runs/a", "runs"], ["runs/a is given twice"]),
    "runs of different kinds": (
        ["compare", "runs/a", "runs/tuned"],
        ["different kinds", "runs/a (rl)", "runs/tuned (sft)"],
    ),
    "a metric that no run has": (
        ["compare", "runs/a", "runs/b", "--metric", "rewards"],
        ["unknown metric of these runs 'rewards'", "did you mean 'reward'?"],
    ),
    "a page in a folder that is not there": (
        ["compare", "runs/a", "runs/b", "-o", "no/page.html"],
        ["cannot write no/page.html"],
    ),
    "a page that is a folder": (["compare", "runs/a", "runs/b", "-o", "empty"], ["cannot write empty: not a file"]),
    "seeds of run folders": (
        ["compare", "runs/a", "runs/b", "--seeds", "3"],
        ["seeds 3 has no effect: runs/a is no recipe"],
    ),
    "a grid of run folders": (
        ["compare", "runs/a", "runs/b", "--grid", "seed=1,2"],
        ["grid ['seed=1,2'] has no effect"],
    ),
    "an override of run folders": (["compare", "runs/a", "runs/b", "seed=1"], ["changes ['seed=1'] has no effect"]),
    "a recipe beside a run": (
        ["compare", "grpo.yaml", "runs/a"],
        ["runs/a is no recipe, and recipes are given beside it"],
    ),
    "a recipe that is not there": (["compare", "gone.yaml", "-o", "cmp"], ["no such recipe: gone.yaml"]),
    "no seeds at all": (
        ["compare", "grpo.yaml", "--seeds", "0", "-o", "cmp"],
        ["seeds is 0, and must be a whole number from 1"],
    ),
    "rl without seeds": ([*RL, "--seeds", "0", "-o", "cmp"], ["seeds is 0, and must be a whole number from 1"]),
    "negative seeds": ([*RL, "--seeds", "-1", "-o", "cmp"], ["seeds is -1"]),
    "a grid key that does not exist": (
        ["compare", "grpo.yaml", "--grid", "rollout.grop_size=2,4", "-o", "cmp"],
        ["unknown key 'rollout.grop_size'", "did you mean 'rollout.group_size'?"],
    ),
    "a grid value that cannot be": (
        ["compare", "grpo.yaml", "--grid", "optimizer.learning_rate=1e-6,fast", "-o", "cmp"],
        ["optimizer.learning_rate", "'fast'"],
    ),
    "an algorithm that does not exist": (
        ["compare", "grpo.yaml", "--grid", "algorithm=grpo,dappo", "-o", "cmp"],
        ["dappo", "did you mean 'dapo'?"],
    ),
    "an axis without values": (
        ["compare", "grpo.yaml", "--grid", "algorithm", "-o", "cmp"],
        ["the axis 'algorithm'"],
    ),
    "an axis with an empty value": (
        ["compare", "grpo.yaml", "--grid", "algorithm=grpo,", "-o", "cmp"],
        ["cannot read the axis"],
    ),
    "a value twice": (
        ["compare", "grpo.yaml", "--grid", "algorithm=grpo,grpo", "-o", "cmp"],
        ["gives algorithm a value twice"],
    ),
    "a key as axis and override": (
        ["compare", "grpo.yaml", "--grid", "algorithm=grpo,dapo", "algorithm=rloo", "-o", "cmp"],
        ["algorithm is given twice"],
    ),
    "seeds as an axis": (["compare", "grpo.yaml", "--grid", "seed=0,1", "-o", "cmp"], ["seed is no axis", "seeds=N"]),
    "the same recipe twice": (
        ["compare", "grpo.yaml", "grpo.yaml", "-o", "cmp"],
        ["two runs of the grid would have the folder"],
    ),
    "another verb": (
        ["compare", "grpo.yaml", "--verb", "ppo", "-o", "cmp"],
        ["unknown verb of a comparison 'ppo'", "rl, sft"],
    ),
    "an output that is a folder of other things": (
        ["compare", "grpo.yaml", "-o", "notes"],
        ["folder notes exists and holds no queue of runs"],
    ),
    "an output that is a run": ([*RL, "--seeds", "2", "-o", "runs/a"], ["folder runs/a exists and holds no queue"]),
    "an output that is a file": ([*RL, "--seeds", "2", "-o", "d.jsonl"], ["d.jsonl is a file, not a folder"]),
    "resume with seeds": (
        [*RL, "--seeds", "2", "--resume", "-o", "cmp"],
        ["resume cannot be given with seeds", "goes on by itself"],
    ),
    "resume without a folder": ([*RL, "--resume"], ["--resume needs the run's folder"]),
    "resume of a folder that is no run": (
        [*RL, "--resume", "-o", "notes"],
        ["nothing to resume: notes is not a run folder"],
    ),
    "resume of a run of another kind": ([*RL, "--resume", "-o", "runs/tuned"], ["holds a run of kind 'sft', not 'rl'"]),
    "resume of a queue": ([*RL, "--resume", "-o", "runs"], ["nothing to resume: runs is not a run folder"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_that_names_it_and_leaves_everything_as_it_was(
    call: Call, place: Path, name: str
) -> None:
    words, culprits = MISTAKES[name]
    before = sorted(path.relative_to(place) for path in place.rglob("*"))
    outcome = call(*words)
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.err.count("error: ") == 1
    assert outcome.err.count("hint: ") <= 1
    for culprit in culprits:
        assert culprit in outcome.err
    assert sorted(path.relative_to(place) for path in place.rglob("*")) == before


def test_a_finished_run_that_is_resumed_says_how_it_goes_on(call: Call, place: Path) -> None:
    assert call(*RL, "-o", "out").code == 0
    again = call("rl", "--resume", "-o", "out")
    assert again.code == 0
    assert "all 1 steps are made; --steps N (training.steps) with a larger N goes on" in again.out + again.err
    shorter = call(*RL, "--resume", "-o", "out", "--steps", "3")
    assert shorter.code == 0
    back = call(*RL, "--resume", "-o", "out", "--steps", "2")
    assert back.code == 2
    assert "has 3 steps already" in back.err


@pytest.mark.parametrize(("folder", "said"), [("empty", "a run folder holds run.json"), ("gone", "no such folder")])
def test_a_report_of_what_is_no_run_is_refused(place: Path, folder: str, said: str) -> None:
    with pytest.raises(reinlm.InputError, match="is not a run folder") as caught:
        write_report(folder)
    assert said in str(caught.value)


def test_python_says_the_same(place: Path) -> None:
    with pytest.raises(reinlm.InputError, match=r"seeds is 1\.5, and must be a whole number from 1 on"):
        reinlm.rl(recipe="grpo.yaml", seeds=1.5, output="cmp")  # type: ignore[call-overload]
    with pytest.raises(reinlm.InputError, match="seeds needs a model that each run loads for itself"):
        reinlm.rl(tiny(), "d.jsonl", reward="exact_match", seeds=2, output="cmp")
    with pytest.raises(reinlm.InputError, match="callbacks cannot be given with seeds"):
        reinlm.rl(recipe="grpo.yaml", callbacks=[reinlm.Callback()], seeds=2, output="cmp")
    with pytest.raises(reinlm.InputError, match="did you mean 'reward'"):
        reinlm.compare("runs/a", "runs/b", metrics="rewrd")
    assert not (place / "cmp").exists()
