"""The order of the data: complete, deterministic, resumable."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reinlm.data import RowOrder
from reinlm.errors import InputError

SIZES = st.integers(1, 40)
SEEDS = st.integers(0, 2**32)


@given(SIZES, SEEDS, st.integers(0, 100), st.integers(0, 60))
def test_a_resumed_order_goes_on_exactly_where_it_stopped(size, seed, before, after):
    whole = RowOrder(size, seed=seed)
    first = RowOrder(size, seed=seed)
    taken = first.take(before)
    second = RowOrder(size, seed=seed)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert taken + second.take(after) == whole.take(before + after)


@given(SIZES, SEEDS, st.lists(st.integers(0, 25), max_size=12))
def test_every_index_comes_once_an_epoch_however_it_is_taken(size, seed, counts):
    order = RowOrder(size, seed=seed)
    taken = [index for count in counts for index in order.take(count)]
    assert len(taken) == sum(counts)
    for start in range(0, len(taken), size):
        epoch = taken[start : start + size]
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(size))
    assert order.epochs == pytest.approx(sum(counts) / size)


def test_epochs_and_seeds_differ_in_their_order():
    order = RowOrder(50, seed=0)
    first, second = order.take(50), order.take(50)
    assert first != second
    assert RowOrder(50, seed=1).take(50) != first


def test_without_shuffle_the_order_is_that_of_the_rows_in_every_epoch():
    assert RowOrder(3, seed=5, shuffle=False).take(7) == [0, 1, 2, 0, 1, 2, 0]


def test_state_is_taken_for_the_epoch_that_comes_next_at_its_border():
    order = RowOrder(4, seed=0)
    order.take(4)
    assert order.state_dict() == {"epoch": 1, "position": 0, "size": 4}


def test_a_state_of_other_data_is_refused_with_both_sizes():
    state = RowOrder(7, seed=0).state_dict()
    with pytest.raises(InputError, match="held 7 items when the run was saved, and hold 6 now"):
        RowOrder(6, seed=0).load_state_dict(state)


def test_an_empty_order_and_a_negative_count_are_refused():
    with pytest.raises(ValueError, match="at least one item, not 0"):
        RowOrder(0, seed=0)
    with pytest.raises(ValueError, match="cannot take -1 items"):
        RowOrder(3, seed=0).take(-1)
