"""Losses of pairs and of labelled answers against loops in NumPy, and what holds of all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles_preferences as oracle
from reinlm.objectives import (
    BCO,
    CHOICES,
    CPO,
    DPO,
    IPO,
    KTO,
    ORPO,
    SPPO,
    APOZero,
    BCOPair,
    ConservativeDPO,
    DPOWithSFT,
    Hinge,
    Labelled,
    LabelLoss,
    NormalizedDPO,
    PairLoss,
    Pairs,
    RobustDPO,
    SimPO,
    SLiC,
)
from reinlm.objectives.preference_losses import log_odds

PAIR_LOSSES: dict[str, list[PairLoss]] = {
    "dpo": [DPO(), DPO(beta=0.7, margin_weight=0.3)],
    "cdpo": [ConservativeDPO(), ConservativeDPO(beta=0.5, label_smoothing=0.3)],
    "robust_dpo": [RobustDPO(), RobustDPO(beta=0.5, label_smoothing=0.4)],
    "ipo": [IPO(), IPO(beta=0.4, length_normalized=True)],
    "hinge": [Hinge(), Hinge(beta=0.6)],
    "dpo_norm": [NormalizedDPO(), NormalizedDPO(beta=0.8)],
    "apo_zero": [APOZero(), APOZero(beta=0.5)],
    "sppo": [SPPO(), SPPO(beta=0.5)],
    "bco_pair": [BCOPair(), BCOPair(beta=0.5)],
    "dpo_sft": [DPOWithSFT(), DPOWithSFT(0.3, 0.5, "sequence_mean"), DPOWithSFT(0.3, 0.5, "token_mean")],
    "slic": [SLiC(), SLiC(2.0, 0.3, "token_mean"), SLiC(2.0, 0.3, "sequence_sum")],
    "orpo": [ORPO(), ORPO(0.5, 0.7, "token_mean")],
    "simpo": [SimPO(), SimPO(beta=1.5, gamma=0.4)],
    "cpo": [CPO(), CPO(0.4, 0.2, "token_mean"), CPO(0.4, 0.0, "sequence_sum")],
}
EACH = [(name, loss) for name, losses in PAIR_LOSSES.items() for loss in losses]


@st.composite
def data(draw: Any, least: int = 0) -> dict[str, np.ndarray]:
    """Pairs whose sides may be empty, in which case their sums are 0."""
    count = draw(st.integers(least, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = rng.integers(0, 6, (2, count))
    sums = -rng.exponential(0.8, (2, count)) * lengths - 1e-3 * (lengths > 0)
    refs = np.where(lengths > 0, sums + rng.normal(size=(2, count)), 0.0)
    return {
        "chosen": sums[0],
        "rejected": sums[1],
        "ref_chosen": refs[0],
        "ref_rejected": refs[1],
        "chosen_length": lengths[0],
        "rejected_length": lengths[1],
        "margin": rng.random(count) * 2,
    }


def pairs_of(drawn: dict[str, np.ndarray]) -> Pairs:
    return Pairs(**{name: torch.tensor(values) for name, values in drawn.items()})


def test_every_loss_is_tried() -> None:
    assert PAIR_LOSSES.keys() | {"kto", "bco"} == CHOICES["preference"].keys()
    assert all(type(loss) is CHOICES["preference"][name] for name, loss in EACH)


@pytest.mark.parametrize(("name", "loss"), EACH)
@given(drawn=data(least=1))
def test_a_loss_of_pairs_is_that_of_the_loop(name: str, loss: PairLoss, drawn: dict[str, np.ndarray]) -> None:
    if name == "orpo":  # odds of certainty are infinite: an empty side has none
        drawn = drawn | {"chosen": drawn["chosen"] - 0.1, "rejected": drawn["rejected"] - 0.1}
    step = pairs_of(drawn)
    found = loss(step, loss.prepare(step))
    np.testing.assert_allclose(found, oracle.pair_losses(name, drawn, vars(loss)), atol=1e-10)
    for side, expected in zip(loss.rewards(step), oracle.pair_rewards(name, drawn, vars(loss)), strict=True):
        np.testing.assert_allclose(side, expected, atol=1e-10)


@given(drawn=data(least=1))
def test_labels_of_which_none_is_wrong_leave_dpo(drawn: dict[str, np.ndarray]) -> None:
    step = pairs_of(drawn)
    for smoothed in (ConservativeDPO(0.3, label_smoothing=0.0), RobustDPO(0.3, label_smoothing=0.0)):
        torch.testing.assert_close(smoothed(step), DPO(0.3)(step))


@pytest.mark.parametrize(("name", "loss"), EACH)
@given(drawn=data(least=2))
def test_micro_batches_in_any_order_have_the_losses_of_the_step(
    name: str, loss: PairLoss, drawn: dict[str, np.ndarray]
) -> None:
    step = pairs_of(drawn)
    constants = loss.prepare(step)
    whole = loss(step, constants)
    order = torch.arange(len(step)).flip(0)
    parts = [loss(step.select(part), constants) for part in order.chunk(2)]
    torch.testing.assert_close(torch.cat(parts), whole[order])
    for found, expected in zip(loss.rewards(step.select(order)), loss.rewards(step), strict=True):
        torch.testing.assert_close(found, expected[order])
        assert not found.requires_grad


@pytest.mark.parametrize(("name", "loss"), EACH)
def test_a_step_of_gradient_descent_widens_the_margin(name: str, loss: PairLoss) -> None:
    sums = [torch.tensor([value, value - 1.0], dtype=torch.float64, requires_grad=True) for value in (-6.0, -5.0)]
    refs = torch.tensor([-6.0, -6.5], dtype=torch.float64)
    step = Pairs(sums[0], sums[1], refs, refs, torch.tensor([3, 3]), torch.tensor([3, 3]), torch.ones(2).double())
    loss(step, loss.prepare(step)).sum().backward()
    up, down = (x.grad for x in sums)
    assert up is not None
    assert down is not None
    assert bool((up < 0).all())
    assert bool((down > 0).all())


@pytest.mark.parametrize(("name", "loss"), EACH)
@pytest.mark.parametrize("apart", [2000.0, -2000.0])
def test_pairs_that_are_far_apart_have_finite_losses_and_gradients(name: str, loss: PairLoss, apart: float) -> None:
    sums = [torch.tensor([value], requires_grad=True) for value in (-3000.0 + apart, -3000.0)]
    refs = torch.tensor([-3000.0])
    step = Pairs(sums[0], sums[1], refs, refs, torch.tensor([100]), torch.tensor([100]), torch.ones(1))
    found = loss(step, loss.prepare(step))
    found.sum().backward()
    assert all(torch.isfinite(x).all() for x in (found, sums[0].grad, sums[1].grad))  # type: ignore[arg-type]


def test_the_gradient_of_each_loss_is_that_of_finite_differences() -> None:
    rng = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 4, 2]), torch.tensor([2, 5, 6])
    refs = [-3.0 - torch.rand(3, generator=rng, dtype=torch.float64) for _ in range(2)]
    for _, loss in EACH:
        sums = [(-3.0 - torch.rand(3, generator=rng, dtype=torch.float64)).requires_grad_() for _ in range(2)]

        def value(chosen: torch.Tensor, rejected: torch.Tensor, loss: PairLoss = loss) -> torch.Tensor:
            margin = torch.ones(3, dtype=torch.float64)
            step = Pairs(chosen, rejected, refs[0], refs[1], lengths[0], lengths[1], margin)
            return loss(step, {"chosen_length": 3.0})

        assert torch.autograd.gradcheck(value, tuple(sums))


def test_equal_sides_have_the_loss_of_chance() -> None:
    same = torch.tensor([-3.0])
    pair = Pairs(same, same, same, same, torch.tensor([2]), torch.tensor([2]))
    assert DPO()(pair).item() == pytest.approx(math.log(2))
    assert ConservativeDPO()(pair).item() == pytest.approx(math.log(2))
    assert APOZero()(pair).item() == pytest.approx(1.0)


def test_half_precision_is_widened_before_the_logistic_function() -> None:
    chosen, rejected = torch.tensor([-100.0]).bfloat16(), torch.tensor([-101.0]).bfloat16()
    pair = Pairs(chosen, rejected, chosen, chosen, torch.tensor([9]), torch.tensor([9]))
    for loss in (DPO(), SimPO(), CPO()):
        assert loss(pair, loss.prepare(pair)).dtype == torch.float32


def test_the_odds_of_certainty_are_bounded_and_without_gradient() -> None:
    mean = torch.tensor([0.0, -1e-12, -0.5, -3.0, -100.0], dtype=torch.float64, requires_grad=True)
    found = log_odds(mean)
    found.sum().backward()
    assert torch.isfinite(found).all()
    assert mean.grad is not None
    assert mean.grad[0] == 0.0
    assert mean.grad[2:].tolist() == pytest.approx([-1 / math.expm1(-0.5), -1 / math.expm1(-3.0), 1.0])
    assert found[1:].tolist() == pytest.approx([math.log(1e12), math.log(1 / math.expm1(0.5)), -2.9489308, -100.0])


# ---------------------------------------------------------------------------------------------- labelled answers


@st.composite
def answers(draw: Any) -> Labelled:
    count = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tensors = torch.tensor(rng.normal(size=(2, count))) - 5.0
    kind = draw(st.sampled_from(["mixed", "all", "none"]))
    desirable = torch.tensor(rng.random(count) < {"mixed": 0.5, "all": 1.0, "none": 0.0}[kind])
    mismatched = torch.tensor(rng.normal(size=draw(st.integers(1, 4))))
    return Labelled(tensors[0], tensors[1], torch.ones(count, dtype=torch.long), desirable, mismatched)


@given(step=answers())
def test_kto_is_that_of_the_loop_and_its_parts_need_no_mismatched_answers(step: Labelled) -> None:
    loss = KTO(beta=0.3, desirable_weight=1.2, undesirable_weight=0.7)
    constants = loss.prepare(step)
    assert step.mismatched is not None
    expected = oracle.kto_losses(step.log_ratio.numpy(), step.desirable.numpy(), step.mismatched.numpy(), vars(loss))
    order = torch.arange(len(step)).flip(0)
    np.testing.assert_allclose(loss(step, constants), expected, atol=1e-12)
    np.testing.assert_allclose(loss(step.select(order), constants), expected[::-1], atol=1e-12)
    np.testing.assert_allclose(loss.rewards(step), 0.3 * step.log_ratio)


@given(steps=st.lists(answers(), min_size=1, max_size=3))
def test_bco_classifies_about_the_midpoint_of_the_run_so_far(steps: list[Labelled]) -> None:
    loss = BCO(beta=0.4)
    constants: Any = {}
    seen, labels = np.zeros(0), np.zeros(0, bool)
    for step in steps:
        constants = loss.prepare(step, constants)
        rewards = 0.4 * step.log_ratio.numpy()
        seen, labels = np.concatenate([seen, rewards]), np.concatenate([labels, step.desirable.numpy()])
        delta = oracle.bco_delta(seen, labels)
        assert constants["delta"] == pytest.approx(delta)
        expected = oracle.bco_losses(rewards, step.desirable.numpy(), delta)
        np.testing.assert_allclose(loss(step, constants), expected, atol=1e-10)
    np.testing.assert_allclose(loss.rewards(steps[0]), 0.4 * steps[0].log_ratio)


@pytest.mark.parametrize("loss", [KTO(), BCO()])
def test_a_good_answer_becomes_likelier_and_a_bad_one_less(loss: LabelLoss) -> None:
    logprobs = torch.tensor([-3.0, -3.0], dtype=torch.float64, requires_grad=True)
    refs, nothing = torch.tensor([-3.5, -2.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    step = Labelled(logprobs, refs, torch.tensor([2, 2]), torch.tensor([True, False]), nothing)
    loss(step, loss.prepare(step)).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0] < 0 < logprobs.grad[1]
    assert not loss.rewards(step).requires_grad


def test_ktos_balance_of_both_classes() -> None:
    assert KTO(desirable_weight=2.0, undesirable_weight=0.5).balance(10, 20) == pytest.approx(2.0)
    assert KTO().balance(10, 0) == math.inf


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DPO(beta=0.0), "dpo: beta must be more than 0 and finite, not 0.0"),
        (lambda: DPO(margin_weight=-1.0), "dpo: margin_weight must be at least 0 and finite, not -1.0"),
        (lambda: DPO(margin_weight=math.inf), "dpo: margin_weight must be at least 0 and finite, not inf"),
        (lambda: ConservativeDPO(beta=math.inf), "cdpo: beta must be"),
        (lambda: ConservativeDPO(label_smoothing=0.5), "cdpo: label_smoothing is a share of wrong labels"),
        (lambda: RobustDPO(beta=-0.1), "robust_dpo: beta must be"),
        (lambda: RobustDPO(label_smoothing=0.5), "robust_dpo: label_smoothing is a share"),
        (lambda: RobustDPO(label_smoothing=-0.1), "robust_dpo: label_smoothing is a share"),
        (lambda: IPO(beta=0.0), "ipo: beta"),
        (lambda: Hinge(beta=0.0), "hinge: beta"),
        (lambda: NormalizedDPO(beta=0.0), "dpo_norm: beta"),
        (lambda: APOZero(beta=0.0), "apo_zero: beta"),
        (lambda: SPPO(beta=0.0), "sppo: beta"),
        (lambda: BCOPair(beta=0.0), "bco_pair: beta"),
        (lambda: DPOWithSFT(beta=0.0), "dpo_sft: beta"),
        (lambda: DPOWithSFT(sft_coefficient=-0.1), "dpo_sft: sft_coefficient must be at least 0"),
        (lambda: DPOWithSFT(sft_aggregation="mean"), "dpo_sft: sft_aggregation is one of sequence_mean, token_mean, "),
        (lambda: SLiC(delta=0.0), "slic: delta"),
        (lambda: SLiC(sft_coefficient=math.nan), "slic: sft_coefficient"),
        (lambda: ORPO(beta=0.0), "orpo: beta"),
        (lambda: ORPO(sft_aggregation=""), "orpo: sft_aggregation"),
        (lambda: SimPO(beta=0.0), "simpo: beta"),
        (lambda: SimPO(gamma=-0.1), "simpo: gamma"),
        (lambda: CPO(beta=0.0), "cpo: beta"),
        (lambda: CPO(sft_coefficient=-1.0), "cpo: sft_coefficient"),
        (lambda: KTO(beta=0.0), "kto: beta"),
        (lambda: KTO(desirable_weight=0.0), "kto: desirable_weight"),
        (lambda: KTO(undesirable_weight=0.0), "kto: undesirable_weight"),
        (lambda: BCO(beta=0.0), "bco: beta"),
    ],
)
def test_a_coefficient_out_of_range_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


def one(**changes: Any) -> Pairs:
    values, length = torch.tensor([-3.0]), torch.tensor([2])
    return replace(Pairs(values, values - 1, values, values, length, length), **changes)


def test_what_a_loss_lacks_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"^this loss compares the policy with a reference, and there are no reference log"
    ):
        DPO()(one(ref_chosen=None))
    with pytest.raises(
        ValueError, match=r"^dpo: margin_weight needs the margin of each pair, and the pairs have none$"
    ):
        DPO(margin_weight=1.0)(one())
    assert [DPO(margin_weight=1.0).needs_margin, DPO().needs_margin, SimPO().needs_margin] == [True, False, False]
    labelled = Labelled(torch.tensor([-3.0]), torch.tensor([-3.0]), torch.tensor([2]), torch.tensor([True]))
    with pytest.raises(ValueError, match=r"^kto needs the log-ratios of answers to other prompts of the step$"):
        KTO().prepare(labelled)
    with pytest.raises(
        ValueError, match=r"^KTO's baseline needs the log-ratio of at least one answer to another prompt$"
    ):
        KTO().prepare(replace(labelled, mismatched=torch.zeros(0)))
    with pytest.raises(ValueError, match="compares the policy with a reference"):
        BCO().prepare(replace(labelled, ref_logprobs=None))


def test_shapes_and_gradients_of_what_is_given_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"ref_chosen has shape \(2,\) where \(1,\) is expected"):
        one(ref_chosen=torch.zeros(2))
    with pytest.raises(ValueError, match=r"rejected has shape \(1, 1\) where \(1,\) is expected"):
        one(rejected=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="ref_rejected carries a gradient; the policy's log-probabilities alone may"):
        one(ref_rejected=torch.zeros(1, requires_grad=True))


def test_a_loss_of_the_users_own_says_what_it_must_compute() -> None:
    class Own(PairLoss):
        pass

    for call in (lambda: Own()(one(), {}), lambda: Own().rewards(one())):
        with pytest.raises(NotImplementedError):
            call()
    assert Own().prepare(one()) == {}
