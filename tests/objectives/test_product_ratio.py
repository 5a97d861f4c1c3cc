"""The ratio of whole answers: value, gradient, and how its spread grows with length."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from reinlm.objectives import Clip, Layout, SequenceProductRatio, SequenceRatio, Signals


def d(values):
    return torch.tensor(values, dtype=torch.float64)


def signals(layout, old=None):
    constant = torch.ones(layout.tokens, dtype=torch.float64)
    return Signals(layout, constant, constant, old_logprobs=torch.zeros_like(constant) if old is None else old)


def test_vector_16_2_the_product_beside_the_mean():
    s = signals(Layout.from_lengths([3]))
    logs = d([0.1, -0.2, 0.3])
    assert SequenceProductRatio()(logs, s).exp().tolist() == pytest.approx([1.2214027582] * 3, abs=1e-9)
    assert SequenceRatio()(logs, s).exp().tolist() == pytest.approx([1.0689391057] * 3, abs=1e-9)


def test_its_gradient_reaches_every_token_of_its_sequence_whole_and_ends_at_the_clamp():
    layout = Layout.from_lengths([2, 1])
    logs = d([0.1, 0.2, 0.4]).requires_grad_()
    assert gradcheck(lambda x: SequenceProductRatio()(x, signals(layout)).exp(), logs)
    SequenceProductRatio()(logs, signals(layout))[0].backward()
    assert logs.grad.tolist() == [1.0, 1.0, 0.0]
    far = d([15.0, 15.0, 0.0]).requires_grad_()
    found = SequenceProductRatio()(far, signals(layout))
    found.sum().backward()
    assert found.tolist() == [20.0, 20.0, 0.0]
    assert far.grad.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(("length", "stopped"), [(1, 0.0), (4, 6 / 16), (9, 260 / 512)])
def test_its_spread_grows_with_length_where_the_means_falls_and_so_does_what_a_clip_stops(length, stopped):
    """Every sequence of `length` tokens whose log-ratios are 0.1 or -0.1, all equally likely."""
    rows = list(itertools.product([0.1, -0.1], repeat=length))
    layout = Layout.from_lengths([length] * len(rows))
    s, logs = signals(layout), d([x for row in rows for x in row])
    product, mean = SequenceProductRatio()(logs, s), SequenceRatio()(logs, s)
    assert float(product.std(correction=0)) == pytest.approx(0.1 * math.sqrt(length))
    assert float(mean.std(correction=0)) == pytest.approx(0.1 / math.sqrt(length))

    def share(log_ratio):
        ratio = log_ratio.exp()
        return float(((ratio < 0.8) | (ratio > 1.2)).double().mean())

    assert (share(product), share(mean)) == (pytest.approx(stopped), 0.0)
    assert bool(Clip(0.2, 0.2)(product, logs, s).high.any()) is (stopped > 0)
