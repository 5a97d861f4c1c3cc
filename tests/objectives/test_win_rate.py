"""Outcomes of pairs of scores."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from reinlm.objectives.win_rate import both_orders, first_position, outcomes


def test_the_higher_score_wins_and_equal_scores_are_half_a_win() -> None:
    ours, theirs = torch.tensor([2.0, 1.0, -1.0, 0.0]), torch.tensor([1.0, 1.0, 3.0, -0.5])
    assert outcomes(ours, theirs).tolist() == [1.0, 0.5, 0.0, 1.0]


def test_exchanging_the_sides_gives_the_complement() -> None:
    ours, theirs = torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).round()
    assert (outcomes(ours, theirs) + outcomes(theirs, ours)).tolist() == [1.0] * 50


def test_scores_without_a_partner_or_a_value_are_refused() -> None:
    with pytest.raises(ValueError, match="2 scores cannot be compared with 3"):
        outcomes(torch.zeros(2), torch.zeros(3))
    for pair in ((torch.tensor([torch.nan]), torch.zeros(1)), (torch.zeros(1), torch.tensor([torch.nan]))):
        with pytest.raises(ValueError, match=r"^a score that is NaN is neither higher nor lower$"):
            outcomes(*pair)


EACH = [(first, swapped) for first in (1.0, 0.5, 0.0) for swapped in (1.0, 0.5, 0.0)]
"""Every pair of judgements, of our answer seen first and of it seen second."""


def test_an_answer_wins_where_it_is_preferred_in_both_orders() -> None:
    first, swapped = torch.tensor(EACH).T
    found = both_orders(first, swapped)
    assert found.tolist() == [1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0]
    assert found.dtype == torch.float64
    assert (both_orders(1.0 - swapped, 1.0 - first) + found).tolist() == [1.0] * 9  # the sides exchanged


def test_the_first_position_is_preferred_as_often_as_both_orders_say() -> None:
    assert first_position(torch.tensor([1.0]), torch.tensor([0.0])) == 1.0  # whatever stands first
    assert first_position(torch.tensor([0.0]), torch.tensor([1.0])) == 0.0
    assert first_position(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])) == 0.5  # the same answer in both orders
    assert first_position(torch.tensor([1.0, 0.5, 0.5]), torch.tensor([0.5, 0.5, 0.0])) == pytest.approx(2 / 3)


def test_judgements_of_one_order_alone_or_of_another_value_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"^2 judgements and 3 of the other order: each pair has one of both$"):
        both_orders(torch.zeros(2), torch.zeros(3))
    for wrong in (0.25, -1.0, 2.0, torch.nan):
        for pair in ((torch.tensor([wrong]), torch.zeros(1)), (torch.zeros(1), torch.tensor([wrong]))):
            with pytest.raises(ValueError, match=r"^a judgement is 1, 0.5 or 0$"):
                both_orders(*pair)
