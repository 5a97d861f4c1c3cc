"""The verbs as a user calls them."""

from __future__ import annotations

import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from conftest_cli import FAST_RL, process

import reinlm as library
from reinlm.config import read_recipe
from reinlm.runs import without_clocks

pytestmark = pytest.mark.no_cover

VERBS = ("quickstart", "create-model", "sft", "reward", "rl", "eval", "generate", "bench")


def records(folder: str) -> list[dict]:
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


# ------------------------------------------------------------------------------------------------ help


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(reinlm, verb):
    outcome = reinlm(verb, "--help")
    assert outcome.code == 0
    assert "--debug" in outcome.out


def test_bare_and_version_calls_say_what_there_is(reinlm):
    bare = reinlm()
    assert bare.code == 0
    assert all(verb in bare.out for verb in VERBS)
    assert reinlm("--version").out.strip() == library.__version__


def test_the_commands_stand_in_the_order_of_their_first_use_with_whole_summaries(reinlm, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = reinlm("--help").out.partition("Commands:\n")[2].splitlines()
    names, summaries = zip(*(row.split(maxsplit=1) for row in rows), strict=True)
    assert names == (
        "quickstart", "create-model", "sft", "reward", "dpo", "rl", "rft", "eval", "generate", "compare", "report",
        "bench", "vllm-serve", "classical", "algorithms", "keys", "metrics", "completion",
    )  # fmt: skip
    assert [text for text in summaries if len(text) >= 60 or text.endswith("...")] == []


@pytest.mark.cli
def test_help_is_instant_and_imports_nothing_heavy():
    probe = (
        "import sys; from reinlm.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "reinlm.cli", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert statistics.median(seconds) < 0.5


# ------------------------------------------------------------------------------------------------ training


def test_sft_then_rl_then_eval_then_generate(reinlm, rl, place):
    tuned = reinlm(
        "sft", "-m", "model", "-d", "d.jsonl", "-o", "tuned", "--steps", "3", "training.batch_size=8", "-q",
        "--eval-data", "d.jsonl", "evaluation.data.eval.limit=16", "run.tensorboard=false",
    )  # fmt: skip
    assert tuned.code == 0, tuned.err
    assert "tuned/checkpoints/last" in tuned.out
    losses = [record["eval/eval/loss"] for record in records("tuned") if "eval/eval/loss" in record]
    assert len(losses) == 2
    assert losses[1] < losses[0]
    improved = rl("-a", "grpo", "--steps", "2", model="tuned/checkpoints/last")
    assert improved.code == 0, improved.err
    assert [record["step"] for record in records("out")] == [1, 2]
    assert (place / "out" / "report.html").stat().st_size > 20_000
    scored = reinlm(
        "eval", "-m", "out/checkpoints/last", "-d", "d.jsonl", "-r", "exact_match", "--samples", "2",
        "--max-new-tokens", "6", "--json", "-o", "answers.jsonl",
    )  # fmt: skip
    assert scored.code == 0, scored.err
    metrics = json.loads(scored.out)
    assert 0.0 <= metrics["accuracy_low"] <= metrics["accuracy"] <= metrics["accuracy_high"] <= 1.0
    assert metrics["pass@2"] >= metrics["pass@1"] == metrics["accuracy"]
    answers = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert len(answers) == 128
    assert sum(row["reward"] for row in answers) / 128 == pytest.approx(metrics["accuracy"])
    said = reinlm(
        "generate", "-m", "out/checkpoints/last", "-p", "123+321=", "-p", "000+000=", "--samples", "2",
        "--max-new-tokens", "6", "--json",
    )  # fmt: skip
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert [row["prompt"] for row in rows] == ["123+321="] * 2 + ["000+000="] * 2
    assert all(set(row["completion"]) <= set("0123456789+=") for row in rows)


def test_create_model_from_a_recipe_says_what_it_made_and_replaces_on_request(reinlm, place):
    (place / "m.yaml").write_text("data: d.jsonl\ntokenizer: characters\nhidden_size: 16\nheads: 2\nlayers: 1\n")
    words = ("create-model", "m.yaml", "-o", "small", "context=16")
    made = reinlm(*words)
    assert made.code == 0, made.err
    assert "small: " in made.out
    assert "64 of 64 rows fit its context of 16" in made.out
    again = reinlm(*words)
    assert (again.code, len(again.errors)) == (2, 1)
    assert reinlm(*words, "--overwrite", "layers=2").code == 0
    assert read_recipe("small/config.json")["num_hidden_layers"] == 2
    assert reinlm("generate", "-m", "small", "-p", "1+1=", "--max-new-tokens", "3").code == 0
    missing = reinlm("create-model", "m.yaml")
    assert (missing.code, len(missing.errors)) == (2, 1)
    assert "output" in missing.err


@pytest.mark.cli
def test_generate_reads_standard_input_and_greedy_answers_repeat(place):
    words = ("generate", "-m", "model", "-p", "-", "--temperature", "0", "--max-new-tokens", "4")
    answers = [process(*words, cwd=place, stdin=subprocess.PIPE).communicate("123+321=\n")[0] for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0].strip()


def test_overrides_win_over_flags_and_flags_over_the_recipe(reinlm, place):
    recipe = {
        "model": "model", "data": "d.jsonl", "reward": "exact_match", "seed": 1,
        "rollout": {"group_size": 2, "batch_size": 8, "max_new_tokens": 5}, "training": {"steps": 3},
        "run": {"tensorboard": False},
    }  # fmt: skip
    (place / "r.yaml").write_text(yaml.safe_dump(recipe))
    words = (
        "rl",
        "r.yaml",
        "-q",
        "-o",
        "out",
        "--steps",
        "2",
        "--seed",
        "2",
        "training.steps=1",
        "rollout.group_size=4",
    )
    assert reinlm(*words).code == 0
    resolved = read_recipe("out/config.yaml")
    assert resolved["seed"] == 2
    assert resolved["training"]["steps"] == 1
    assert resolved["rollout"]["group_size"] == 4
    assert resolved["rollout"]["max_new_tokens"] == 5
    assert len(records("out")) == 1


def test_the_resolved_configuration_is_a_recipe_that_repeats_the_run(reinlm, rl):
    assert rl("--steps", "2").code == 0
    assert reinlm("rl", "out/config.yaml", "-q", "-o", "again").code == 0
    first, second = ([without_clocks(record) for record in records(folder)] for folder in ("out", "again"))
    assert first == second


# ------------------------------------------------------------------------------------------------ Ctrl-C


@pytest.mark.cli
def test_ctrl_c_saves_says_how_to_go_on_and_the_run_goes_on(place, reinlm):
    words = ("rl", *FAST_RL, "-m", "model", "-d", "d.jsonl", "-r", "exact_match", "-o", "out", "--steps", "400")
    running = process(*words, cwd=place)
    metrics = place / "out" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    done = records("out")[-1]["step"]
    assert f"interrupted after step {done}, which is saved" in err
    assert "reinlm rl --resume --output out" in err
    assert "Traceback" not in err
    assert (place / "out" / "checkpoints" / f"step_{done}" / "model.safetensors").is_file()
    resumed = process("rl", "--resume", "--output", "out", "-q", cwd=place)
    time.sleep(0.1)
    deadline = time.monotonic() + 120
    while records("out")[-1]["step"] < done + 3:
        assert time.monotonic() < deadline
        assert resumed.poll() is None, resumed.communicate()[1]
        time.sleep(0.05)
    resumed.send_signal(signal.SIGINT)
    resumed.communicate(timeout=60)
    steps = [record["step"] for record in records("out")]
    assert steps == list(range(1, len(steps) + 1))
