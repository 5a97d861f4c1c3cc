"""Names of TRL, verl and Stable-Baselines3: every one leads to an option that exists, and unknown keys say it."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from typer.main import get_command

from reinlm.algorithms import resolve
from reinlm.aliases import ALIASES, SB3, alias_hint
from reinlm.classical.registry import catalogue, find
from reinlm.cli import app
from reinlm.composition.choices import FIELDS, LISTS
from reinlm.config import build
from reinlm.errors import InputError
from reinlm.objectives import CHOICES, KL
from reinlm.training.config import EvalConfig, RLConfig, SFTConfig

KEYS = [(library, name, alias) for library, table in ALIASES.items() for name, alias in table.items()]


def models(annotation: Any) -> list[type[BaseModel]]:
    """The configurations that a field may hold."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models(argument)]


def in_config(kind: type[BaseModel], path: list[str]) -> bool:
    if path[0] not in kind.model_fields:
        return False
    inside = models(kind.model_fields[path[0]].annotation)
    return len(path) == 1 or any(in_config(model, path[1:]) for model in inside)


def in_choice(kind: str, path: list[str]) -> bool:
    """Whether the path is the name of a choice, of one of its fields, or of a choice that a field holds."""
    options = {"kl": KL} if kind == "kl" else CHOICES.get(kind, {})
    if not path or not options:
        return not path
    if path[0] in options:
        made, path = options[path[0]], path[1:]
    elif len(options) == 1:
        made = next(iter(options.values()))  # the only choice of its kind needs no name
    else:
        return False
    if not path:
        return True
    members = {field.name: field for field in fields(made)} if is_dataclass(made) else {}
    return path[0] in members and in_choice(members[path[0]].metadata.get("kind", ""), path[1:])


def exists(path: list[str]) -> bool:
    if path[0] == "algorithm" and len(path) > 1:
        return path[1] in FIELDS and in_choice(LISTS.get(path[1], path[1]), path[2:])
    return any(in_config(kind, path) for kind in (RLConfig, SFTConfig))


def test_the_check_itself_tells_keys_that_exist_from_others() -> None:
    assert exists(["algorithm", "gate", "clip", "low"])
    assert exists(["critic", "optimizer", "learning_rate"])
    assert not exists(["algorithm", "gate", "clip", "middle"])
    assert not exists(["algorithm", "advantage", "gae", "gamma", "x"])
    assert not exists(["rollout", "learning_rate"])


@pytest.mark.parametrize(("library", "name", "alias"), KEYS, ids=[f"{one[0]}:{one[1]}" for one in KEYS])
def test_every_name_leads_to_an_option_that_exists_or_says_why_there_is_none(
    library: str, name: str, alias: Any
) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    if alias.ours is None:
        assert alias.note or alias.classical
    elif alias.ours.startswith("--"):
        assert alias.ours in {option for parameter in commands["rl"].params for option in parameter.opts}
    else:
        assert exists(alias.ours.split(".")), alias.ours
    if alias.classical and alias.classical.startswith("--"):
        assert alias.classical in {option for parameter in commands["classical"].params for option in parameter.opts}
    elif alias.classical:
        assert any(alias.classical in find(card.name).Settings.model_fields for card in catalogue())


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"num_generations": 8}, "TRL's num_generations is rollout.group_size"),
        ({"rollout": {"num_generations": 8}}, "TRL's num_generations is rollout.group_size"),
        ({"logging_steps": 1}, "every step is logged"),
        ({"actor_rollout_ref": {"rollout": {"n": 4}}}, "verl's actor_rollout_ref.rollout.n is rollout.group_size"),
        ({"critic": {"optim": {"lr": 1.0}}}, "verl's critic.optim.lr is critic.optimizer.learning_rate"),
        ({"clip_range": 0.1}, "Stable-Baselines3's clip_range is algorithm.gate.clip.low; and"),
        ({"rollout": {"grup_size": 8}}, "did you mean 'rollout.group_size'?"),
    ],
)
def test_an_unknown_key_of_another_library_is_answered_with_ours(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError) as error:
        build(RLConfig, {"model": "m", "data": "d", **given})
    assert hint in str(error.value.hint)


def test_choices_of_an_algorithm_and_settings_of_a_classical_one_are_answered_too() -> None:
    with pytest.raises(InputError, match=r"algorithm\.kl\.coefficient"):
        resolve({"base": "grpo", "beta": 0.1})
    with pytest.raises(InputError, match="buffer_size"):
        find("ppo")("CartPole-v1", buffer_size=4)
    with pytest.raises(InputError, match="exploration_fraction is epsilon_share"):
        build(find("dqn").Settings, {"exploration_fraction": 0.1})


def test_a_verb_is_not_told_of_keys_that_it_does_not_have() -> None:
    with pytest.raises(InputError) as error:
        build(EvalConfig, {"model": "m", "data": "d", "reward": "math", "num_generations": 8})
    assert "group_size" not in str(error.value.hint)
    assert alias_hint(["n_steps"]) is None
    assert alias_hint(["n_steps"], classical=True) == f"Stable-Baselines3's n_steps is {SB3['n_steps'].classical}"
