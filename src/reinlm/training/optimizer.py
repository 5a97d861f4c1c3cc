"""AdamW, its schedule, and the guard against updates that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from reinlm.config import Config
from reinlm.errors import RunError
from reinlm.models.modules import sharded_like, whole
from reinlm.schedules import Schedule, scheduled


class OptimizerConfig(Config):
    """AdamW with warm-up and a schedule."""

    learning_rate: float = Field(1e-6, gt=0, lt=1)
    schedule: Schedule = "constant"
    """After warm-up, over the run's optimizer steps: stay, or go down to `final_fraction` of the rate."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps over which the rate rises linearly from 0."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    """On matrices alone: biases and norms do not decay."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """The gradient's norm is clipped here; null switches clipping off."""
    max_skipped: int = Field(5, ge=1)
    """An update whose loss or gradient is not finite is skipped; after this many in a row the run stops."""

    @field_validator("betas")
    @classmethod
    def _in_range(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("both betas must be in [0, 1)")
        return betas


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
        """Multiplies the schedule's rate."""
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

    def zero_grad(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    def step(self, loss: float, last_good: str) -> dict[str, float]:
        """Clip and step, or skip. `last_good` names the checkpoint to go back to in the error.

        Raises RunError after `max_skipped` updates in a row that were not finite.
        """
        rate = self.scale * learning_rate(self.config, self.steps, self.total_steps)
        limit = self.config.max_grad_norm
        norm = float(whole(nn.utils.clip_grad_norm_(self.parameters, math.inf if limit is None else limit)))
        self.steps += 1
        finite = math.isfinite(loss) and math.isfinite(norm)
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
                    f"{self.skipped_in_a_row} updates in a row were not finite (loss {loss}, gradient norm {norm})",
                    hint=f"lower optimizer.learning_rate or check the rewards; last good checkpoint: {last_good}",
                )
        self.zero_grad()
        measured = {"learning_rate": rate, "updates/skipped": float(self.skipped)}
        return measured | ({"grad_norm": norm} if math.isfinite(norm) else {})

    def state_dict(self) -> dict[str, Any]:
        """Whole on every rank, so that another number of ranks can take it back."""
        return {
            "adamw": _map_tensors(self.adamw.state_dict(), whole),
            "steps": self.steps,
            "skipped": self.skipped,
            "scale": self.scale,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self._shard_state()
        self.steps = int(state["steps"])
        self.skipped = int(state["skipped"])
        self.scale = float(state["scale"])
        self.skipped_in_a_row = int(state["skipped_in_a_row"])

    def _shard_state(self) -> None:
        """Lay the moments out over the ranks as their parameters are."""
        for parameter in self.parameters:
            kept = self.adamw.state[parameter]
            for name, value in kept.items():
                if value.shape == parameter.shape:
                    kept[name] = sharded_like(value, parameter)


def _map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _map_tensors(value, change) for key, value in tree.items()}
    return [_map_tensors(value, change) for value in tree] if isinstance(tree, list) else tree
