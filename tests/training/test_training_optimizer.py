"""The learning rate by hand, and what AdamW is told."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from reinlm.errors import RunError
from reinlm.training.optimizer import Optimizer, OptimizerConfig, learning_rate


def rates(total: int, **settings: Any) -> list[float]:
    config = OptimizerConfig(learning_rate=0.1, **settings)
    return [learning_rate(config, step, total) for step in range(total)]


def test_a_constant_rate_warms_up_linearly() -> None:
    assert rates(6, warmup_steps=4) == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_a_linear_schedule_ends_at_its_final_fraction() -> None:
    expected = [0.05, 0.1, 0.1, 0.08, 0.06, 0.04, 0.02]
    assert rates(7, warmup_steps=2, schedule="linear", final_fraction=0.2) == pytest.approx(expected)


def test_a_cosine_schedule_is_half_way_down_in_the_middle() -> None:
    found = rates(5, schedule="cosine", final_fraction=0.0)
    half = 0.05 * math.sqrt(0.5)
    assert found == pytest.approx([0.1, 0.05 + half, 0.05, 0.05 - half, 0.0], abs=1e-12)


def test_a_run_of_one_step_trains_at_the_full_rate() -> None:
    assert rates(1, schedule="cosine") == [0.1]
    assert rates(3, warmup_steps=5) == pytest.approx([0.02, 0.04, 0.06])


def test_one_step_is_adamw_by_hand() -> None:
    """First step: the moments' corrections cancel, so each weight moves by rate · g / (|g| + ε), after its decay."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
        model.bias.fill_(0.5)
    optimizer = Optimizer(
        model.parameters(), OptimizerConfig(learning_rate=0.1, weight_decay=0.2, max_grad_norm=None), 10
    )
    model.weight.grad = torch.tensor([[3.0, -4.0]])
    model.bias.grad = torch.tensor([0.5])
    measured = optimizer.step(1.0, "none")
    assert model.weight.flatten().tolist() == pytest.approx([1.0 * 0.98 - 0.1, -2.0 * 0.98 + 0.1], abs=1e-6)
    assert model.bias.item() == pytest.approx(0.5 - 0.1, abs=1e-6)  # a bias does not decay
    assert measured["grad_norm"] == pytest.approx(math.sqrt(25.25))
    assert measured["learning_rate"] == 0.1


def test_a_gradient_is_clipped_to_its_norm_and_reported_as_it_was() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = Optimizer(model.parameters(), OptimizerConfig(learning_rate=0.1, max_grad_norm=1.0, epsilon=1.0), 10)
    before = model.weight.detach().clone()
    model.weight.grad = torch.tensor([[3.0, 4.0]])
    assert optimizer.step(1.0, "none")["grad_norm"] == pytest.approx(5.0)
    moved = (before - model.weight.detach()).flatten().tolist()
    assert moved == pytest.approx([0.1 * 0.6 / 1.6, 0.1 * 0.8 / 1.8], rel=1e-5)  # g / (|g| + ε) with ε = 1


@pytest.mark.parametrize(("loss", "grad"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_what_is_not_finite_moves_nothing(loss: float, grad: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    before = model.weight.item()
    optimizer = Optimizer(model.parameters(), OptimizerConfig(learning_rate=0.1, max_skipped=2), 10)
    model.weight.grad = torch.tensor([[grad]])
    assert optimizer.step(loss, "c")["updates/skipped"] == 1
    assert model.weight.item() == before
    assert optimizer.torch.state == {}
    model.weight.grad = torch.tensor([[1.0]])
    assert optimizer.step(1.0, "c")["updates/skipped"] == 1  # a good one in between begins the count anew
    model.weight.grad = torch.tensor([[grad]])
    optimizer.step(loss, "c")
    model.weight.grad = torch.tensor([[grad]])
    with pytest.raises(RunError, match="2 updates in a row") as caught:
        optimizer.step(loss, "runs/x/step_9")
    assert "runs/x/step_9" in str(caught.value.hint)


def test_frozen_weights_are_not_the_optimizers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    optimizer = Optimizer(model.parameters(), OptimizerConfig(), 10)
    assert [tuple(p.shape) for group in optimizer.torch.param_groups for p in group["params"]] == [(1, 2), (1,)]
