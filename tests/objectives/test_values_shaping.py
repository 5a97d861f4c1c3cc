"""The critic's loss and the overlong penalty."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

import oracles
from reinlm.objectives import soft_overlong_penalty, value_loss
from reinlm.rewards.builtin import Length


def d(values, **kwargs):
    return torch.tensor(values, dtype=torch.float64, **kwargs)


def test_vector_1f_clipped_value_loss():
    losses = value_loss(d([1.5, 2.6, 1.1, 0.5]), d([2.0, 2.0, 2.0, 0.9]), d([1.0, 1.0, 1.0, 1.0]), clip=0.2)
    assert losses.tolist() == pytest.approx([0.32, 0.32, 0.405, 0.08], abs=1e-9)


def test_a_value_that_fell_too_far_is_held_at_the_lower_bound():
    """V_old 1, clip 0.2: V = 0.5 counts as 0.8, half of 0.4² for a return of 0.4, and has no gradient."""
    values = d([0.5], requires_grad=True)
    loss = value_loss(values, d([0.4]), d([1.0]), clip=0.2)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.08], abs=1e-12)
    assert values.grad.tolist() == [0.0]


def test_the_gradient_ends_where_the_clipped_branch_is_larger_and_at_its_bound():
    values = d([1.5, 1.1, 0.5], requires_grad=True)
    value_loss(values, d([2.0, 2.0, 0.9]), d([1.0, 1.0, 1.0]), clip=0.2).sum().backward()
    assert values.grad.tolist() == pytest.approx([0.0, -0.9, -0.4], abs=1e-12)


def test_without_a_clip_it_is_half_the_square():
    assert value_loss(d([1.0, 3.0]), d([2.0, 1.0])).tolist() == [0.5, 2.0]
    assert value_loss(d([1.0]), d([2.0]), d([9.0])).tolist() == [0.5]


def test_value_gradients_agree_with_finite_differences():
    values = d([1.5, 1.1, 0.5], requires_grad=True)
    returns, old = d([2.0, 2.0, 0.9]), d([1.0, 1.0, 1.0])
    assert gradcheck(lambda v: value_loss(v, returns), values)
    assert gradcheck(lambda v: value_loss(v, returns, old, 0.2), values)


@pytest.mark.parametrize(("old", "clip"), [(None, 0.2), (torch.zeros(1), 0.0), (torch.zeros(1), -0.5)])
def test_a_clip_without_old_values_or_range_is_refused(old, clip):
    with pytest.raises(ValueError, match=f"^value clipping needs old_values and a clip above 0, not {clip}$"):
        value_loss(torch.zeros(1), torch.zeros(1), old, clip)


def test_vector_8_overlong_penalty_with_the_papers_numbers():
    lengths = torch.tensor([16384, 16385, 17408, 18432, 20480, 20481])
    expected = [0, -0.000244140625, -0.25, -0.5, -1, -1]
    assert soft_overlong_penalty(lengths, 20480, 4096).tolist() == expected


def test_vector_8_overlong_penalty_in_the_small():
    penalty = soft_overlong_penalty(torch.arange(5, 13), 10, 4)
    assert penalty.tolist() == [0, 0, -0.25, -0.5, -0.75, -1, -1, -1]
    assert penalty.dtype == torch.float64


def test_a_cache_of_nothing_is_a_cliff():
    assert soft_overlong_penalty(torch.tensor([0, 10, 11]), 10, 0).tolist() == [0, 0, -1]


def test_a_cache_of_one_token_has_no_slope():
    assert soft_overlong_penalty(torch.tensor([8, 9, 10, 11]), 10, 1).tolist() == [0, 0, -1, -1]


def test_a_cache_as_long_as_the_limit_punishes_every_token():
    assert soft_overlong_penalty(torch.tensor([0, 1, 4]), 4, 4).tolist() == [0, -0.25, -1]


@given(st.integers(1, 30), st.data())
def test_the_penalty_equals_the_papers_cases(limit, data):
    cache = data.draw(st.integers(0, limit))
    lengths = data.draw(st.lists(st.integers(0, 40), max_size=5))
    mine = soft_overlong_penalty(torch.tensor(lengths, dtype=torch.long), limit, cache).tolist()
    assert mine == pytest.approx([oracles.overlong(length, limit, cache) for length in lengths], abs=1e-15)


@pytest.mark.parametrize("cache", [-1, 11])
def test_a_cache_beyond_the_limit_is_refused(cache):
    with pytest.raises(
        ValueError, match=rf"^soft overlong: cache must be between 0 and max_length \(10\), not {cache}$"
    ):
        soft_overlong_penalty(torch.tensor([1]), 10, cache)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 60))
def test_the_length_reward_is_the_same_formula_in_plain_numbers(limit, cache, length):
    """Reward workers load no torch, so theirs is written out for one number."""
    cache = min(cache, limit)
    mine = soft_overlong_penalty(torch.tensor([length]), limit, cache).item()
    assert Length(max=limit, margin=cache).score("", length, {}) == pytest.approx(mine, abs=1e-15)
