"""What a run's folder holds of its configuration is a recipe for the same configuration."""

from __future__ import annotations

from typing import Any

import pytest
import turns

from reinlm.algorithms import resolve
from reinlm.config import build, dump_yaml, parse_yaml
from reinlm.environments import Question, is_question
from reinlm.errors import InputError
from reinlm.rollouts import RolloutConfig
from reinlm.training.config import RLConfig, SFTConfig
from reinlm.training.dumping import dump
from reinlm.training.episodes import resolve_environment
from reinlm.training.rl_checks import check_settings
from reinlm.training.sft import check_sft

COMMON = {"model": {"path": "m"}, "data": {"path": "train.jsonl"}}


@pytest.mark.parametrize(
    ("kind", "sections"),
    [
        (SFTConfig, {}),
        (SFTConfig, {"optimizer": {"name": "sgd", "options": {"momentum": 0.9}}, "reward": "math"}),
        (RLConfig, {"reward": "math"}),
        (RLConfig, {"reward": [{"name": "regex", "pattern": "#", "weight": 0.5}, "math"]}),
        (RLConfig, {"reward": "math", "rollout": {"temperature_end": 0.5, "schedule": "cosine"}}),
        (RLConfig, {"environment": "mine.py:Game", "rollout": {"order": "arrival", "episode_time_limit": 9.0}}),
        (RLConfig, {"reward": "math", "text": {"data": "text.jsonl"}, "critic": {"optimizer": {"name": "sgd"}}}),
        (RLConfig, {"reward": "math", "text": {"data": "t.jsonl", "loss": "kl", "direction": "forward"}}),
        (RLConfig, {"reward": "math", "run": {"trackers": [{"wandb": {"project": "x"}}]}}),
        (RLConfig, {"reward": "math", "run": {"tensorboard": False}, "evaluation": {"data": "test.jsonl"}}),
        (RLConfig, {"reward": "math", "algorithm": {"base": "grpo", "kl": None}, "model": {"path": "m", "lora": {}}}),
    ],
)
def test_a_configuration_comes_back_from_its_file(kind: Any, sections: dict[str, Any]) -> None:
    config = build(kind, COMMON | sections)
    again = build(kind, parse_yaml(dump_yaml(dump(config)), "config.yaml"))
    assert dump(again) == dump(config)
    assert again == config


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"optimizer": {"name": "sgd", "epsilon": 1e-6}}, "epsilon has no effect on the optimizer sgd"),
        ({"optimizer": {"name": "sgd", "betas": [0.8, 0.9]}}, "betas has no effect on the optimizer sgd"),
        ({"optimizer": {"name": "lion"}}, "unknown optimizer 'lion'"),
        ({"rollout": {"schedule": "cosine"}}, "schedule cosine has no effect without temperature_end"),
        ({"training": {"steps": 5, "epochs": 2}}, "steps 5 and epochs 2 both say"),
        ({"optimizer": {"final_fraction": 0.5}}, "final_fraction 0.5 has no effect with the schedule constant"),
        ({"run": {"rollouts_every": 0, "rollouts_max": 5}}, "rollouts_max 5 has no effect with rollouts_every 0"),
        (
            {"reward": {"functions": "math", "time_limit": None, "workers": 4}},
            "workers 4 has no effect without time_limit",
        ),
        (
            {"evaluation": {"correct_above": 0.7}},
            r"evaluation\.correct_above 0.7 has no effect without evaluation\.data",
        ),
        ({"evaluation": {"samples": 4}}, r"evaluation\.samples 4 has no effect without evaluation\.data"),
        ({"evaluation": {"every": 4}}, r"evaluation\.every 4 has no effect without evaluation\.data"),
    ],
)
def test_what_has_no_effect_is_refused(section: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build(RLConfig, COMMON | {"reward": "math"} | section)


def settings(**sections: Any) -> RLConfig:
    config: RLConfig = build(RLConfig, COMMON | {"reward": "math"} | sections)
    return config


def test_groups_are_sampled_anew_only_where_an_algorithm_drops_some() -> None:
    given = settings(rollout={"max_attempts": 3}, algorithm="dapo")
    check_settings(given, resolve("dapo"))
    with pytest.raises(InputError, match=r"rollout\.max_attempts 3 has no effect: grpo drops no groups"):
        check_settings(given, resolve("grpo"))


@pytest.mark.parametrize(
    "rollout",
    [
        {"max_turns": 2},
        {"on_environment_error": "skip"},
        {"environment_time_limit": 5.0},
        {"environment_time_limit": None},
        {"order": "arrival"},
    ],
)
@pytest.mark.parametrize("question", ["question", {"question": {}}, Question], ids=["name", "mapping", "class"])
def test_what_only_several_turns_follow_is_refused_for_one_question(rollout: dict[str, Any], question: Any) -> None:
    (name,) = rollout
    config = settings(rollout=rollout)
    with pytest.raises(InputError, match=rf"rollout\.{name} .* has no effect: the environment 'question'"):
        resolve_environment(question, config.rollout, config.reward, needs_rewards=True)
    assert resolve_environment(turns.Tools, config.rollout, None, needs_rewards=True) is turns.Tools


@pytest.mark.parametrize("question", ["question", {"question": {}}, {"question": None}, Question])
def test_a_question_without_a_reward_is_refused_however_it_is_named(question: Any) -> None:
    with pytest.raises(InputError, match="'reward' is required"):
        resolve_environment(question, RolloutConfig(), None, needs_rewards=True)
    timed = RolloutConfig(order="arrival", episode_time_limit=9.0)  # a clock cuts off a single answer too
    assert is_question(resolve_environment(question, timed, None, needs_rewards=False))


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"reward": "math"}, "reward has no effect"),
        ({"environment": "mine.py:Game"}, "environment has no effect"),
        ({"rollout": {"max_running": 4}}, r"rollout\.max_running 4 has no effect"),
        ({"evaluation": {"data": "t.jsonl", "samples": 2}}, r"evaluation\.samples 2 has no effect"),
        ({"run": {"rollouts_every": 3}}, r"run\.rollouts_every has no effect"),
    ],
)
def test_what_sft_has_no_use_for_is_refused(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_sft(build(SFTConfig, COMMON | sections), samples=False)


def test_one_value_stands_for_a_list_and_for_a_section() -> None:
    given = {"imports": "mine.py", "rollout": {"stop_strings": "=", "stop_token_ids": 7}, "text": "t.jsonl"}
    config = settings(**given, teacher="m", reference="r", algorithm={"kl": None})
    assert config.imports == ["mine.py"]
    assert (config.rollout.stop_strings, config.rollout.stop_token_ids) == (("=",), (7,))
    assert config.text is not None
    assert config.teacher is not None
    assert config.reference is not None
    assert (config.text.data.path, config.teacher.path, config.reference.path) == ("t.jsonl", "m", "r")
    assert config.algorithm == {"base": "grpo", "kl": None}
    assert settings(algorithm={"base": "dapo"}).algorithm == "dapo"


def test_an_object_where_a_path_stands_is_named_by_its_type_alone() -> None:
    for section in ("model", "teacher", "reference"):
        with pytest.raises(
            InputError, match=rf"{section}\.path: a model's folder or Hugging Face name .* of type Question$"
        ):
            settings(**{section: {"path": Question()}})


def test_a_part_of_sfts_optimizer_keeps_the_rest_of_its_defaults() -> None:
    whole, part = (build(SFTConfig, COMMON | given).optimizer for given in ({}, {"optimizer": {"weight_decay": 0.1}}))
    assert (whole.learning_rate, whole.schedule) == (1e-5, "cosine")
    assert part == whole.model_copy(update={"weight_decay": 0.1})
