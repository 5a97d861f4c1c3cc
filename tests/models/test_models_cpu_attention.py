"""Attention of a row sequence by sequence: what it computes, its gradients, and when it is taken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from reinlm.models import cpu_attention
from reinlm.models.cpu_attention import Runs
from reinlm.models.prefix_sharing import PrefixTree, SharedRow, share_prefixes
from reinlm.models.row_attention import LayerSettings

CPU = torch.device("cpu")
SHARED = [1] * 9
SEQUENCES = [[*SHARED, 2, 2, 3], [*SHARED, 2, 2, 4, 4, 4], [*SHARED, 5] + [6] * 11, [7] * 18]
"""Of the first two 11 tokens are shared, and 9 with the third."""


def dense(states: list[torch.Tensor], row: SharedRow, window: int | None) -> torch.Tensor:
    """[1, U, heads, size], computed for every token of every sequence by the formula."""
    query, key, value = states
    found = torch.zeros(1, query.shape[2], query.shape[1], query.shape[3], dtype=query.dtype)
    start = 0
    for sequence in SEQUENCES:
        places = row.index[start : start + len(sequence)].tolist()
        start += len(sequence)
        for number, place in enumerate(places):
            seen = places[max(0, number + 1 - (window or len(places))) : number + 1]
            for head in range(query.shape[1]):
                own = head * key.shape[1] // query.shape[1]
                products = key[0, own, seen] @ query[0, head, place] / math.sqrt(query.shape[3])
                found[0, place, head] = products.softmax(0) @ value[0, own, seen]
    return found


def attended(tree: PrefixTree, states: list[torch.Tensor], settings: LayerSettings | None = None) -> torch.Tensor:
    query, key, value = states
    return tree(0, query, key, value, settings or LayerSettings())


@pytest.mark.parametrize("window", [None, 6])
def test_outputs_and_gradients_are_those_of_the_formula(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_attention, "QUERIES", 4)
    monkeypatch.setattr(cpu_attention, "KERNEL_COST", 0)
    row = share_prefixes([np.array(sequence) for sequence in SEQUENCES])
    tree = row.tree(CPU)
    assert len(tree.runs) == len(SEQUENCES)
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    states = [drawn(1, heads, len(row.tokens), 4).requires_grad_() for heads in (4, 2, 2)]
    settings = LayerSettings(window=window)
    weight = drawn(1, len(row.tokens), 4, 4)
    expected = dense(states, row, window)
    found = attended(tree, states, settings)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=1e-14)
    pairs = [torch.autograd.grad((one * weight).sum(), states) for one in (found, expected)]
    for gradient, other in zip(*pairs, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0.0, atol=1e-13)
    with torch.no_grad():
        assert torch.equal(attended(tree, states, settings), found)
        kept, ending = row.ending(np.isin(np.arange(len(row.tokens)), [3, row.index[-1]]))
        last = attended(ending.tree(CPU), [states[0][:, :, kept], *states[1:]], settings)
    torch.testing.assert_close(last, expected[:, kept], rtol=0.0, atol=1e-14)


def test_long_sequences_are_attended_one_by_one_and_short_ones_together() -> None:
    """Of 600 tokens 128 · (128 + 256 + 384 + 512) + 88 · 600 = 216,640 pairs in five calls, where one call has 360,000."""
    draw = np.random.default_rng(0)

    def tree(length: int, count: int = 4) -> PrefixTree:
        return share_prefixes([draw.integers(0, 99, length) for _ in range(count)]).tree(CPU)

    assert len(tree(600).runs) == 4
    assert tree(40).runs == ()
    assert tree(40, count=1).runs == ()


def test_dropout_half_precision_and_a_torch_without_the_kernel_take_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.zeros(1, 2, 4, 4)
    assert cpu_attention.takes_runs(one, LayerSettings())
    assert not cpu_attention.takes_runs(one, LayerSettings(dropout=0.1))
    assert not cpu_attention.takes_runs(one.bfloat16(), LayerSettings())
    row = share_prefixes([np.arange(600), np.arange(600, 1200)])
    states = [torch.randn(1, heads, 1200, 4, dtype=torch.float64) for heads in (4, 2, 2)]
    tree = row.tree(CPU)
    found = attended(tree, states)
    monkeypatch.setattr(cpu_attention, "has_kernel", lambda: False)
    torch.testing.assert_close(attended(tree, states), found, rtol=0.0, atol=1e-13)
    assert torch.equal(attended(tree, states), attended(replace(tree, runs=()), states))


def test_runs_are_where_indices_follow_one_another() -> None:
    assert Runs.of(np.array([3, 4]), np.array([0, 1, 3, 4])) == Runs(3, 5, ((0, 2), (3, 5)))
    assert list(Runs(3, 5, ((0, 2), (3, 5))).parts()) == [(3, 5, 4)]
