"""The optimizer, its schedule, and the guard against updates that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from reinlm.config import Config
from reinlm.errors import InputError, ReinlmError, RunError, error_line
from reinlm.models.modules import sharded_like, whole
from reinlm.parts import part, read_part
from reinlm.schedules import Schedule, scheduled


class OptimizerConfig(Config):
    """The optimizer, its warm-up and its schedule."""

    name: str = "adamw"
    """Which one: `adamw`, `sgd`, or one of your own (`part("optimizer", NAME)`)."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Values of its own, such as `{momentum: 0.9}` of `sgd`."""

    learning_rate: float = Field(1e-6, gt=0, lt=1)
    """The rate after warm-up, before the schedule lowers it."""
    schedule: Schedule = "constant"
    """After warm-up, over the run's optimizer steps: stay, or go down to `final_fraction` of the rate."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps over which the rate rises linearly from 0."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """The share of the rate that is left at the end of a schedule other than `constant`."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the first and the second moment of `adamw`, each in [0, 1)."""
    epsilon: float = Field(1e-8, gt=0)
    """Added to the root of the second moment of `adamw`."""
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

    @model_validator(mode="after")
    def _known(self) -> OptimizerConfig:
        self.part  # noqa: B018  raises where the name or an option is unknown
        given = [name for name in ("betas", "epsilon") if self.changed(name)]
        if given and self.name != "adamw":
            raise ValueError(f"{given[0]} has no effect on the optimizer {self.name}: it is a setting of adamw")
        if self.schedule == "constant" and self.changed("final_fraction"):
            raise ValueError(
                f"final_fraction {self.final_fraction:g} has no effect with the schedule constant; set schedule"
            )
        return self

    @property
    def part(self) -> Any:
        """What builds it."""
        return read_part("optimizer", {self.name: self.options})


Groups = Sequence[dict[str, Any]]
"""Parameters and their weight decay, as torch's optimizers take them."""


@part("optimizer", "adamw")
class AdamWConfig(Config):
    """Adam with decoupled weight decay, arXiv 1711.05101; its betas and epsilon are keys of `optimizer` itself."""

    def build(self, groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
        fused = all(p.device.type in ("cpu", "cuda") for group in groups for p in group["params"])
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=fused)


@part("optimizer", "sgd")
class SGDConfig(Config):
    """Stochastic gradient descent; a group's weight decay is added to its gradient."""

    momentum: float = Field(0.0, ge=0, lt=1)
    """Share of the last step that is added to the next one."""
    nesterov: bool = False
    """Nesterov momentum; needs `momentum`."""

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> SGDConfig:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov has no effect without momentum")
        return self

    def build(self, groups: Groups, config: OptimizerConfig) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=config.learning_rate, momentum=self.momentum, nesterov=self.nesterov)


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
        self.torch = _built(config, [group for group in groups if group["params"]])
        """The optimizer of torch that makes the steps."""

    def set_rate(self, value: float) -> None:
        """Take this rate from the next step on, in place of the schedule's."""
        self.fixed_rate, self.scale = value, 1.0

    def zero_grad(self) -> None:
        self.torch.zero_grad(set_to_none=True)

    def step(self, loss: float, last_good: str) -> dict[str, float]:
        """Clip and step, or skip. `last_good` names the checkpoint to go back to in the error.

        Raises RunError after `max_skipped` updates in a row that were not finite.
        """
        scheduled_rate = learning_rate(self.config, self.steps, self.total_steps)
        rate = self.scale * (scheduled_rate if self.fixed_rate is None else self.fixed_rate)
        limit = self.config.max_grad_norm
        norm = float(whole(nn.utils.clip_grad_norm_(self.parameters, math.inf if limit is None else limit)))
        self.steps += 1
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self.skipped_in_a_row = 0
            for group in self.torch.param_groups:
                group["lr"] = rate
            self.torch.step()
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
            "optimizer": _map_tensors(self.torch.state_dict(), whole),
            "steps": self.steps,
            "skipped": self.skipped,
            "scale": self.scale,
            "fixed_rate": self.fixed_rate,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.torch.load_state_dict(state["optimizer"])
        self._shard_state()
        self.steps = int(state["steps"])
        self.skipped = int(state["skipped"])
        self.scale = float(state["scale"])
        self.fixed_rate = state.get("fixed_rate")
        self.skipped_in_a_row = int(state["skipped_in_a_row"])

    def _shard_state(self) -> None:
        """Lay the moments out over the ranks as their parameters are."""
        for parameter in self.parameters:
            kept = self.torch.state[parameter]
            for name, value in kept.items():
                if value.shape == parameter.shape:
                    kept[name] = sharded_like(value, parameter)


def _built(config: OptimizerConfig, groups: Groups) -> torch.optim.Optimizer:
    """The optimizer that the configuration names; InputError where a user's own cannot be made, or is none."""
    try:
        made = config.part.build(groups, config)
    except ReinlmError:
        raise
    except Exception as error:
        raise InputError(f"optimizer {config.name!r} cannot be made: {error_line(error)}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(
            f"optimizer {config.name!r}: build gave {type(made).__name__}", hint="return a torch.optim.Optimizer"
        )
    return made


def _map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _map_tensors(value, change) for key, value in tree.items()}
    return [_map_tensors(value, change) for value in tree] if isinstance(tree, list) else tree
