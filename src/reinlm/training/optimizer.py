"""AdamW, its schedule, and the guard against updates that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from reinlm.errors import RunError
from reinlm.schedules import scheduled
from reinlm.training.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """The rate of optimizer step `step` (from 0) of `total`: linear warm-up, then the schedule. A pure function."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    span = max(total - config.warmup_steps - 1, 1)
    return config.learning_rate * scheduled(config.schedule, (step - config.warmup_steps) / span, config.final_fraction)


class Optimizer:
    """Steps a model's trainable parameters; skips and counts updates whose loss or gradient is not finite."""

    def __init__(self, weights: Iterable[nn.Parameter], config: OptimizerConfig, total_steps: int) -> None:
        self.config = config
        self.total_steps = total_steps
        self.steps = 0
        """Optimizer steps tried, skipped ones included: the schedule's clock."""
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.scale = 1.0
        """Multiplies the schedule's rate, or the fixed one."""
        self.fixed_rate: float | None = None
        """Stands in place of the schedule's rate; None while the schedule counts."""
        self.parameters = [p for p in weights if p.requires_grad]
        matrices = [p for p in self.parameters if p.dim() >= 2]
        others = [p for p in self.parameters if p.dim() < 2]
        groups: Iterable[dict[str, Any]] = (
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        )
        self.adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            fused=all(p.device.type in ("cpu", "cuda") for p in self.parameters),
        )

    def set_rate(self, value: float) -> None:
        """Take this rate from the next step on, in place of the schedule's."""
        self.fixed_rate, self.scale = value, 1.0

    def zero_grad(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    def step(self, loss: float, last_good: str) -> dict[str, float]:
        """Clip and step, or skip. `last_good` names the checkpoint to go back to in the error.

        Raises RunError after `max_skipped` updates in a row that were not finite.
        """
        scheduled_rate = learning_rate(self.config, self.steps, self.total_steps)
        rate = self.scale * (scheduled_rate if self.fixed_rate is None else self.fixed_rate)
        limit = self.config.max_grad_norm
        norm = nn.utils.clip_grad_norm_(self.parameters, math.inf if limit is None else limit)
        self.steps += 1
        finite = math.isfinite(loss) and math.isfinite(float(norm))
        if finite:
            self.skipped_in_a_row = 0
            for group in self.adamw.param_groups:
                group["lr"] = rate
            self.adamw.step()
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
            if self.skipped_in_a_row >= self.config.max_skipped:
                raise RunError(
                    f"{self.skipped_in_a_row} updates in a row were not finite (loss {loss}, gradient norm {float(norm)})",
                    hint=f"lower optimizer.learning_rate or check the rewards; last good checkpoint: {last_good}",
                )
        self.zero_grad()
        measured = {"learning_rate": rate, "updates/skipped": float(self.skipped)}
        return measured | ({"grad_norm": float(norm)} if math.isfinite(float(norm)) else {})

    def state_dict(self) -> dict[str, Any]:
        return {
            "adamw": self.adamw.state_dict(),
            "steps": self.steps,
            "skipped": self.skipped,
            "scale": self.scale,
            "fixed_rate": self.fixed_rate,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self.steps = int(state["steps"])
        self.skipped = int(state["skipped"])
        self.scale = float(state["scale"])
        self.fixed_rate = state["fixed_rate"]
        self.skipped_in_a_row = int(state["skipped_in_a_row"])
