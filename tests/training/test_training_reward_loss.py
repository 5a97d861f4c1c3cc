"""The loss that `reinlm reward` trains, of whole units, against loops in NumPy."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import oracles_preferences as oracle
from reinlm.training.reward_config import LossName, RewardLossConfig
from reinlm.training.reward_loss import UnitTargets, unit_losses

UNITS = [([1.2, 0.5], [0, 1], 0.3), ([0.3, 0.9, -0.4, 0.1], [0, 0, 2, 3], 0.0), ([-0.2, 0.4], [0, 0], 1.0)]
"""Scores, ranks and margin: a pair, a ranking whose best two tie, and a tie."""
SCORES = torch.tensor([[score] for scores, _, _ in UNITS for score in scores], dtype=torch.float64)
TARGETS = UnitTargets(
    unit=torch.tensor([place for place, (scores, _, _) in enumerate(UNITS) for _ in scores]),
    rank=torch.tensor([rank for _, ranks, _ in UNITS for rank in ranks]),
    margin=torch.tensor([margin for _, _, margin in UNITS], dtype=torch.float64),
    label=None,
    ratings=None,
    step_label=None,
    step_unit=None,
    units=len(UNITS),
)


@pytest.mark.parametrize(
    ("name", "options", "values"),
    [
        ("bradley_terry", {}, {"margin_weight": 1.0, "label_smoothing": 0.0}),
        (
            "bradley_terry",
            {"margin_scale": 0.7, "label_smoothing": 0.2},
            {"margin_weight": 0.7, "label_smoothing": 0.2},
        ),
        ("plackett_luce", {}, {}),
        ("plackett_luce", {"top": 2}, {"top": 2}),
        ("davidson", {}, {"nu": 1.0}),
        ("davidson", {"tie": 0.4}, {"nu": 0.4}),
        ("rao_kupper", {}, {"theta": 3.0}),
        ("rao_kupper", {"tie": 1.5}, {"theta": 1.5}),
    ],
)
def test_pairs_rankings_and_ties_cost_what_the_loop_says(
    name: LossName, options: dict[str, Any], values: dict[str, Any]
) -> None:
    found = unit_losses(RewardLossConfig(name=name, **options), SCORES, TARGETS)
    expected = oracle.unit_losses(name, UNITS, {"centering": 0.0, **values})
    assert found.tolist() == pytest.approx(expected.tolist())
    centred = unit_losses(RewardLossConfig(name=name, centering=0.1, **options), SCORES, TARGETS)
    # mean of (r_i + r_j)² over pairs of a unit: 1.7; 1.2, -0.1, 0.4, 0.5, 1, -0.3; 0.2
    squares = [1.7**2, (1.2**2 + 0.1**2 + 0.4**2 + 0.5**2 + 1.0**2 + 0.3**2) / 6, 0.2**2]
    assert (centred - found).tolist() == pytest.approx([0.1 * square for square in squares])


def test_a_part_of_the_units_costs_what_it_costs_among_all() -> None:
    loss = RewardLossConfig(name="davidson", tie=0.4)
    part, units = TARGETS.select(torch.tensor([0, 1, 6, 7]))
    assert units.tolist() == [0, 2]
    torch.testing.assert_close(
        unit_losses(loss, SCORES[[0, 1, 6, 7]], part), unit_losses(loss, SCORES, TARGETS)[[0, 2]]
    )
