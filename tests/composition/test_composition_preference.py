"""Algorithms of judged answers: by name, with changes, in recipe syntax, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reinlm.algorithms import (
    PREFERENCE_CARDS,
    PREFERENCES,
    PreferenceAlgorithm,
    algorithm,
    is_preference,
    merge_preference_specs,
    preference_algorithm,
    preference_algorithm_spec,
    resolve_preference,
)
from reinlm.errors import InputError
from reinlm.objectives import DPO, IPO, KL, ORPO, Linear, PairLoss, Pairs, SimPO


@pytest.mark.parametrize("name", list(PREFERENCES))
def test_every_name_has_a_card_and_is_rebuilt_from_its_spec(name: str) -> None:
    made = PREFERENCES[name]()
    assert (made.name, made.source) == (name, PREFERENCE_CARDS[name].source)
    assert resolve_preference(preference_algorithm_spec(made)) == made
    assert PREFERENCE_CARDS[name].parent in {None, *PREFERENCES}


@pytest.mark.parametrize(
    ("given", "name"),
    [("DPO", "dpo"), ("Robust-DPO", "robust_dpo"), ("sigmoid", "dpo"), ("RPO", "dpo_sft"), ("slic-hf", "slic"),
     ("apo", "apo_zero"), ("SPPO_hard", "sppo"), ("rso", "hinge")],
)  # fmt: skip
def test_names_of_papers_and_of_trl_are_known_however_they_are_spelt(given: str, name: str) -> None:
    assert preference_algorithm(given).name == name
    assert is_preference(given)


def test_a_given_value_changes_that_value_alone() -> None:
    made = preference_algorithm("simpo", gamma=0.5, kl={"estimator": "full", "coefficient": 0.2}, name="mine")
    assert made.loss == SimPO(beta=2.0, gamma=0.5)
    assert made.kl == KL(estimator="full", coefficient=0.2)
    assert (made.name, made.base, made.needs_reference, made.needs_full_kl) == ("mine", "simpo", True, True)
    assert resolve_preference(preference_algorithm_spec(made)) == made
    assert resolve_preference({"beta": 0.3}) == preference_algorithm("dpo", beta=0.3)
    assert resolve_preference(made) is made
    assert resolve_preference("IPO").name == "ipo"
    assert preference_algorithm("dpo", kl=0.1).kl == KL(coefficient=0.1)
    assert preference_algorithm("dpo", kl=None).kl is None
    assert not preference_algorithm("simpo").needs_reference
    assert not preference_algorithm("simpo", kl=0.0).needs_reference
    assert [preference_algorithm(name).takes for name in ("dpo", "kto")] == ["pairs", "labels"]


def test_another_loss_stands_in_its_place_with_its_own_defaults() -> None:
    made = preference_algorithm("dpo", loss={"ipo": {"length_normalized": True}}, beta=0.3)
    assert made.loss == IPO(beta=0.3, length_normalized=True)
    assert preference_algorithm_spec(made)["loss"] == "ipo"
    assert resolve_preference(preference_algorithm_spec(made)) == made
    assert preference_algorithm("dpo", loss=ORPO()).loss == ORPO()


def test_a_loss_of_the_users_own_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from reinlm.objectives import PairLoss\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Perceptron(PairLoss):\n"
        "    scale: float = 1.0\n\n"
        "    def __call__(self, part, constants):\n"
        "        return (-self.scale * part.difference).relu()\n"
    )
    monkeypatch.chdir(tmp_path)
    made = resolve_preference({"base": "dpo", "loss": "mine.py:Perceptron", "scale": 2.0})
    same, length = torch.tensor([-3.0]), torch.tensor([1])
    pair = Pairs(same, torch.tensor([-2.0]), same, same, length, length)
    assert made.loss(pair, {}).tolist() == [2.0]
    spec = preference_algorithm_spec(made)
    assert (spec["loss"], spec["scale"]) == ("mine.py:Perceptron", 2.0)
    assert resolve_preference(spec) == made


def test_an_object_that_no_file_holds_is_a_placeholder() -> None:
    @dataclass(frozen=True)
    class Local(PairLoss):
        def __call__(self, part: Pairs, constants: Any) -> Tensor:
            return part.difference

    made = PreferenceAlgorithm("mine", Local())
    spec = preference_algorithm_spec(made)
    assert spec["base"] == "dpo"
    assert "Local" in spec["loss"]


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [
        ("ipo", {"beta": 0.2}, {"base": "ipo", "beta": 0.2}),
        ({"base": "dpo", "beta": 0.2}, "DPO", {"base": "dpo", "beta": 0.2}),
        ({"base": "dpo", "beta": 0.2}, "kto", "kto"),
        ({"beta": 0.2}, {"kl": 0.1}, {"beta": 0.2, "kl": 0.1}),
        ("dpo", "dpo", "dpo"),
        ({"loss": {"ipo": {"beta": 0.2}}}, {"loss": {"ipo": {"length_normalized": True}}},
         {"loss": {"ipo": {"beta": 0.2, "length_normalized": True}}}),
        ("dpo", {"base": 3}, {"base": 3}),
        ("dpo", 3, 3),
    ],
)  # fmt: skip
def test_changes_over_changes(old: Any, new: Any, merged: Any) -> None:
    assert merge_preference_specs(old, new) == merged


def test_changes_of_a_kl_keep_its_other_values() -> None:
    merged = merge_preference_specs({"base": "dpo", "kl": "full"}, {"kl": 0.3})
    assert resolve_preference(merged).kl == KL(estimator="full", coefficient=0.3)


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: preference_algorithm("dpoo"), "unknown algorithm of dpo 'dpoo'", "did you mean 'dpo'?"),
        (lambda: preference_algorithm("GRPO"), "algorithm 'GRPO' learns from rewards", "rl --algorithm grpo"),
        (lambda: algorithm("Or-po"), "algorithm 'Or-po' learns from judged answers", "dpo --algorithm orpo"),
        (lambda: algorithm("rpo"), "algorithm 'rpo' learns from judged answers", "dpo --algorithm dpo_sft"),
        (lambda: preference_algorithm("dpo", gamma=1.0), "algorithm dpo does not use 'gamma'", "gamma is of simpo"),
        (lambda: preference_algorithm("kto", label_smoothing=0.1), "algorithm kto does not use", "is of cdpo, robust_dpo"),
        (lambda: preference_algorithm("dpo", bta=0.1), "algorithm dpo has no value 'bta'", "did you mean 'beta'?"),
        (lambda: preference_algorithm("dpo", zzz=0.1), "algorithm dpo has no value 'zzz'", "dpo takes beta, margin_weight"),
        (lambda: preference_algorithm("dpo", beta="much"), "dpo.beta: input should be a valid number", None),
        (lambda: preference_algorithm("dpo", beta=-1.0), "algorithm dpo: dpo: beta must be more than 0", None),
        (lambda: preference_algorithm("dpo", name=""), "name: '' is no name for an algorithm", "a text"),
        (lambda: preference_algorithm("dpo", kl=[0.1, 0.2]), "kl: a list holds several KL terms", None),
        (lambda: preference_algorithm("dpo", kl=[{}, {}]), "algorithm dpo: kl: there is one KL, not a list of 2", None),
        (lambda: preference_algorithm("dpo", kl="k3_unbiased"), "algorithm dpo: KL estimator 'k3_unbiased' wants samples", None),
        (lambda: preference_algorithm("dpo", kl={"placement": "token_reward", "estimator": "k1"}),
         "algorithm dpo: the KL of a preference algorithm stands in the loss", None),
        (lambda: preference_algorithm("dpo", kl=KL(controller=Linear(0.0, 10))),
         "algorithm dpo: the KL of a preference algorithm stands in the loss", None),
        (lambda: preference_algorithm("dpo", kl=KL(anchor="teacher", estimator="full")),
         "algorithm dpo: the KL of a preference algorithm stands in the loss", None),
        (lambda: preference_algorithm("dpo", loss=None), "loss: null is no loss", "names: dpo, "),
        (lambda: preference_algorithm("dpo", loss="ippo"), "unknown preference 'ippo'", "did you mean 'ipo'"),
        (lambda: preference_algorithm("dpo", loss=len), "loss: builtin_function_or_method is no loss", "derive"),
        (lambda: resolve_preference(3), "algorithm: cannot read 3", "{base: dpo, beta: 0.2}"),  # type: ignore[arg-type]
        (lambda: resolve_preference({"base": 3}), "algorithm.base: 3 is no name", "one of apo_zero"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Any, message: str, hint: str | None) -> None:
    with pytest.raises(InputError) as raised:
        make()
    assert raised.value.message.startswith(message)
    assert hint is None or hint in str(raised.value.hint)


@pytest.mark.parametrize(("estimator", "expected"), [("k2", 0.5 * 0.5**2), ("k3", 0.1487212707), ("full", 0.7)])
def test_the_regulariser_of_each_token(estimator: str, expected: float) -> None:
    made = preference_algorithm("dpo", kl={"estimator": estimator, "coefficient": 0.3})
    logprobs = torch.tensor([-2.5], dtype=torch.float64, requires_grad=True)
    ref_logprobs = torch.tensor([-2.0], dtype=torch.float64)
    found = made.regularize(logprobs, ref_logprobs, torch.tensor([0.7], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0.3 * expected])
    with pytest.raises(ValueError, match="dpo has no KL"):
        preference_algorithm("dpo").regularize(logprobs, ref_logprobs)
    assert made.loss == DPO()
