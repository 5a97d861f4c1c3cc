"""Settings from the command line: changes of a named algorithm, several files, parts of eval and generate, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli_bad_input import refused

import reinlm as library
from reinlm.algorithms import resolve
from reinlm.config import read_recipe

TWICE = '''
from reinlm.environments import StepResult


class Twice:
    """Two answers; each is worth its length."""

    name = "twice"

    def reset(self, task):
        self.turn = 0

    def step(self, action):
        self.turn += 1
        return StepResult("1+", reward=float(len(action.token_ids)), terminated=self.turn == 2)
'''


@pytest.mark.parametrize(
    ("words", "recipe", "base"),
    [
        (["-a", "dapo"], "", "dapo"),
        ([], "algorithm: dapo\n", "dapo"),
        ([], "algorithm: {base: dapo}\n", "dapo"),
        ([], "", "grpo"),
    ],
    ids=["flag", "recipe", "mapping", "default"],
)
def test_a_choice_is_changed_on_top_of_a_named_algorithm(reinlm, place, words, recipe, base):
    (place / "r.yaml").write_text(f"model: model\ndata: d.jsonl\nreward: exact_match\n{recipe}")
    given = ("rollout.group_size=2", "rollout.batch_size=4", "rollout.max_new_tokens=3", "run.tensorboard=false")
    outcome = reinlm(
        "rl", "r.yaml", "-q", "-o", "out", "--steps", "1", *given, *words, "algorithm.kl.coefficient=0.125"
    )
    assert outcome.code == 0, outcome.err
    chosen = resolve(read_recipe("out/config.yaml")["algorithm"])
    assert chosen.active_kl[0].coefficient == 0.125
    assert chosen == library.algorithm(base, kl={"coefficient": 0.125})


def test_several_files_are_one_set_of_data(rl, place):
    lines = (place / "d.jsonl").read_text().splitlines(keepends=True)
    (place / "a.jsonl").write_text("".join(lines[:2]))
    (place / "b.jsonl").write_text("".join(lines[2:4]))
    assert rl("data=[a.jsonl,b.jsonl]", "--steps", "1", "run.rollouts_every=1").code == 0
    rows = [json.loads(line) for line in Path("out/rollouts/step_1.jsonl").read_text().splitlines()]
    assert {row["task_id"].split(":")[0] for row in rows} == {"a.jsonl", "b.jsonl"}


def test_eval_and_generate_take_an_environment_and_limits(reinlm, place):
    (place / "mine.py").write_text(TWICE)
    how = ("-m", "model", "-e", "mine.py:Twice", "rollout.max_turns=2", "--max-new-tokens", "4", "--json")
    scored = reinlm("eval", *how, "-d", "d.jsonl", "rollout.stop_strings=[0,1,2,3,4,5,6,7,8,9]")
    assert scored.code == 2  # YAML reads digits as numbers, and a stop string is text
    scored = reinlm("eval", *how, "-d", "d.jsonl", 'rollout.stop_strings="1"')
    assert scored.code == 0, scored.err
    assert "rewards/twice" in json.loads(scored.out)
    said = reinlm("generate", *how, "-p", "1+1=")
    assert said.code == 0, said.err
    assert json.loads(said.out)["prompt"] == "1+1="


@pytest.mark.parametrize(
    ("words", "culprits"),
    [
        (["resolved.x=1"], ["'resolved' cannot be set"]),
        (["-o", "/proc/x"], ["/proc/x cannot be written"]),
        (["imports=nowhere.py"], ["imports: no such file: nowhere.py"]),
        (["imports=5"], ["imports: cannot read 5"]),
        (["environment={question: {}}", "reward=null"], ["'reward' is required"]),
        (["training.steps=2", "training.epochs=3"], ["training.steps 2 and training.epochs 3"]),
        (["rollout.max_attempts=3"], ["rollout.max_attempts 3 has no effect"]),
        (["optimizer.final_fraction=0.5"], ["final_fraction 0.5 has no effect"]),
        (["rollout.max_turns=2"], ["rollout.max_turns 2 has no effect"]),
    ],
    ids=lambda value: value[0] if "=" in value[0] else None,
)
def test_what_sets_nothing_or_cannot_be_used_is_named_before_a_model_is_loaded(rl, words, culprits):
    refused(rl(*words, model="no_such_model"), *culprits)


@pytest.mark.parametrize("words", [["eval", "-d", "d.jsonl"], ["generate", "-p", "1+1="]], ids=lambda words: words[0])
def test_eval_and_generate_name_parts_that_nobody_knows(reinlm, words):
    refused(reinlm(*words, "-m", "none", "-e", "gues"), "unknown environment 'gues'", written=None)
    refused(reinlm(*words, "-m", "none", "rollout.engine=vlm"), "unknown engine 'vlm'", written=None)
    refused(reinlm(*words, "-m", "none", "imports=no.py"), "imports: no such file: no.py", written=None)


def test_eval_replaces_an_existing_output_only_when_it_is_told_to(reinlm, place):
    (place / "answers.jsonl").write_text("mine\n")
    (place / "folder").mkdir()
    words = ("eval", "-m", "none", "-d", "d.jsonl", "-r", "exact_match")
    before = (place / "d.jsonl").read_bytes()
    refused(reinlm(*words, "output=d.jsonl"), "d.jsonl exists already", "--overwrite", written=None)
    refused(reinlm(*words, "-o", "folder", "--overwrite"), "folder exists already", written=None)
    refused(reinlm(*words, "--overwrite"), "overwrite has no effect without an output", written=None)
    assert (place / "d.jsonl").read_bytes() == before
    whole = ("eval", "-m", "model", "-d", "d.jsonl", "data.limit=2", "-r", "exact_match", "--max-new-tokens", "2")
    replaced = reinlm(*whole, "-o", "answers.jsonl", "--overwrite")
    assert replaced.code == 0, replaced.err
    assert len((place / "answers.jsonl").read_text().splitlines()) == 2
