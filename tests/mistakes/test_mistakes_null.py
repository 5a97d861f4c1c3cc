"""What null, none and a single number do where they are given: every one acts, or is refused with what to write."""

from __future__ import annotations

from typing import Any

import pytest

import reinlm
from reinlm.algorithms import resolve
from reinlm.config import build
from reinlm.errors import InputError
from reinlm.recipe import override, read
from reinlm.training.config import RLConfig
from reinlm.training.critic import CriticConfig
from reinlm.training.optimizer import OptimizerConfig

RL: dict[str, Any] = {"model": "m", "data": "d", "reward": "math"}


def config(*words: str, **sections: Any) -> RLConfig:
    return build(RLConfig, override(read({**RL, **sections}), words))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["algorithm.gate.clip=null"], "write algorithm.gate=none"),
        (["algorithm.gate=null"], "write algorithm.gate=none"),
        (["algorithm.ratio.token=null"], "names: token"),
        (["algorithm=dapo", "algorithm.filters.mixed_outcomes=null"], "write algorithm.filters=[]"),
    ],
)
def test_null_that_removes_nothing_is_refused_with_what_does(words: list[str], hint: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(config(*words).algorithm)
    assert hint in str(error.value.hint)


def test_none_removes_what_may_be_absent() -> None:
    assert resolve(config("algorithm=ppo_penalty", "algorithm.kl=none").algorithm).kl is None
    assert resolve(config("algorithm=ppo", "algorithm.selection=none").algorithm).selection is None


@pytest.mark.parametrize(
    ("word", "low", "high"),
    [
        ("algorithm.gate.clip=0.1", 0.1, 0.1),
        ("algorithm.gate.clip=[0.1]", 0.1, 0.28),
        ("algorithm.gate.clip=[0.1, 0.3]", 0.1, 0.3),
        ("algorithm.gate.clip.low=0.1", 0.1, 0.28),
    ],
)
def test_a_single_number_sets_both_bounds_of_the_clip(word: str, low: float, high: float) -> None:
    gate: Any = resolve(config("algorithm=dapo", word).algorithm).gate
    assert (gate.low, gate.high) == (low, high)


@pytest.mark.parametrize("function", ["rl", "sft", "evaluate", "generate", "RLTrainer"])
def test_an_unknown_keyword_is_refused_also_where_it_is_none(function: str) -> None:
    with pytest.raises(InputError, match="unknown key 'bogus'"):
        getattr(reinlm, function)("m", bogus=None, output=None)


@pytest.mark.parametrize(
    ("critic", "changed"),
    [
        ({"schedule": "linear"}, {"schedule": "linear"}),
        ({"final_fraction": 0.5}, {"final_fraction": 0.5}),
        ({"learning_rate": 1e-3}, {"learning_rate": 1e-3}),
        ({"warmup_steps": 2}, {"warmup_steps": 2}),
        ({"schedule": "constant"}, {"schedule": "constant", "final_fraction": 0.1}),
        ({"name": "sgd"}, {"name": "sgd", "betas": (0.9, 0.999)}),
        ({}, {}),
    ],
)
def test_a_key_of_the_critics_optimizer_leaves_the_others_as_the_policys(
    critic: dict[str, Any], changed: dict[str, Any]
) -> None:
    policy = {
        "learning_rate": 7e-4,
        "schedule": "cosine",
        "final_fraction": 0.2,
        "betas": (0.8, 0.9),
        "warmup_steps": 5,
        "max_grad_norm": 0.5,
    }
    wanted = OptimizerConfig(**{**policy, "warmup_steps": 0, **changed})
    made = config(optimizer=policy, critic={"optimizer": critic})
    assert made.critic is not None
    assert made.critic.optimizer == wanted
    again = build(RLConfig, made.model_dump())  # as a run that resumes reads it
    assert again.critic == made.critic


def test_a_critic_given_as_an_object_sets_what_it_names() -> None:
    critic = CriticConfig(optimizer=OptimizerConfig(schedule="linear"))
    made = RLConfig(**RL, optimizer={"learning_rate": 7e-4}, critic=critic)
    assert made.critic is not None
    assert made.critic.optimizer == OptimizerConfig(learning_rate=7e-4, schedule="linear")
