"""Golden values of the direct preference losses, worked out in float64 outside the library, with their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reinlm.algorithms import PREFERENCES, preference_algorithm
from reinlm.objectives import Labelled, Pairs
from reinlm.objectives.preference_losses import kto_baseline, kto_loss, log_odds, odds_ratio_loss

NONE: dict[str, float] = {}


def pairs(**changes: torch.Tensor | None) -> Pairs:
    """One pair: h = 1.5, of 5 and of 4 tokens."""
    given = {"chosen": -10.0, "rejected": -12.0, "ref_chosen": -11.0, "ref_rejected": -11.5}
    made: Any = {name: torch.tensor([value], dtype=torch.float64) for name, value in given.items()}
    return Pairs(**{**made, "chosen_length": torch.tensor([5]), "rejected_length": torch.tensor([4]), **changes})


def labelled(**changes: torch.Tensor | None) -> Labelled:
    """The answers of the pair, one desirable and one not: a = 1 and -0.5."""
    given: Any = {
        "logprobs": torch.tensor([-10.0, -12.0], dtype=torch.float64),
        "ref_logprobs": torch.tensor([-11.0, -11.5], dtype=torch.float64),
        "length": torch.tensor([5, 4]),
        "desirable": torch.tensor([True, False]),
    }
    return Labelled(**{**given, **changes})


OF_PAIRS = [
    ("dpo", {}, 0.6209570478),
    ("cdpo", {}, 0.6359570478),
    ("robust_dpo", {}, 0.6022070478),
    ("ipo", {}, 12.25),
    ("ipo", {"length_normalized": True}, 21.855625),
    ("hinge", {"beta": 0.1}, 0.85),
    ("slic", {}, 1.0),
    ("orpo", {}, 2.0288750784),
    ("simpo", {}, 0.3132616875),
    ("cpo", {}, 2.5981388694),
    ("bco_pair", {}, 1.3128563081),
    ("dpo_sft", {"beta": 0.1}, 0.6709570478),
    ("iterative_rpo", {}, 2.6209570478),
    ("dpo_norm", {}, 0.1797446354),
    ("apo_zero", {}, 0.9625234160),
    ("sppo", {}, 36.25),
]


@pytest.mark.parametrize(("name", "changes", "value"), OF_PAIRS)
def test_the_loss_of_the_pair_of_the_sheet(name: str, changes: dict, value: float) -> None:
    loss = preference_algorithm(name, **changes).loss
    assert float(loss(pairs(), loss.prepare(pairs()))) == pytest.approx(value, abs=1e-10)


def test_every_named_algorithm_has_a_vector() -> None:
    assert {name for name, *_ in OF_PAIRS} | {"kto", "bco"} == PREFERENCES.keys()


def test_the_gradient_of_dpo() -> None:
    given = torch.tensor([-10.0], dtype=torch.float64, requires_grad=True)
    loss = preference_algorithm("dpo").loss
    loss(pairs(chosen=given), NONE).sum().backward()
    assert given.grad is not None
    assert given.grad.item() == pytest.approx(-0.0462570155, abs=1e-10)


def test_the_log_odds_and_the_odds_ratio_of_orpo() -> None:
    chosen, rejected = pairs().means
    assert float(log_odds(chosen) - log_odds(rejected)) == pytest.approx(1.0943442769, abs=1e-10)
    assert float(odds_ratio_loss(chosen, rejected)) == pytest.approx(0.2887507844, abs=1e-10)


@pytest.mark.parametrize(
    ("mismatched", "z0", "losses"),
    [
        ([0.0], 0.0, [0.4750208125, 0.4875026035]),
        ([0.4, 0.2], 0.3, [0.4825071423, 0.4800106598]),
        ([-1.0], 0.0, [0.4750208125, 0.4875026035]),
    ],
)
def test_kto_against_answers_to_other_prompts(mismatched: list[float], z0: float, losses: list[float]) -> None:
    loss = preference_algorithm("kto").loss
    constants = loss.prepare(labelled(mismatched=torch.tensor(mismatched, dtype=torch.float64)))
    assert constants == {"z0": pytest.approx(z0)}
    assert loss(labelled(), constants).tolist() == pytest.approx(losses, abs=1e-10)
    assert float(kto_baseline(torch.tensor(mismatched))) == pytest.approx(z0)


def test_bco_about_the_midpoint_of_both_classes() -> None:
    loss = preference_algorithm("bco", beta=0.1).loss
    constants = loss.prepare(labelled())
    assert constants == {
        "desirable_count": 1.0,
        "desirable_total": pytest.approx(0.1),
        "undesirable_count": 1.0,
        "undesirable_total": pytest.approx(-0.05),
        "delta": pytest.approx(0.025),
    }
    assert loss(labelled(), constants).tolist() == pytest.approx([0.6563501408] * 2, abs=1e-10)


@pytest.mark.parametrize(
    ("name", "rewards"),
    [
        ("dpo", (0.1, -0.05)),
        ("dpo_norm", (5 / 5, -2.5 / 4)),
        ("slic", (-10.0, -12.0)),
        ("orpo", (-0.2, -0.3)),
        ("simpo", (-4.0, -6.0)),
        ("cpo", (-1.0, -1.2)),
    ],
)
def test_the_implicit_rewards_of_the_pair(name: str, rewards: tuple[float, float]) -> None:
    chosen, rejected = preference_algorithm(name).loss.rewards(pairs())
    assert (float(chosen), float(rejected)) == pytest.approx(rewards)


def test_weights_and_baseline_that_are_left_out() -> None:
    step = labelled()
    assert kto_loss(step.log_ratio, step.desirable, 0.1, 0.0).tolist() == pytest.approx([0.4750208125, 0.4875026035])
    assert not kto_baseline(torch.ones(2, requires_grad=True)).requires_grad
    assert labelled(mismatched=torch.ones(1)).select(torch.tensor([1])).mismatched is None
