"""What the command line prints runs as it stands, defaults fit the model, and one thread computes unless a user says more."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from reinlm.cli.words import recipe_and_overrides
from reinlm.program import command_line
from reinlm.quickstart import next_commands

pytestmark = pytest.mark.no_cover

THREADS = """import torch


def threads(completions, **columns):
    return [float(torch.get_num_threads())] * len(completions)
"""


@pytest.mark.parametrize(
    "words",
    [
        *(
            f"{verb} --help"
            for verb in ("rl", "sft", "eval", "compare", "keys", "create-model", "classical", "completion")
        ),
        "keys grup_size",
        "compare runs/only",
    ],
)
def test_commands_in_help_and_hints_are_written_as_they_can_be_typed(words, place, monkeypatch, reinlm):
    """Where the shell does not find `reinlm`, they begin with the path of the program."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (place / "runs" / "only").mkdir(parents=True)
    (place / "runs" / "only" / "run.json").write_text('{"schema_version": 1, "kind": "rl"}')
    outcome = reinlm(*words.split())
    called = re.findall(r"(?:^ *|`|: )([^\s`]*reinlm) [a-z]", outcome.out + outcome.err, re.MULTILINE)
    assert called
    assert {*called} == {command_line()}
    assert os.access(command_line(), os.X_OK)


def test_the_commands_printed_after_quickstart_run_as_they_stand(place, material, reinlm):
    folder = place / "runs" / "quick start"
    for stage in ("sft", "rl"):
        (folder / stage / "checkpoints").mkdir(parents=True)
        (folder / stage / "checkpoints" / "last").symlink_to(material / "model")
    (folder / "data").mkdir()
    for name in ("train", "validation"):
        (folder / "data" / f"{name}.jsonl").symlink_to(material / "d.jsonl")
    generate, rl = next_commands(folder.relative_to(place))
    done = subprocess.run(generate, shell=True, capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    words = shlex.split(rl)[len(shlex.split(command_line())) :]
    cut = reinlm(*words, "-q", "training.steps=1", "rollout.batch_size=16", "run.tensorboard=false")
    assert cut.code == 0, cut.err


def test_limits_that_nobody_gave_fit_the_context_of_the_model(reinlm):
    said = reinlm("generate", "-m", "model", "-p", "123+321=")
    assert said.code == 0, said.err
    scored = reinlm("eval", "-m", "model", "-d", "d.jsonl", "data.limit=4", "-r", "exact_match", "--json")
    assert scored.code == 0, scored.err
    refused = reinlm("generate", "-m", "model", "-p", "123+321=", "--max-new-tokens", "256")
    assert (refused.code, len(refused.errors)) == (2, 1)


@pytest.mark.parametrize(
    ("setting", "expected"), [({}, 1.0), ({"OMP_NUM_THREADS": "2"}, 2.0)], ids=["default", "given"]
)
@pytest.mark.cli
def test_one_thread_computes_unless_the_environment_says_how_many(place, setting, expected):
    (place / "count.py").write_text(THREADS)
    env = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    words = (
        "eval",
        "-m",
        "model",
        "-d",
        "d.jsonl",
        "data.limit=2",
        "-r",
        "count.py:threads",
        "reward.time_limit=null",
        "--json",
    )
    call = [sys.executable, "-m", "reinlm.cli", *words, "--max-new-tokens", "2"]
    done = subprocess.run(call, cwd=place, env={**env, **setting}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f'"rewards/threads": {expected}' in done.stdout


def test_a_recipe_may_stand_anywhere_among_the_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text("seed: 1\n")
    assert recipe_and_overrides(["a.b=1", "r.yaml", "c=2"], "rl") == ("r.yaml", ["a.b=1", "c=2"])


def test_the_report_of_a_run_is_written_again_where_it_is(rl, reinlm):
    assert rl("--steps", "1").code == 0
    Path("out/report.html").unlink()
    said = reinlm("report", "out")
    assert (said.code, said.out.strip()) == (0, "out/report.html")
    assert Path("out/report.html").is_file()


def test_settings_of_a_classical_algorithm_are_shown_with_what_is_given(reinlm):
    said = reinlm("classical", "PPO", "learning_rate=0.125", "--settings", "--json")
    assert (said.code, '"learning_rate": 0.125' in said.out, '"algorithm": "ppo"' in said.out) == (0, True, True)
    shown = reinlm("classical", "ppo", "--settings").out
    assert "[64, 64]" in shown  # as it can be typed: hidden=[64,64]
    assert "constant | linear" in shown


@pytest.mark.parametrize("name", ["GRPO", "Dr-GRPO", "dr. grpo", "REINFORCE++"])
def test_names_of_algorithms_differ_by_more_than_case_and_hyphens(reinlm, name):
    assert reinlm("algorithms", name, "--json").code == 0


@pytest.mark.parametrize("verb", ["rl", "sft", "eval", "generate"])
def test_help_shows_the_defaults_of_options_and_of_keys(reinlm, verb):
    said = reinlm(verb, "--help").out
    assert "[default: " in said
    assert "max_new_tokens=" in said
