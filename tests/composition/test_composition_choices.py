"""From a recipe's words to an algorithm and back, and what a wrong word gets."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from reinlm.algorithms import ALGORITHMS, MixedOutcomes, SoftOverlong, Updates, algorithm, algorithm_spec, resolve
from reinlm.algorithms.dapo import dapo
from reinlm.algorithms.grpo import grpo
from reinlm.algorithms.gspo import gspo
from reinlm.config import dump_yaml, parse_yaml
from reinlm.errors import InputError
from reinlm.objectives import (
    GAE,
    KL,
    Clip,
    ConstantBudget,
    GroupCenter,
    GroupStandardize,
    OffPolicyMask,
    SequenceRatio,
    TokenRatio,
    Whitened,
    prompt_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
)


def refused(**changes):
    """What the user is told."""
    with pytest.raises(InputError) as error:
        algorithm("grpo", **changes)
    assert isinstance(error.value, ValueError)
    return error.value.message, error.value.hint


# ------------------------------------------------------------------------------------------------ the ladder


def test_grpo_is_the_papers():
    mine = grpo()
    assert mine.advantage == GroupStandardize(epsilon=1e-6, bessel=False)
    assert (mine.ratio, mine.gate, mine.aggregation) == (TokenRatio(), Clip(0.2, 0.2), sequence_mean)
    assert mine.kl == KL("k3", 0.04)
    assert (mine.shapers, mine.filters) == ((), ())


def test_dapo_is_grpo_that_clips_higher_weighs_tokens_alike_filters_and_shapes():
    changed = replace(grpo(), name="dapo", gate=Clip(0.2, 0.28), aggregation=token_mean, kl=None, source=dapo().source)
    changed = replace(changed, updates=Updates(minibatches=16))
    assert dapo() == replace(changed, filters=(MixedOutcomes(),), shapers=(SoftOverlong(),))


def test_gspo_is_grpo_with_one_ratio_a_sequence_and_its_range():
    assert gspo() == replace(
        grpo(),
        name="gspo",
        ratio=SequenceRatio(),
        gate=Clip(3e-4, 4e-4),
        kl=None,
        updates=Updates(minibatches=4),
        source=gspo().source,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_name_builds_the_algorithm_of_that_name_and_cites_its_paper(name):
    assert algorithm(name).name == name
    assert "arXiv" in algorithm(name).source or name == "reinforce"
    assert resolve(name) == resolve({"base": name}) == algorithm(name) == ALGORITHMS[name]()
    assert resolve(algorithm(name)) == algorithm(name)


# ------------------------------------------------------------------------------------------------ shorthands


@pytest.mark.parametrize(
    ("change", "choice", "expected"),
    [
        ({"gate": Clip(0.1, 0.3)}, "gate", Clip(0.1, 0.3)),
        ({"gate": "clip"}, "gate", Clip()),
        ({"gate": {"clip": [0.1, 0.3]}}, "gate", Clip(0.1, 0.3)),
        ({"gate": {"clip": (0.1, 0.3)}}, "gate", Clip(0.1, 0.3)),
        ({"gate": {"clip": 0.1}}, "gate", Clip(0.1, 0.1)),
        ({"gate": {"clip": {"high": 1}}}, "gate", Clip(0.2, 1)),
        ({"ratio": "sequence"}, "ratio", SequenceRatio()),
        ({"ratio": {"token": {}}}, "ratio", TokenRatio()),
        ({"advantage": "group_center"}, "advantage", GroupCenter()),
        ({"advantage": {"group_standardize": {"bessel": True}}}, "advantage", GroupStandardize(bessel=True)),
        ({"advantage": {"group_standardize": [1e-4, True]}}, "advantage", GroupStandardize(1e-4, True)),
        ({"aggregation": "token_mean"}, "aggregation", token_mean),
        ({"aggregation": {"prompt_mean": None}}, "aggregation", prompt_mean),
        ({"aggregation": "sequence_sum"}, "aggregation", sequence_sum),
        ({"aggregation": sequence_mean}, "aggregation", sequence_mean),
        ({"aggregation": {"constant_budget": 3000}}, "aggregation", ConstantBudget(3000)),
        ({"aggregation": ConstantBudget(9)}, "aggregation", ConstantBudget(9)),
        ({"kl": None}, "kl", None),
        ({"kl": KL("k2", 0.1)}, "kl", KL("k2", 0.1)),
        ({"kl": {"coefficient": 0.01}}, "kl", KL("k3", 0.01)),
        ({"kl": {"estimator": "k2"}}, "kl", KL("k2", 0.04)),
        ({"kl": {}}, "kl", KL("k3", 0.04)),
        ({"shapers": "soft_overlong"}, "shapers", (SoftOverlong(),)),
        ({"shapers": [{"soft_overlong": [100, 0.5]}]}, "shapers", (SoftOverlong(100, 0.5),)),
        ({"shapers": SoftOverlong(9)}, "shapers", (SoftOverlong(9),)),
        ({"shapers": None}, "shapers", ()),
        ({"filters": []}, "filters", ()),
        (
            {"filters": ({"mixed_outcomes": "math"}, "mixed_outcomes")},
            "filters",
            (MixedOutcomes("math"), MixedOutcomes()),
        ),
        ({"name": "mine"}, "name", "mine"),
    ],
)
def test_a_change_replaces_one_choice_and_leaves_the_others(change, choice, expected):
    mine = algorithm("grpo", **change)
    assert getattr(mine, choice) == expected
    origin: dict[str, Any] = {"base": "grpo"} if choice == "name" else {}
    assert mine == replace(grpo(), **origin | {choice: expected})
    assert resolve({"base": "grpo", **change}) == mine


def test_kl_values_start_from_the_base_and_from_the_defaults_where_it_has_none():
    assert algorithm("grpo", kl={"estimator": "k2"}).kl == KL("k2", 0.04)
    assert algorithm("dapo", kl={"coefficient": 0.001}).kl == KL("k3", 0.001)
    assert resolve({"base": "grpo", "kl": None}).kl is None


# ------------------------------------------------------------------------------------------------ round trips


def own_filter(group):
    return True


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"name": "mine"},
        {"name": "dapo", "kl": [{"coefficient": 1e-3, "estimator": "k2"}]},
        {
            "aggregation": {"constant_budget": 77},
            "advantage": "group_center",
            "critic": None,
            "kl": None,
            "gate": {"clip": [0.1, 0.9]},
        },
        {
            "advantage": "group_center",
            "critic": None,
            "kl": None,
            "filters": {"mixed_outcomes": "math"},
            "shapers": {"soft_overlong": {"max_length": 100, "cache": 10}},
        },
        {"filters": None, "shapers": None, "aggregation": "prompt_mean", "ratio": "token"},
    ],
)
def test_a_description_rebuilds_the_same_algorithm_through_yaml(name, changes):
    mine = algorithm(name, **changes)
    assert resolve(yaml.safe_load(yaml.safe_dump(algorithm_spec(mine)))) == mine
    assert resolve(json.loads(json.dumps(algorithm_spec(mine)))) == mine


def test_a_changed_name_of_a_changed_name_still_knows_its_origin():
    from reinlm.composition.choices import compose

    twice = compose(algorithm("dapo", name="mine"), {"name": "yours", "gate": "clip"})
    assert (twice.name, twice.base) == ("yours", "dapo")
    assert resolve(algorithm_spec(twice)) == twice
    assert compose(twice, {"name": "dapo"}).base == ""
    assert compose(twice, {"gate": "clip"}) == twice


def test_a_description_spells_every_choice_out():
    assert algorithm_spec(algorithm("dapo", name="mine", kl={"coefficient": 0.5})) == {
        "base": "dapo",
        "name": "mine",
        "advantage": {"group_standardize": {"epsilon": 1e-6, "bessel": False}},
        "ratio": {"token": {"against": "old"}},
        "gate": {"clip": {"low": 0.2, "high": 0.28, "dual": None}},
        "aggregation": "token_mean",
        "corrections": [],
        "terms": [],
        "constraints": [],
        "sequence_mask": None,
        "selection": None,
        "entropy": None,
        "critic": None,
        "overlong": "keep",
        "shapers": [{"soft_overlong": {"max_length": None, "cache": 0.2}}],
        "filters": [{"mixed_outcomes": {"reward": None, "correct_above": None}}],
        "kl": {
            "estimator": "k3",
            "coefficient": 0.5,
            "anchor": "reference",
            "placement": "loss",
            "controller": None,
            "direction": None,
            "allow_reward_alone": False,
        },
    }
    assert algorithm_spec(algorithm("gspo"))["kl"] is None


@dataclass(frozen=True)
class OwnGate:
    width: float = 2.0

    def __call__(self, log_ratio, logprobs, signals): ...


class PlainFilter:
    def __call__(self, group): ...


plain_filter = PlainFilter()


def test_choices_from_outside_the_library_are_named_by_their_place_and_come_back():
    mine = algorithm("grpo", gate=OwnGate(3.0), filters=[own_filter, plain_filter])
    spec = algorithm_spec(mine)
    assert spec["gate"] == {"tests/composition/test_composition_choices.py:OwnGate": {"width": 3.0}}
    home = "tests/composition/test_composition_choices.py"
    assert spec["filters"] == [f"{home}:own_filter", f"{home}:plain_filter"]
    again = resolve(parse_yaml(dump_yaml(spec), "spec"))
    assert again == mine


def test_what_no_file_names_stands_as_a_placeholder_that_is_asked_for_again():
    @dataclass(frozen=True)
    class Local:
        width: float = 2.0

        def __call__(self, log_ratio, logprobs, signals): ...

    spec = algorithm_spec(algorithm("grpo", gate=Local(), filters=[lambda group: True]))
    assert spec["gate"].endswith("Local(width=2.0) given in Python>")
    assert spec["filters"][0].endswith("<lambda> given in Python>")
    with pytest.raises(InputError, match="gate was given in Python and is not in the file"):
        resolve(spec)


def test_an_algorithm_composed_under_a_name_of_its_own_comes_back():
    base = algorithm("dapo")
    mine = replace(base, name="my_own", base="", updates=Updates(2, 3), kl=KL("k2", 0.2), sequence_mask=OffPolicyMask())
    spec = parse_yaml(dump_yaml(algorithm_spec(mine)), "spec")
    assert replace(resolve(spec), base="", source=mine.source) == mine
    assert algorithm_spec(resolve(spec)) == spec


# ------------------------------------------------------------------------------------------------ errors


def test_an_unknown_algorithm_is_told_the_nearest():
    with pytest.raises(InputError) as error:
        algorithm("dappo")
    assert error.value.message == "unknown algorithm 'dappo'"
    assert error.value.hint == "did you mean 'dapo'? Allowed: " + ", ".join(sorted(ALGORITHMS))


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"gates": "clip"}, "unknown choice of grpo 'gates'", "did you mean 'gate'?"),
        ({"gate": "clipp"}, "unknown gate 'clipp'", "did you mean 'clip'?"),
        ({"aggregation": {"tokens": 1}}, "unknown aggregation 'tokens'", "did you mean 'token_mean'?"),
        ({"gate": {3: 1}}, "unknown gate '3'", "allowed: clip, "),
        ({"gate": [0.1, 0.2]}, "gate: cannot read [0.1, 0.2]", "names: none, clip"),
        ({"gate": {"clip": 0.1, "other": 1}}, "gate: cannot read {'clip': 0.1, 'other': 1}", "{name: values}"),
        ({"gate": None}, "gate: cannot read None", "names: none, clip"),
        ({"ratio": TokenRatio}, "ratio: TokenRatio is a class", "give an instance of it: TokenRatio(…)"),
        ({"gate": TokenRatio()}, "gate: cannot read TokenRatio(against='old')", "names: none, clip"),
        pytest.param({"gate": token_mean}, f"gate: cannot read {token_mean!r}", "names: none, clip", id="a function"),
        ({"filters": [3]}, "filter: cannot read 3", "names: mixed_outcomes"),
        ({"gate": {"clip": {"lo": 0.1}}}, "unknown value of clip 'lo'", "did you mean 'low'?"),
        (
            {"gate": {"clip": [0.1, 0.2, 3.0, 4.0]}},
            "clip takes 3 values, not 4: [0.1, 0.2, 3.0, 4.0]",
            "low, high, dual",
        ),
        ({"aggregation": {"token_mean": 3}}, "token_mean takes no values: 3", "write token_mean alone"),
        ({"aggregation": {"token_mean": {"x": 3}}}, "token_mean takes no values: {'x': 3}", "write token_mean alone"),
        ({"gate": {"clip": "a"}}, "clip.low: input should be a valid number (given: 'a')", None),
        ({"gate": {"clip": True}}, "clip.low: input should be a valid number (given: True)", None),
        (
            {"advantage": {"group_standardize": {"bessel": "no"}}},
            "group_standardize.bessel: input should be a valid boolean (given: 'no')",
            None,
        ),
        ({"aggregation": "constant_budget"}, "constant_budget needs a value for 'length'", "{constant_budget: value}"),
        (
            {"aggregation": {"constant_budget": 0}},
            "algorithm grpo: a constant budget needs a length of at least 1",
            None,
        ),
        ({"aggregation": {"constant_budget": 1.5}}, "constant_budget.length: input should be a valid integer", None),
        ({"gate": {"clip": [0.0, 0.2]}}, "algorithm grpo: clip: low must be in (0, 1]", None),
        ({"gate": {"clip": [0.2, -1]}}, "algorithm grpo: clip: high must be more than 0", None),
        (
            {"advantage": {"group_standardize": -1.0}},
            "algorithm grpo: epsilon must be at least 0 and finite, not -1.0",
            None,
        ),
        ({"kl": True}, "kl: True is no KL choice", "null for none, a coefficient (0.04), an estimator (k3), or {"),
        ({"kl": ["k3", 0.1]}, "kl: a list holds several KL terms, not the values of one", "{estimator: k3, "),
        ({"advantage": {"whitened": None}}, "advantage: there is no whitened to remove", "leave whitened: null out"),
        ({"kl": {"coeff": 1}}, "unknown value of kl 'coeff'", "did you mean 'coefficient'?"),
        ({"kl": {"beta": 0.1}}, "unknown value of kl 'beta'", "it is called coefficient here"),
        ({"kl": {"coefficient": "x"}}, "kl.coefficient: input should be a valid number (given: 'x')", None),
        ({"kl": {"coefficient": -1}}, "algorithm grpo: the KL coefficient must be at least 0 and finite, not -1", None),
        ({"kl": {"estimator": "k1"}}, "algorithm grpo: k1 as a loss has no gradient in expectation", None),
        (
            {"kl": {"estimator": "k7"}},
            "algorithm grpo: unknown KL estimator 'k7'; allowed: f3_unbiased, full, k1, k2, k3, k3_unbiased",
            None,
        ),
        ({"name": ""}, "name: '' is no name for an algorithm", "a text such as my_grpo"),
        ({"name": 3}, "name: 3 is no name for an algorithm", "a text such as my_grpo"),
        (
            {"ratio": "sequence", "aggregation": "token_mean"},
            "algorithm grpo: one ratio a sequence under a token mean lets long answers weigh more than short ones; "
            "take aggregation=sequence_mean, or ratio=token",
            None,
        ),
        (
            {"shapers": {"soft_overlong": [0]}},
            "algorithm grpo: soft overlong: max_length must be at least 1 token",
            None,
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(change, message, hint):
    told, hinted = refused(**change)
    assert told.startswith(message)
    assert "\n" not in told
    assert hint is None or hint in (hinted or "")


def test_contradictions_are_found_between_a_base_and_a_change():
    with pytest.raises(InputError, match=r"^algorithm dapo: one ratio a sequence under a token mean"):
        algorithm("dapo", ratio="sequence")
    assert algorithm("dapo", ratio="sequence", aggregation="sequence_mean").ratio == SequenceRatio()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kl": None}, "algorithm: a mapping needs 'base', the algorithm that it changes"),
        ({"base": 3}, "algorithm: a mapping needs 'base', the algorithm that it changes"),
        (["grpo"], "algorithm: cannot read ['grpo']"),
        (None, "algorithm: cannot read None"),
    ],
)
def test_a_recipe_that_names_no_algorithm_is_told_how(spec, message):
    with pytest.raises(InputError) as error:
        resolve(spec)
    assert (error.value.message, "base: grpo" in (error.value.hint or "")) == (message, True)


# ------------------------------------------------------------------------------------------------ earlier names


def test_a_recipe_of_0_1_names_the_same_algorithms(recwarn):
    """Every named algorithm as version 0.1 described it: what it says now differs in spelling alone."""
    recorded = json.loads((Path(__file__).parent / "named_0.1.json").read_text())
    assert len(recorded) == 14
    for name, tree in recorded.items():
        assert resolve(tree) == algorithm(name)
    assert {warning.category for warning in recwarn} == {FutureWarning}


def test_an_earlier_name_of_a_value_is_read_and_told_the_new_one():
    with pytest.warns(FutureWarning, match=r"^gae: smoothing is named gae_lambda; say gae_lambda$"):
        mine = algorithm("ppo", advantage={"gae": {"smoothing": 0.5}})
    assert mine.advantage == Whitened(GAE(gae_lambda=0.5, bootstrap_truncated=False))
    with pytest.raises(InputError, match=r"^gae: discount and gamma are one value, given twice"):
        algorithm("ppo", advantage={"gae": {"discount": 0.5, "gamma": 0.5}})
    with pytest.raises(InputError, match=r"^unknown value of clip 'smoothing'"):
        algorithm("ppo", gate={"clip": {"smoothing": 0.5}})


def test_an_algorithm_is_shown_as_a_table_of_its_choices() -> None:
    page = algorithm("dapo")._repr_html_()
    assert page.count("<table") == page.count("</table>") == 1
    for text in ("dapo", "clip 0.2 0.28", "token_mean"):
        assert f">{text}<" in page
