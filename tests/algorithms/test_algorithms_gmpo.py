"""GMPO: its golden vector, its gradient, and an independent formula on random batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from test_algorithms_losses import run
from torch.autograd import gradcheck

from reinlm.algorithms import algorithm
from reinlm.objectives import Layout, Signals, TokenRatio, sequence_mean
from reinlm.objectives.gates import GeometricMean
from strategies import padded_batches


def test_it_is_grpo_with_another_gate_and_no_tie():
    mine, grpo = algorithm("gmpo"), algorithm("grpo")
    assert (mine.gate, mine.kl, mine.aggregation) == (GeometricMean(0.4), None, sequence_mean)
    assert (mine.advantage, mine.ratio) == (grpo.advantage, grpo.ratio)
    assert algorithm("grpo", gate={"geometric_mean": 0.3}).gate == GeometricMean(0.3)


@pytest.mark.parametrize(
    ("sign", "loss", "gradient", "clipped"),
    [
        (1.0, -0.9672161005, [0.0, -0.3224053668, -0.3224053668], ([False] * 3, [True, False, False])),
        (-1.0, 1.1051709181, [0.3683903060, 0.0, 0.3683903060], ([False, True, False], [False] * 3)),
        (0.0, 0.0, [0.0, 0.0, 0.0], ([False] * 3, [False] * 3)),
    ],
)
def test_11_4_the_golden_vector(sign, loss, gradient, clipped):
    logprobs = torch.tensor([0.6, -0.6, 0.1], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(3, dtype=torch.float64)
    signals = Signals(Layout.from_lengths([3]), zero + sign, zero + 1 / 3, old_logprobs=zero)
    out = GeometricMean()(TokenRatio()(logprobs, signals), logprobs, signals)
    value = (signals.weights * out.losses).sum()
    value.backward()
    assert value.item() == pytest.approx(loss, abs=1e-9)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(gradient, abs=1e-9)
    assert (out.low.tolist(), out.high.tolist()) == clipped


@given(batch=padded_batches(spread=0.6))
def test_it_equals_the_formula_of_every_answer(batch):
    result, gradient = run(algorithm("gmpo"), batch.tensors())
    rows = [i for i in range(len(batch.mask)) if batch.mask[i].any()]
    value, slopes = 0.0, np.zeros(batch.mask.shape)
    for i in rows:
        tokens = np.flatnonzero(batch.mask[i])
        for own in tokens:  # with an advantage of its own, each token clips its answer's ratios by its own sign
            clipped, free = [], []
            for t in tokens:
                x, a = batch.logprobs[i, t] - batch.old[i, t], batch.advantages[i, t]
                stopped = (a > 0 and x > 0.4) or (a < 0 and x < -0.4)
                clipped.append(math.copysign(0.4, x) if stopped else x)
                free.append(not stopped)
            geometric = math.exp(sum(clipped) / len(tokens))
            share = batch.advantages[i, own] * geometric / len(tokens) / len(rows)
            value -= share
            for t, open_ in zip(tokens, free, strict=True):
                slopes[i, t] -= share / len(tokens) * open_
    assert result.loss.item() == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(gradient, slopes, atol=1e-12)


def test_it_passes_gradcheck_away_from_its_bounds():
    old = torch.tensor([-1.0, -2.0, -0.5, -1.5], dtype=torch.float64)
    moved = (old + torch.tensor([0.7, -0.2, 0.1, -0.9], dtype=torch.float64)).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    signals = Signals(Layout.from_lengths([2, 2]), advantages, advantages * 0 + 0.25, old_logprobs=old)
    assert gradcheck(lambda x: GeometricMean()(TokenRatio()(x, signals), x, signals).losses, moved)


@pytest.mark.parametrize("width", [0.0, -0.4, math.inf, math.nan])
def test_a_width_is_more_than_nothing(width):
    with pytest.raises(ValueError, match=f"^geometric mean: width must be more than 0 and finite, not {width}$"):
        GeometricMean(width)
