"""A given value changes that value and nothing beside it: every leaf of every choice of every named algorithm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reinlm.algorithms import ALGORITHMS, algorithm, algorithm_spec, merge_specs, resolve
from reinlm.composition import Algorithm, SoftOverlong, compose
from reinlm.errors import InputError
from reinlm.objectives import (
    GAE,
    KL,
    Advantage,
    Clip,
    GroupCenter,
    Masked,
    Soft,
    Truncated,
    Whitened,
    choice,
    token_mean,
)
from reinlm.recipe import merge_settings, override
from reinlm.sources import leaves

NUDGES: dict[type, Any] = {float: lambda x: x * 0.75 or 0.125, int: lambda x: x + 1, bool: lambda x: not x}
WORDS = {
    "against": "rollout",
    "by": "episode",
    "estimator": "k2",
    "placement": "loss",
    "overlong": "filter_after_baseline",
}


def leaves_of(name: str) -> list[tuple[tuple[str, ...], Any]]:
    """The numbers, switches and words in the choices of a named algorithm, with another value that each may have."""
    found = []
    for path, value in leaves(algorithm_spec(algorithm(name))):
        if type(value) in NUDGES:
            found.append((path, NUDGES[type(value)](value)))
        elif path[-1] in WORDS and value != WORDS[path[-1]]:
            found.append((path, WORDS[path[-1]]))
    return found


CASES = [(name, path, value) for name in ALGORITHMS for path, value in leaves_of(name)]


def nested(path: tuple[str, ...], value: Any) -> Any:
    for part in reversed(path):
        value = {part: value}
    return value


def accepted(name: str, changes: dict[str, Any]) -> Algorithm | None:
    """The changed algorithm; None where its choices contradict one another."""
    try:
        return algorithm(name, **changes)
    except InputError:
        return None


@pytest.mark.parametrize(
    ("name", "path", "value"), CASES, ids=lambda value: str(value) if isinstance(value, str) else ""
)
def test_one_leaf_changes_that_leaf_alone(name: str, path: tuple[str, ...], value: Any) -> None:
    changed = accepted(name, nested(path, value))
    if changed is None:
        return
    before, after = (dict(leaves(algorithm_spec(made))) for made in (algorithm(name), changed))
    assert {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)} == {path}
    assert after[path] == value
    words = [f"algorithm.{'.'.join(path)}={str(value).lower()}"]
    assert resolve(override({"algorithm": name}, words)["algorithm"]) == changed
    assert resolve(algorithm_spec(changed)) == changed


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted({name for name, _, _ in CASES})), st.data())
def test_two_leaves_one_after_the_other_are_both_at_once(name: str, data: st.DataObject) -> None:
    mine = [(path, value) for case, path, value in CASES if case == name]
    (one, first), (two, second) = (data.draw(st.sampled_from(mine)) for _ in range(2))
    merged = merge_specs(merge_specs(name, nested(one, first), "grpo"), nested(two, second), "grpo")
    try:
        changed = resolve(merged)
    except InputError:
        return
    before = dict(leaves(algorithm_spec(algorithm(name))))
    assert dict(leaves(algorithm_spec(changed))) == before | {one: first} | {two: second}


GAE_OF_PPO = GAE(gamma=1.0, gae_lambda=0.95, bootstrap_truncated=False)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("gspo", {"gate": {"clip": {"high": 5e-4}}}, {"gate": Clip(3e-4, 5e-4)}),
        ("gspo", {"gate": {"clip": [1e-4]}}, {"gate": Clip(1e-4, 4e-4)}),
        ("gspo", {"gate": {"clip": 1e-4}}, {"gate": Clip(1e-4, 1e-4)}),
        ("gspo", {"gate": "clip"}, {}),
        ("gspo", {"gate": "soft"}, {"gate": Soft()}),
        ("gspo", {"gate": Clip()}, {"gate": Clip()}),
        ("ppo", {"advantage": {"gae": {"gae_lambda": 0.9}}}, {"advantage": Whitened(replace(GAE_OF_PPO, gae_lambda=0.9))}),
        ("ppo", {"advantage": "gae"}, {}),
        ("ppo", {"advantage": {"whitened": {"by": "episode"}}}, {"advantage": Whitened(GAE_OF_PPO, by="episode")}),
        ("ppo", {"advantage": {"whitened": {"gae": {"gamma": 0.5}}}},
         {"advantage": Whitened(replace(GAE_OF_PPO, gamma=0.5))}),
        ("ppo", {"advantage": {"whitened": None}}, {"advantage": GAE_OF_PPO}),
        ("ppo", {"advantage": {"whitened": None, "gae": {"gamma": 0.5}}}, {"advantage": replace(GAE_OF_PPO, gamma=0.5)}),
        ("ppo", {"advantage": GAE()}, {"advantage": GAE()}),
        ("dapo", {"advantage": "whitened"}, {"advantage": Whitened(algorithm("dapo").advantage)}),
        ("dapo", {"advantage": {"whitened": "group_center"}}, {"advantage": Whitened(GroupCenter())}),
        ("grpo", {"kl": 0.1}, {"kl": KL("k3", 0.1)}),
        ("grpo", {"kl": "k2"}, {"kl": KL("k2", 0.04)}),
        ("grpo", {"kl": {"coefficient": 0.1}}, {"kl": KL("k3", 0.1)}),
        ("dapo", {"kl": 0.1}, {"kl": KL("k3", 0.1)}),
        ("grpo", {"kl": [0.1]}, None),
        ("grpo", {"kl": None}, {"kl": None}),
        ("ppo", {"critic": {"clip": None}}, {"critic": replace(algorithm("ppo").critic, clip=None)}),  # type: ignore[type-var]
        ("dapo", {"shapers": {"soft_overlong": {"cache": 0.1}}},
         {"shapers": (SoftOverlong(cache=0.1),)}),
        ("dapo", {"shapers": "soft_overlong"}, {}),
        ("dapo", {"filters": None}, {"filters": ()}),
        ("dapo", {"aggregation": token_mean}, {}),
    ],
)  # fmt: skip
def test_the_same_kind_keeps_its_values_and_another_has_its_own(name: str, changes: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(InputError, match="a list holds several KL terms"):
            algorithm(name, **changes)
        return
    changed = algorithm(name, **changes)
    assert changed == replace(algorithm(name), **expected)
    assert resolve(algorithm_spec(changed)) == changed
    assert resolve({"base": name, **changes}) == changed


def test_changes_of_several_layers_end_where_one_would() -> None:
    recipe = {"algorithm": {"base": "ppo", "advantage": {"whitened": None}, "gate": {"clip": [0.1, 0.3]}}}
    tree = override(
        merge_settings(recipe, {"algorithm": "ppo"}),
        ["algorithm.advantage.gae.gamma=0.5", "algorithm.gate.clip.high=0.4"],
    )
    made = resolve(tree["algorithm"])
    assert (made.advantage, made.gate) == (replace(GAE_OF_PPO, gamma=0.5), Clip(0.1, 0.4))
    assert merge_settings(recipe, {"algorithm": "dapo"})["algorithm"] == "dapo"
    assert merge_settings({}, {"algorithm": {"kl": 0.1}})["algorithm"] == {"kl": 0.1}


def test_weights_is_the_earlier_name_of_aggregation() -> None:
    with pytest.warns(FutureWarning, match=r"^algorithm: weights is named aggregation; say aggregation$"):
        assert algorithm("grpo", weights="token_mean") == algorithm("grpo", aggregation="token_mean")
    made = algorithm("grpo")
    with pytest.warns(FutureWarning, match=r"weights is named aggregation"):
        assert made.weights is made.aggregation  # type: ignore[attr-defined]
    with pytest.warns(FutureWarning, match=r"weights is named aggregation"):
        again = Algorithm(name="grpo", advantage=made.advantage, ratio=made.ratio, gate=made.gate, weights=token_mean)  # type: ignore[call-arg]
    assert again.aggregation is token_mean
    with pytest.warns(FutureWarning):
        tree = merge_settings(
            {"algorithm": {"base": "grpo", "weights": "token_mean"}}, {"algorithm": {"aggregation": "prompt_mean"}}
        )
    assert tree["algorithm"] == {"base": "grpo", "aggregation": {"prompt_mean": {}}}
    with pytest.raises(InputError, match="weights and aggregation are one choice, given twice"):
        algorithm("grpo", weights="token_mean", aggregation="token_mean")


def test_a_wrapper_inside_another_is_removed_and_the_outer_one_stays() -> None:
    @choice("advantage", "twice")
    @dataclass(frozen=True)
    class Twice(Whitened):
        def __call__(self, feedback: Any) -> Any:
            return 2.0 * self.advantage(feedback)

    made = algorithm("ppo", advantage=Twice(Whitened(GAE_OF_PPO)))
    assert compose(made, {"advantage": {"whitened": None}}).advantage == Twice(GAE_OF_PPO)


def test_several_names_in_one_mapping_are_a_list_of_choices() -> None:
    changed = algorithm("grpo", corrections={"truncated": 3.0, "masked": {"high": 4.0}})
    assert changed.corrections == (Truncated(cap=3.0), Masked(high=4.0))
    for nothing in (None, 3):
        with pytest.raises(InputError, match=r"^correction: cannot read "):
            algorithm("grpo", corrections=[nothing])


class Scale:
    """A type of the user's own."""


def test_values_of_a_users_own_type_and_of_types_that_are_there_for_checkers_alone_are_taken_as_they_are() -> None:
    @choice("advantage", "scaled")
    @dataclass(frozen=True)
    class Scaled(Advantage):
        scale: Scale
        edges: tuple[float, ...] = ()

        def __call__(self, feedback: Any) -> Any:
            return feedback.effective_rewards

    @choice("advantage", "unknown_type")
    @dataclass(frozen=True)
    class OfAnUnknownType(Advantage):
        level: NoSuchType  # type: ignore[name-defined]  # noqa: F821

        def __call__(self, feedback: Any) -> Any:
            return feedback.effective_rewards

    Scaled.__annotations__["scale"] = Scale
    scale = Scale()
    made = algorithm("grpo", advantage={"scaled": {"scale": scale, "edges": [0.5, 1]}}).advantage
    assert made == Scaled(scale, (0.5, 1.0))
    assert algorithm("grpo", advantage={"unknown_type": {"level": "any"}}).advantage == OfAnUnknownType("any")


def test_specs_that_are_no_recipes_replace_and_the_same_name_changes_nothing() -> None:
    made = algorithm("dapo")
    assert merge_specs("dapo", made, "grpo") is made
    assert merge_specs({"base": 3}, "dapo", "grpo") == "dapo"
    assert merge_specs("dapo", "dapo", "grpo") == "dapo"
    assert merge_specs({"base": "dapo", "kl": 0.1}, "DAPO", "grpo") == {"base": "dapo", "kl": 0.1}


def test_a_choice_that_cannot_be_read_is_refused_unless_an_object_replaces_it() -> None:
    unreadable = {"base": "dapo", "advantage": "nosuch"}
    with pytest.raises(InputError, match="unknown advantage 'nosuch'"):
        merge_specs(unreadable, {"advantage": "gae"}, "grpo")
    assert resolve(merge_specs(unreadable, {"advantage": GroupCenter()}, "grpo")).advantage == GroupCenter()
