"""Natural mistakes at the command line: exit code 2, one line that names them, what to write instead, no traceback, no wait."""

from __future__ import annotations

import json
import time
from pathlib import Path

import huggingface_hub
import pytest

from reinlm.cli import main

SECONDS = 5.0
"""Far below the time in which names are looked up; in the process of the tests nothing has to be imported."""


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with a file of data, two recipes, the folders of a model and of a run; without an answering Hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")
    for name in ("small.yaml", "other.yaml"):
        (tmp_path / name).write_text("model: model\ndata: train.jsonl\nreward: math\n")
    (tmp_path / "model").mkdir()
    run = tmp_path / "runs" / "first"
    (run / "checkpoints" / "last").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "config.yaml").write_text("model: model\n")
    return tmp_path


MISTAKES = [
    # verbs
    ("rll", "unknown command 'rll'", "did you mean 'rl'?"),
    ("RL small.yaml", "unknown command 'RL'", "did you mean 'rl'?"),
    ("train -m model", "unknown command 'train'", "`sft` imitates completions, `rl` improves a model against a reward"),
    ("evaluate -m model", "unknown command 'evaluate'", "reinlm eval`?"),
    ("sample -m model", "unknown command 'sample'", "reinlm generate`?"),
    ("help", "unknown command 'help'", "--help`?"),
    ("version", "unknown command 'version'", "--version`?"),
    ("grpo -m model", "unknown command 'grpo'", "rl --algorithm grpo"),
    ("q-learning", "unknown command 'q-learning'", "classical q_learning --env"),
    ("small.yaml", "unknown command 'small.yaml'", "rl small.yaml"),
    ("runs/first", "unknown command 'runs/first'", "report runs/first"),
    ("judge pairs.jsonl", "there is no command 'judge': this version collects no preferences", "`sft` imitates"),
    ("view runs/first", "there is no command 'view'", "`rl` improves"),
    # options
    ("rl --modle model", "unknown option '--modle'", "did you mean --model?"),
    ("rl --max_new_tokens 8", "unknown option '--max_new_tokens'", "rollout.max_new_tokens"),
    ("generate --max_new_tokens 8", "unknown option '--max_new_tokens'", "write --max-new-tokens"),
    ("rl --learning-rate 1e-5", "unknown option '--learning-rate'", "optimizer.learning_rate=1e-5"),
    ("rl --learning_rate=1e-5", "unknown option '--learning_rate'", "optimizer.learning_rate=1e-5"),
    ("rl --num-generations 8", "unknown option '--num-generations'", "rollout.group_size=8"),
    ("sft --num_train_epochs=2", "unknown option '--num_train_epochs'", "training.epochs=2"),
    ("classical ppo --total_timesteps=500", "unknown option '--total_timesteps'", "--steps"),
    (
        "rl --rollout.group_size=4",
        "unknown option '--rollout.group_size'",
        "write rollout.group_size=4, without dashes",
    ),
    ("rl --config small.yaml", "unknown option '--config'", "rl small.yaml"),
    ("rl -model model", "'-model' has one dash", "write --model"),
    ("rl –model model", "the dash in '–model' is no hyphen", "write --model"),
    ("--steps 3 rl", "--steps stands before the verb", "rl --steps"),
    ("--steps 3", "unknown option '--steps'", "it belongs to a verb"),
    ("rl --model", "--model has no value", "write --model runs/"),
    ("rl small.yaml --steps", "--steps has no value", "write --steps 100"),
    ("rl --model --data train.jsonl", "--model has no value", "write --model runs/"),
    ("rl -m -d train.jsonl", "-m has no value", "write -m runs/"),
    (
        "rl --eval-data a.jsonl --eval-data=b.jsonl",
        "--eval-data is given twice, and takes one value",
        "give --eval-data once",
    ),
    ("eval -m model --against a --against b", "--against is given twice, and takes one value", "give --against once"),
    ("rl --quiet=yes", "--quiet takes no value", "write --quiet alone"),
    ("rl --steps many", "--steps: input should be a valid integer (given: 'many')", "rl --help"),
    ("rl --steps=1.5", "--steps: input should be a valid integer (given: '1.5')", "rl --help"),
    ("generate --temperature hot", "--temperature: input should be a valid number (given: 'hot')", "generate --help"),
    ("quickstart --seed=-1", "--seed: input should be greater than or equal to 0 (given: '-1')", "quickstart --help"),
    ("quickstart now", "unexpected 'now' after quickstart", "quickstart --help"),
    # recipes and overrides
    ("rl small.yaml other.yaml", "two recipes: small.yaml and other.yaml", "give one"),
    ("rl smal.yaml", "no such recipe: smal.yaml", "did you mean 'small.yaml'?"),
    ("rl gsm8k.yaml", "no such recipe: gsm8k.yaml", "give a YAML file"),
    ("rl rollout.group_size = 4", "spaces around '=' after rollout.group_size", "write rollout.group_size=4"),
    ("rl rollout.group_size =4", "spaces around '=' after rollout.group_size", "write rollout.group_size=4"),
    ("rl rollout.group_size= 4", "spaces around '=' after rollout.group_size", "write rollout.group_size=4"),
    ("rl rollout.group_size:4", "'rollout.group_size:4' has no '='", "write rollout.group_size=4"),
    ("rl rollout.group_size", "'rollout.group_size' has no value", "write rollout.group_size=VALUE"),
    ("rl dapo", "'dapo' is an algorithm, not a recipe", "write --algorithm dapo"),
    ("sft train.jsonl", "train.jsonl is no recipe", "--data train.jsonl"),
    ("rl model", "model is a folder, not a recipe", "--model model"),
    ("rl runs/first", "runs/first is the folder of a run, not a recipe", "--resume --output runs/first"),
    ("generate -m model hello", "no such recipe: hello", "--prompt hello"),
    # models, data, algorithms
    ("generate -m runs/frist -p x", "no such model folder: runs/frist", "did you mean 'runs/first'?"),
    ("generate -m ./nothing -p x", "no such model folder: ./nothing", "give a folder"),
    ("generate -m train.jsonl -p x", "train.jsonl is a file, not a model folder", "give a folder"),
    ("generate -m nobody/nothing -p x", "model 'nobody/nothing' is neither a folder here nor a name", "check the name"),
    ("rl -m model -d trian.jsonl -r math", "no such file: trian.jsonl", "did you mean 'train.jsonl'?"),
    ("rl -m model -d no/train.csv -r math", "no such file: no/train.csv", "there is no folder no either"),
    ("rl -m model -d runs/train -r math", "no such file: runs/train", None),
    ("rl -m model -d nobody/nothing -r math", "data 'nobody/nothing' are neither a file here", "check the name"),
    (
        "rl -m model -d train.jsonl -r math -a dpo",
        "algorithm 'dpo' learns from judged answers",
        "reinlm dpo --algorithm dpo",
    ),
    ("rl -m model -d train.jsonl -r math -a gropo", "unknown algorithm 'gropo'", "did you mean 'grpo'?"),
    ("rl -m model -d train.jsonl -r MAHT", "reward.functions: unknown reward 'MAHT'", "did you mean 'math'?"),
    ("kto -m model -d pairs.jsonl", "unknown command 'kto'", "dpo --algorithm kto"),
    ("algorithms a2c", "'a2c' is no algorithm of rl", "classical a2c --env CartPole-v1"),
    ("td --env FrozenLake-v1", "unknown command 'td'", "classical td --env FrozenLake-v1 --episodes 1000"),
    ("classical pop --env CartPole-v1 --steps 9", "unknown classical algorithm 'pop'", "did you mean 'ppo'?"),
    ("classical --env CartPole-v1", "which algorithm?", "classical --list"),
    ("classical CartPole-v1", "'CartPole-v1' is an environment", "--env CartPole-v1"),
    ("classical ppo CartPole-v1", "'CartPole-v1' is an environment", "--env CartPole-v1"),
    ("classical ppo", "in which environment?", "--env CartPole-v1"),
    ("report", "which run?", "report runs/NAME"),
    ("report runs/frist", "no such run folder: runs/frist", "did you mean 'runs/first'?"),
    ("report model", "model is not a run folder", "run.json"),
    ("completion tcsh", "unknown shell 'tcsh'", "bash"),
]


@pytest.mark.parametrize(("line", "message", "hint"), MISTAKES, ids=[line for line, _, _ in MISTAKES])
def test_a_mistake_gets_one_line_with_what_to_write_instead(place, capfd, line, message, hint):
    before = sorted(place.rglob("*"))
    started = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    out, err = capfd.readouterr()
    assert time.monotonic() - started < SECONDS
    assert (stop.value.code, out) == (2, ""), err
    said = err.splitlines()
    assert said[0].startswith(f"error: {message}"), err
    assert len(said) <= 2, err
    assert hint is None or (said[1].startswith("hint: ") and hint in said[1]), err
    assert sorted(place.rglob("*")) == before
