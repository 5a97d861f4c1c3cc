"""Outcomes of pairs of scores."""

from __future__ import annotations

import pytest
import torch

from reinlm.objectives.win_rate import outcomes


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
