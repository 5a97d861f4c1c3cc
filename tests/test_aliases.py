"""Names of TRL, verl and Stable-Baselines3: every one leads to an option that exists, and unknown keys say it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from reinlm.algorithms import resolve
from reinlm.aliases import ALIASES, SB3, alias_hint, may_be_named
from reinlm.classical.registry import catalogue, find
from reinlm.cli import app
from reinlm.config import build
from reinlm.errors import InputError
from reinlm.keys import flag_hint, key_hint, keys_of
from reinlm.training.config import RLConfig
from reinlm.training.eval_config import EvalConfig

pytestmark = pytest.mark.no_cover

KEYS = [(library, name, alias) for library, table in ALIASES.items() for name, alias in table.items()]


def exists(key: str) -> bool:
    return may_be_named(key, {one.key for verb in ("rl", "sft") for one in keys_of(verb)})


def test_the_check_itself_tells_keys_that_exist_from_others() -> None:
    assert exists("algorithm.gate.clip.low")
    assert exists("critic.optimizer.learning_rate")
    assert not exists("algorithm.gate.clip.middle")
    assert not exists("rollout.learning_rate")


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
        assert exists(alias.ours), alias.ours
    if alias.classical and alias.classical.startswith("--"):
        assert alias.classical in {option for parameter in commands["classical"].params for option in parameter.opts}
    elif alias.classical:
        assert any(alias.classical in find(card.name).Settings.model_fields for card in catalogue())


def test_no_name_without_an_equivalent_is_a_key_of_ours_and_a_note_on_a_section_names_all_its_keys() -> None:
    ours = {one.key for verb in ("rl", "sft") for one in keys_of(verb)}
    assert [name for _, name, alias in KEYS if alias.ours is None and name in ours] == []
    for _, name, alias in KEYS:
        section, _, listed = alias.note.partition(" has ")
        below = {key.removeprefix(f"{section}.").partition(".")[0] for key in ours if key.startswith(f"{section}.")}
        assert below <= set(re.split(", | and ", listed)), name


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"shuffle_dataset": False}, "TRL's shuffle_dataset is data.shuffle"),
        ({"num_generations": 8}, "TRL's num_generations is rollout.group_size"),
        ({"rollout": {"num_generations": 8}}, "TRL's num_generations is rollout.group_size"),
        ({"logging_steps": 1}, "every step is logged"),
        ({"actor_rollout_ref": {"rollout": {"n": 4}}}, "verl's actor_rollout_ref.rollout.n is rollout.group_size"),
        ({"critic": {"optim": {"lr": 1.0}}}, "verl's critic.optim.lr is critic.optimizer.learning_rate"),
        ({"clip_range": 0.1}, "Stable-Baselines3's clip_range is algorithm.gate.clip.low; and"),
        ({"learning_rate": 1e-6}, "the key is optimizer.learning_rate"),
        ({"group_size": 4}, "the key is rollout.group_size"),
        ({"optimizer": {"group_size": 4}}, "the key is rollout.group_size"),
        ({"clip": 0.2}, "algorithm.gate.clip.low"),
        ({"lr": 1e-6}, "lr is optimizer.learning_rate"),
        ({"vllm_mode": "colocate"}, "TRL's vllm_mode is rollout.engine"),
        ({"trainer": {"nnodes": 2}}, "one process"),
        ({"args": object()}, "optimizer={...}"),
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
    assert key_hint(["buffer_size"], verb="rl") is None
    assert "rollout_steps" not in str(key_hint(["n_steps"], verb="rl"))
    assert alias_hint(["n_steps"], classical=True) == f"Stable-Baselines3's n_steps is {SB3['n_steps'].classical}"


def test_every_option_of_the_other_libraries_has_an_entry_or_lies_below_one() -> None:
    for line in (Path(__file__).parent / "keys/foreign_options.txt").read_text().splitlines():
        library, name = line.split()
        table = ALIASES[library]
        assert name in table or any(entry.endswith(".*") and name.startswith(entry[:-1]) for entry in table), line


def test_an_option_of_another_library_as_a_flag_is_answered_with_key_and_value() -> None:
    assert (
        flag_hint("--num-generations", "rl")
        == "TRL's num_generations is rollout.group_size (write KEY=VALUE, without dashes)"
    )
    assert flag_hint("--learning-rate", "sft") == "the key is optimizer.learning_rate (write KEY=VALUE, without dashes)"
    assert flag_hint("--rollout.group_size", "rl") == "write rollout.group_size=VALUE, without dashes"
    assert (
        flag_hint("--clip-range", "classical")
        == "Stable-Baselines3's clip_range is clip (write KEY=VALUE, without dashes)"
    )
    assert flag_hint("--gradient-steps-of-mine", "rl") is None
