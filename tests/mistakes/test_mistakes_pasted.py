"""Names of other libraries with a value: the hint is a line that can be pasted, or says what may stand there."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reinlm.algorithms import ALGORITHMS, algorithm, resolve
from reinlm.aliases import ALIASES, WRITE
from reinlm.cli.messages import _key_instead
from reinlm.config import build
from reinlm.errors import InputError
from reinlm.keys import all_keys, key_hint
from reinlm.recipe import override, read
from reinlm.training.config import RLConfig

RL: dict[str, Any] = {"model": "m", "data": "d", "reward": "math"}

THEIRS = "low_var_kl"
"""Values of the other libraries that notes name."""


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("loss_type", "dr_grpo", "write --algorithm dr_grpo"),
        ("bf16", "true", "write training.autocast=bfloat16:"),
        ("use_peft", "true", "write model.lora.rank=16:"),
        ("scale_rewards", "false", "write algorithm.advantage=group_center:"),
        ("optim", "adamw_torch", "write optimizer.name=adamw:"),
        ("packing", "True", "write training.packing=pack:"),
        ("warmup_ratio", "0.1", "write optimizer.warmup_steps=… (integer ≥ 0):"),
        ("per_device_train_batch_size", "8", "write training.micro_batch_tokens=…"),
        ("ppo_mini_batch_size", "64", "write training.minibatches=…"),
        ("num_generations", "8", "write rollout.group_size=8:"),
        ("clip", "0.1", "write algorithm.gate.clip=0.1:"),
        ("epsilon", "0.1", "write algorithm.gate.clip=0.1:"),
    ],
)
def test_a_value_is_pasted_where_the_key_takes_it(name: str, value: str, hint: str) -> None:
    assert str(_key_instead(name, value, "rl")).startswith(hint)


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"epsilon": 0.1}, "write algorithm.gate.clip=0.1: TRL's epsilon"),
        ({"clip_range": 0.1}, "write algorithm.gate.clip=0.1"),
        ({"bf16": True}, "write training.autocast=bfloat16"),
        ({"reward": {"functions": ["math"], "weights": [0.5]}}, "{name: NAME, weight: 0.5}"),
        ({"model": {"path": "m", "lora": {"r": 8}}}, "rank"),
        ({"model": {"path": "m", "lora": {"lora_alpha": 8}}}, "alpha"),
    ],
)
def test_a_key_of_another_library_with_its_value_is_answered_with_what_to_write(given: Any, hint: str) -> None:
    with pytest.raises(InputError) as error:
        build(RLConfig, {**RL, **given})
    assert hint in str(error.value.hint)


def test_an_option_below_algorithm_is_answered_too() -> None:
    with pytest.raises(InputError) as error:
        algorithm("grpo", clip=0.1)
    assert str(error.value.hint).startswith("write algorithm.gate.clip=0.1")


@pytest.mark.parametrize("line", sorted({line for table in WRITE.values() for line in table.values()}))
def test_every_line_to_paste_is_accepted(line: str) -> None:
    if line.startswith("--algorithm "):
        assert line.split()[1] in ALGORITHMS
    else:
        key, _, value = line.format(0.1).partition("=")
        resolve(build(RLConfig, override(read(RL), [f"{key}={value}"])).algorithm)


def test_every_value_that_a_note_names_exists() -> None:
    known = " ".join(f"{key.key} {key.type} {key.doc}" for key in all_keys())
    theirs = " ".join(name for table in ALIASES.values() for name in table)
    words = {*re.findall(r"\w+", f"{known} {theirs}"), *ALGORITHMS, *re.findall(r"\w+", THEIRS)}
    for name, one in ((name, one) for table in ALIASES.values() for name, one in table.items()):
        for word in re.findall(r"(?<![\w/])[a-z0-9]+(?:_[a-z0-9]+)+", one.note):
            assert word in words, f"{name}: {word}"


def test_a_short_set_of_prompts_takes_further_keys() -> None:
    made = build(RLConfig, override(read(RL), ["evaluation.data=t.jsonl", "evaluation.data.eval.limit=8"]))
    assert (made.evaluation.data["eval"].path, made.evaluation.data["eval"].limit) == ("t.jsonl", 8)


def test_the_epsilon_of_sft_is_adams() -> None:
    assert key_hint(["epsilon"], 0.1, verb="sft") == "the key is optimizer.epsilon"
