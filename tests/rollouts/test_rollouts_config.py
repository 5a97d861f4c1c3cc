"""What a recipe may say of sampling and rollouts."""

from __future__ import annotations

import pytest

from reinlm.config import Config, build
from reinlm.errors import InputError
from reinlm.records import SamplingSettings
from reinlm.rollouts.config import RolloutConfig, SamplingConfig, check_trainable
from reinlm.rollouts.episode import Limits
from reinlm.rollouts.protocol import Sampling
from reinlm.training.evaluation import EvaluationConfig


def test_configuration_becomes_sampling_with_the_models_stops_in_front() -> None:
    config = build(
        SamplingConfig,
        {
            "max_new_tokens": 9,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "stop_token_ids": [8, 3],
            "stop_strings": ["#"],
        },
    )
    assert config.sampling((3, 4)) == Sampling(9, 0.7, 0.9, 5, (3, 4, 8), ("#",))


@pytest.mark.parametrize(
    ("tree", "culprit"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e-9}, "temperature: must be 0 .greedy. or at least 0.0001"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop_strings": ["a", ""]}, "stop_strings: a stop string cannot be empty"),
        ({"max_tokens": 4}, "unknown key 'max_tokens'"),
    ],
)
def test_configuration_out_of_range_is_named(tree: dict[str, object], culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        build(SamplingConfig, tree)


@pytest.mark.parametrize("kind", [SamplingConfig, EvaluationConfig])
@pytest.mark.parametrize("drawn_from", [{"top_p": 0.5}, {"top_k": 3}])
def test_what_greedy_answers_are_drawn_from_is_refused(kind: type[Config], drawn_from: dict[str, float]) -> None:
    (name, value), *_ = drawn_from.items()
    with pytest.raises(InputError, match=f"{name} {value} has no effect at temperature 0, which is greedy"):
        build(kind, {"temperature": 0, **drawn_from})
    build(kind, {"temperature": 0.5, **drawn_from})


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [({"temperature": 0.0}, "temperature 0"), ({"top_p": 0.9}, r"top_p=0\.9"), ({"top_k": 40}, "top_k=40")],
)
def test_samples_that_cannot_be_trained_on_are_refused(changes: dict[str, float], culprit: str) -> None:
    for settings in (SamplingConfig(**changes), SamplingConfig(**changes).sampling(())):
        with pytest.raises(InputError, match=f"{culprit} cannot be trained on"):
            check_trainable(settings)
    check_trainable(SamplingConfig(temperature=0.7))


def test_a_segment_keeps_the_distribution_without_what_ends_an_answer() -> None:
    sampling = Sampling(9, 0.7, 0.9, 5, (3, 4, 8), ("#",))
    assert sampling.settings == SamplingSettings(temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=9)


def test_limits_of_an_episode_are_those_of_the_recipe() -> None:
    config = build(
        RolloutConfig,
        {
            "order": "arrival",
            "max_turns": 4,
            "episode_time_limit": 90,
            "environment_time_limit": None,
            "on_environment_error": "skip",
        },
    )
    assert config.limits == Limits(4, 90.0, None, "skip")
    assert RolloutConfig().limits == Limits()
    assert RolloutConfig().order == "name"


@pytest.mark.parametrize(
    ("tree", "culprit"),
    [
        ({"batch_size": 20, "group_size": 8}, "batch_size 20 is not a multiple of group_size 8; take 16 or 24"),
        ({"episode_time_limit": 5}, "episode_time_limit 5 ends episodes by the clock.*set rollout.order=arrival"),
        ({"order": "finished"}, "order"),
        ({"max_turns": 0}, "max_turns"),
        ({"environment_time_limit": 0}, "environment_time_limit"),
        ({"on_environment_error": "ignore"}, "on_environment_error"),
    ],
)
def test_rollouts_out_of_range_are_named(tree: dict[str, object], culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        build(RolloutConfig, tree)


def test_a_schedule_that_nothing_follows_is_refused_but_not_the_default_that_a_resolved_recipe_names() -> None:
    with pytest.raises(InputError, match="schedule cosine has no effect without temperature_end"):
        build(RolloutConfig, {"schedule": "cosine"})
    resolved = RolloutConfig().model_dump()
    assert build(RolloutConfig, resolved) == RolloutConfig()
