"""Natural mistakes in overrides, algorithms and rewards: each gets one line that says what to write instead."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from mistake_checks import refused_by_rl

import reinlm
from reinlm.cli import main
from reinlm.keys import all_keys

ROWS = [{"prompt": "1+1=", "answer": "2"}] * 256

MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"algorithm": "dappo"}, "unknown algorithm 'dappo'", "did you mean 'dapo'?"),
    ({"algorithm": {"base": "dapo", "gates": "clip"}}, "unknown choice of dapo 'gates'", "did you mean 'gate'?"),
    ({"algorithm": {"gate": "clipp"}}, "unknown gate 'clipp'", "did you mean 'clip'?"),
    ({"algorithm": {"gate": {"clip": {"hi": 0.3}}}}, "unknown value of clip 'hi'", "did you mean 'high'?"),
    ({"algorithm": {"gate": {"high": 0.3}}}, "unknown gate 'high'", "allowed: clip"),
    ({"algorithm": {"gate": None}}, "gate: cannot read None", "names: none, clip"),
    ({"algorithm": {"gate": {"clip": 0.1, "soft": 1.0}}}, "gate: cannot read", "{name: values}"),
    ({"algorithm": {"gate": {"clip": [0.1, 0.2, 3.0, 4.0]}}}, "clip takes 3 values, not 4", "low, high, dual"),
    ({"algorithm": {"gate": {"clip": "0.2"}}}, "clip.low: input should be a valid number (given: '0.2')", ""),
    ({"algorithm": {"kl": True}}, "kl: True is no KL choice", "a coefficient (0.04)"),
    ({"algorithm": {"kl": "k9"}}, "unknown KL estimator 'k9'", ""),
    ({"algorithm": {"kl": ["k3", 0.1]}}, "kl: a list holds several KL terms", "{estimator: k3, coefficient: 0.04}"),
    (
        {"algorithm": {"kl": {"coef": 0.1}}},
        "unknown value of kl 'coef'",
        "allowed: allow_reward_alone, anchor, coefficient",
    ),
    ({"algorithm": {"kl": -0.1}}, "the KL coefficient must be at least 0", ""),
    ({"algorithm": {"base": "ppo_penalty", "kl": 0.1}}, "kl: there are 2 KL terms", "give the whole list"),
    (
        {"algorithm": {"advantage": {"whitened": None}}},
        "advantage: there is no whitened to remove",
        "leave whitened: null out",
    ),
    ({"algorithm": {"advantage": {"whitened": {"gaee": 1}}}}, "unknown advantage 'gaee'", "did you mean 'gae'?"),
    ({"algorithm": {"aggregation": "token"}}, "unknown aggregation 'token'", "did you mean 'token_mean'?"),
    ({"algorithm": {"aggregation": {"token_mean": 3}}}, "token_mean takes no values: 3", "write token_mean alone"),
    (
        {"algorithm": {"aggregation": "constant_budget"}},
        "constant_budget needs a value for 'length'",
        "{constant_budget: value}",
    ),
    (
        {"algorithm": {"aggregation": "token_mean", "weights": "token_mean"}},
        "weights and aggregation are one choice",
        "keep agg",
    ),
    ({"algorithm": {"overlong": "drop"}}, "unknown choice for overlong 'drop'", "keep"),
    ({"algorithm": {"filters": [3]}}, "filter: cannot read 3", "mixed_outcomes"),
    ({"algorithm": {"beta": 0.1}}, "unknown choice of grpo 'beta'", "algorithm.kl.coefficient"),
    ({"algorithm": {"epsilon_high": 0.3}}, "unknown choice of grpo 'epsilon_high'", "algorithm.gate.clip.high"),
    ({"algorithm": {"loss_type": "dapo"}}, "unknown choice of grpo 'loss_type'", "algorithm.aggregation"),
    ({"algorithm": {"name": 3}}, "name: 3 is no name for an algorithm", "my_grpo"),
    ({"reward": "regex"}, "reward 'regex'", "write reward=\"{regex: {pattern: '####'}}\""),
    ({"reward": "length"}, "reward 'length'", 'write reward="{length: {target: 100}}"'),
    ({"reward": "maths"}, "unknown reward 'maths'", "did you mean 'math'?"),
    ({"reward": "rouge"}, "unknown reward 'rouge'", "{regex: {pattern: '####'}}"),
    ({"reward": "f.py"}, "names a file and no function in it", "f.py:FUNCTION"),
    ({"reward": []}, "no reward is given", "name one: "),
    ({"reward": ("math", "0.5")}, "unknown reward '0.5'", "name one: "),
    ({"reward": ("math", float("nan"))}, "weight must be a finite number", ""),
    ({"reward": {"function": 3, "weight": 0.5}}, "3 is not a reward", "give a name, a function"),
    ({"reward": {"math": {"wieght": 0.5}}}, "wieght", ""),
    ({"reward": {"functions": "math", "on_error": "skip"}}, "reward.on_error", "on_reward_error"),
    ({"resolved": {"renderer": "x"}}, "'resolved' cannot be set", "data.renderer"),
    ({"recipe": "no.yaml"}, "no such recipe: no.yaml", "--model and --data"),
]


@pytest.mark.parametrize(
    ("given", "message", "hint"), MISTAKES, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_mistake_in_python_is_one_line_that_says_what_to_write(
    given: dict[str, Any], message: str, hint: str
) -> None:
    refused_by_rl(given, message, hint)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--algorithm", "dapo", "algorithm.gate.clip.hi=0.3"], "unknown value of clip 'hi'", "did you mean 'high'?"),
        (["algorithm.gate=[0.1,0.2]"], "gate: cannot read [0.1, 0.2]", "names: none, clip"),
        (["--reward", "regex"], "reward 'regex'", "write reward=\"{regex: {pattern: '####'}}\""),
        (["reward.on_error=skip"], "unknown key 'reward.on_error'", "on_reward_error"),
        (["rollout.group_size"], "'rollout.group_size' has no value", "rollout.group_size="),
        (["=3"], "cannot read '=3'", "key=value"),
        (["data={path: [}"], "override data:1: not valid YAML", ""),
        (["algorithm=5"], "algorithm", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_on_the_command_line_is_one_line(
    words: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (
        ["-m", "no/such", "-d", "none.jsonl", "-r", "exact_match"]
        if "--reward" not in words
        else ["-m", "no/such", "-d", "x"]
    )
    with pytest.raises(SystemExit) as ended:
        main(["rl", "seed=0", "--explain", *given, *words] if words[0] != "=3" else ["rl", "seed=0", "=3"])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert ended.value.code == 2
    assert message in told[0]
    assert hint in " ".join(told[1:])


# ------------------------------------------------------------------------------------------------ hints name keys that there are


NO_KEYS = {"tokenizer.eos_token"}
"""Attributes of objects in Python that hints name."""
SET = re.compile(r"\b(?:[Ss]et|or) ([a-z_]+(?:\.[a-z_]+)+|[a-z_]+(?==))")


def texts() -> list[tuple[str, str]]:
    """Every text in the source that says what to set, with its file."""
    found = []
    for file in sorted(Path(reinlm.__file__).parent.rglob("*.py")):
        if "classical" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " set " in f" {node.value}":
                found.append((file.name, node.value))
    return found


def test_every_key_that_a_hint_tells_to_set_is_a_key() -> None:
    known = {key.key for key in all_keys()}
    sections = known | {name.rsplit(".", 1)[0] for name in known} | {"evaluation.data", "data.renderer"}
    named = [(file, key) for file, text in texts() for key in SET.findall(text)]
    assert len(named) > 15
    assert [(file, key) for file, key in named if key not in sections and key not in NO_KEYS] == []
