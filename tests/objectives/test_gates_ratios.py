"""Ratios and the clip: golden values, gradients, and where bounds stop them."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from reinlm.objectives import (
    Clip,
    Counts,
    Layout,
    SequenceRatio,
    Signals,
    TokenRatio,
    clip_surrogate,
    exponent,
    sequence_mean,
)
from reinlm.objectives.ratios import precise


def d(values, **kwargs):
    return torch.tensor(values, dtype=torch.float64, **kwargs)


def signals(layout, advantages, old=None):
    weights = sequence_mean(layout, Counts.of(layout))
    return Signals(layout, advantages, weights, old_logprobs=old)


def ppo(advantage, ratios, low=0.2, high=0.2):
    """Loss and gradient with respect to log π, each token for itself."""
    logprobs = d(ratios).log().requires_grad_()
    losses = clip_surrogate(logprobs.exp(), torch.full_like(logprobs, advantage), low, high)
    losses.sum().backward()
    return losses.tolist(), logprobs.grad.tolist()


R = [0.5, 0.9, 1.1, 1.5, 5.0]


@pytest.mark.parametrize(
    ("advantage", "loss", "gradient"),
    [
        (1.0, [-0.5, -0.9, -1.1, -1.2, -1.2], [-0.5, -0.9, -1.1, 0, 0]),
        (-1.0, [0.8, 0.9, 1.1, 1.5, 5.0], [0, 0.9, 1.1, 1.5, 5.0]),
        (0.0, [0.0] * 5, [0.0] * 5),
    ],
)
def test_vector_2a_clip_values_and_gradients(advantage, loss, gradient):
    mine = ppo(advantage, R)
    assert mine[0] == pytest.approx(loss, abs=1e-9)
    assert mine[1] == pytest.approx(gradient, abs=1e-9)


def test_the_two_sides_of_the_clip_are_apart():
    assert ppo(1.0, [1.35], 0.2, 0.28) == ([pytest.approx(-1.28)], [0.0])
    assert ppo(-1.0, [0.7], 0.1, 0.5) == ([pytest.approx(0.9)], [0.0])
    assert ppo(1.0, [1.25], 0.2, 0.28) == ([pytest.approx(-1.25)], [pytest.approx(-1.25)])


def test_the_clip_gate_gives_the_loss_and_says_which_side_stopped_it():
    layout = Layout.from_lengths([6])
    ratio = d([0.7, 1.35, 1.35, 0.7, 1.1, 1.35])
    advantages = d([-2.0, 1.0, -1.0, 1.0, 1.0, 0.0])
    log_ratio = ratio.log().requires_grad_()
    gated = Clip(0.2, 0.28)(log_ratio, log_ratio, signals(layout, advantages))
    assert gated.losses.tolist() == pytest.approx([1.6, -1.28, 1.35, -0.7, -1.1, 0.0])
    assert gated.low.tolist() == [True, False, False, False, False, False]
    assert gated.high.tolist() == [False, True, False, False, False, False]


def test_the_default_clip_is_that_of_ppo_on_both_sides():
    assert Clip() == Clip(0.2, 0.2)


def test_a_zero_advantage_is_never_counted_as_stopped():
    layout = Layout.from_lengths([2])
    log_ratio = d([0.1, 9.0]).log()
    gated = Clip()(log_ratio, log_ratio, signals(layout, d([0.0, 0.0])))
    assert not gated.low.any()
    assert not gated.high.any()


def test_a_ratio_on_the_bound_is_not_counted_as_stopped():
    layout = Layout.from_lengths([2])
    log_ratio = d([0.5, 1.5]).log()
    at_bounds = Clip(1 - float(log_ratio.exp()[0]), float(log_ratio.exp()[1]) - 1)
    gated = at_bounds(log_ratio, log_ratio, signals(layout, d([-1.0, 1.0])))
    assert not gated.low.any()
    assert not gated.high.any()


@pytest.mark.parametrize("low", [0.0, -0.1, 1.1, float("nan")])
def test_a_lower_bound_outside_its_range_is_refused(low):
    with pytest.raises(ValueError, match=rf"^clip: low must be in \(0, 1\], for ratios down to 1 - low; given {low}$"):
        Clip(low, 0.2)


@pytest.mark.parametrize("high", [0.0, -0.1, float("inf"), float("nan")])
def test_an_upper_bound_outside_its_range_is_refused(high):
    with pytest.raises(
        ValueError, match=rf"^clip: high must be more than 0 and finite, for ratios up to 1 \+ high; given {high}$"
    ):
        Clip(0.2, high)


def test_the_ends_of_the_ranges_are_allowed():
    assert Clip(1.0, 5.0) == Clip(low=1.0, high=5.0)


def test_token_ratio_is_the_difference_of_each_token():
    layout = Layout.from_lengths([2, 1])
    old = d([-1.0, -2.0, -3.0])
    logprobs = d([-0.5, -2.5, -3.0], requires_grad=True)
    log_ratio = TokenRatio()(logprobs, signals(layout, d([1.0, 1, 1]), old))
    assert log_ratio.tolist() == [0.5, -0.5, 0.0]
    (gradient,) = torch.autograd.grad(log_ratio.sum(), logprobs)
    assert gradient.tolist() == [1.0, 1.0, 1.0]


def test_without_old_logprobs_the_ratio_is_one_and_still_has_its_gradient():
    layout = Layout.from_lengths([2, 1])
    logprobs = d([-0.5, -2.5, -3.0], requires_grad=True)
    log_ratio = TokenRatio()(logprobs, signals(layout, d([1.0, 1, 1])))
    assert log_ratio.tolist() == [0.0, 0.0, 0.0]
    (gradient,) = torch.autograd.grad(log_ratio.sum(), logprobs)
    assert gradient.tolist() == [1.0, 1.0, 1.0]


def gspo(log_ratios, advantage, gate):
    """One sequence: its loss and the gradient with respect to its log-probabilities."""
    layout = Layout.from_lengths([len(log_ratios)])
    logprobs = d(log_ratios, requires_grad=True)
    at = signals(
        layout, torch.full((len(log_ratios),), advantage, dtype=torch.float64), torch.zeros_like(logprobs).detach()
    )
    log_ratio = SequenceRatio()(logprobs, at)
    loss = (at.weights * gate(log_ratio, logprobs, at).losses).sum()
    loss.backward()
    return log_ratio.exp()[0].item(), loss.item(), logprobs.grad.tolist()


FAR, NEAR = [0.02, -0.01, 0.05, -0.02], [0.0002, -0.0001, 0.0004, 0.0001]


def test_vector_9_gspo_values_and_gradients():
    gate = Clip(3e-4, 4e-4)
    assert gspo(FAR, 1.0, gate) == (pytest.approx(1.0100501671, abs=1e-9), pytest.approx(-1.0004, abs=1e-9), [0.0] * 4)
    assert gspo(FAR, -1.0, gate)[1] == pytest.approx(1.0100501671, abs=1e-9)
    assert gspo(FAR, -1.0, gate)[2] == pytest.approx([0.2525125418] * 4, abs=1e-9)
    assert gspo(NEAR, 1.0, gate)[:2] == (pytest.approx(1.0001500113, abs=1e-9), pytest.approx(-1.0001500113, abs=1e-9))


def test_one_ratio_a_sequence_gives_every_token_the_gradient_ratio_times_advantage_over_length():
    assert gspo(NEAR, 0.75, Clip(3e-4, 4e-4))[2] == pytest.approx([-0.1875281271] * 4, abs=1e-9)


def test_packed_sequences_have_the_ratios_that_each_has_alone():
    rows = [FAR, NEAR, [], [0.3], [-0.2, 0.1, 0.0]]
    packed = Layout.from_lengths([len(row) for row in rows])
    flat = d([x for row in rows for x in row])
    mine = SequenceRatio()(flat, signals(packed, torch.ones_like(flat), torch.zeros_like(flat)))
    alone = [sum(row) / len(row) for row in rows for _ in row]
    assert mine.tolist() == pytest.approx(alone, abs=1e-15)


def test_differences_are_clamped_to_twenty_where_the_gradient_ends():
    x = d([-1e4, -20.5, -19.5, 19.5, 20.5, float("inf")], requires_grad=True)
    y = exponent(x)
    assert y.tolist() == [-20.0, -20.0, -19.5, 19.5, 20.0, 20.0]
    y.sum().backward()
    assert x.grad.tolist() == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("given", "used"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_logarithms_are_taken_in_float32_or_better(given, used):
    assert precise(torch.zeros(1, dtype=given)) is used
    layout = Layout.from_lengths([1])
    weights = torch.ones(1)
    log_ratio = TokenRatio()(torch.zeros(1, dtype=given), Signals(layout, weights, weights))
    assert log_ratio.dtype is used


def test_gradients_agree_with_finite_differences_away_from_kinks():
    torch.manual_seed(0)
    layout = Layout.from_lengths([3, 2])
    old = torch.randn(5, dtype=torch.float64)
    at = signals(layout, d([1.0, -1.0, 2.0, -0.5, 0.3]), old)
    logprobs = (old + d([0.1, -0.1, 0.5, -0.6, 0.05])).requires_grad_()
    for ratio in (TokenRatio(), SequenceRatio()):
        assert gradcheck(lambda x, ratio=ratio: ratio(x, at), logprobs)
        assert gradcheck(lambda x, ratio=ratio: Clip()(ratio(x, at), x, at).losses, logprobs)
    assert gradcheck(
        lambda r: clip_surrogate(r, d([1.0, -1, 1, -1]), 0.2, 0.3), d([1.1, 0.9, 1.7, 0.5], requires_grad=True)
    )
