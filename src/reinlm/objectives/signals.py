"""`Signals`, the constant inputs of a loss, and `Loss` and `Metrics`, its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reinlm.objectives.layout import Layout

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped


@dataclass(frozen=True)
class Signals:
    """Per-token constants [N] of a loss, without gradient. Log-probabilities are named by the model that computed them."""

    layout: Layout
    advantages: Float[Tensor, " tokens"]
    weights: Float[Tensor, " tokens"]
    """Token weights, from counts over the whole optimizer step."""
    old_logprobs: Float[Tensor, " tokens"] | None = None
    """log π_old: weights before the first update of the batch. None: the batch makes one update, so π_old = π_θ."""
    rollout_logprobs: Float[Tensor, " tokens"] | None = None
    """Log-probabilities of the sampling engine."""
    ref_logprobs: Float[Tensor, " tokens"] | None = None
    """Log-probabilities of the reference model."""
    teacher_logprobs: Float[Tensor, " tokens"] | None = None
    """Log-probabilities of a teacher."""
    correction: Float[Tensor, " tokens"] | None = None
    """Importance weights that multiply the gated loss of each token."""
    selected: Bool[Tensor, " tokens"] | None = None
    """Tokens that a selection over the whole step has chosen."""
    returns: Float[Tensor, " tokens"] | None = None
    """The targets of the critic."""
    old_values: Float[Tensor, " tokens"] | None = None
    """Values of the critic before the first update of the batch."""
    columns: Mapping[str, Shaped[Tensor, " tokens"]] = field(default_factory=dict)
    """Further constants of each token by name, for loss terms."""

    def __post_init__(self) -> None:
        for name, value in (*self._fields().items(), *self.columns.items()):
            if value.shape != (self.layout.tokens,):
                raise ValueError(f"{name} has shape {tuple(value.shape)} for {self.layout.tokens} tokens")
            if value.requires_grad:
                raise ValueError(f"{name} carries a gradient; the log-probabilities alone may: detach it")

    def select(self, sequences: Int[Tensor, " chosen"]) -> Signals:
        """The signals of some sequences, weights unchanged."""
        layout, tokens = self.layout.select(sequences)
        return self._map(layout, lambda x: x[tokens])

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Signals:
        """The same signals on another device, in the dtype of the log-probabilities there."""
        return self._map(self.layout.to(device), lambda x: x.to(device, dtype if x.is_floating_point() else x.dtype))

    def _fields(self) -> dict[str, Tensor]:
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: x for name, x in named.items() if isinstance(x, Tensor)}

    def _map(self, layout: Layout, change: Callable[[Tensor], Tensor]) -> Signals:
        changed: dict[str, Any] = {name: change(x) for name, x in self._fields().items()}
        columns = {name: change(x) for name, x in self.columns.items()}
        return replace(self, layout=layout, columns=columns, **changed)


@dataclass(frozen=True)
class Metrics:
    """Metrics as sums with their denominators, and maxima: they reduce exactly over slices and ranks. All detached."""

    sums: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """name -> (total, count), 0-dim."""
    maxima: Mapping[str, Tensor] = field(default_factory=dict)
    """name -> 0-dim maximum; absent for an empty slice."""

    def means(self) -> dict[str, float]:
        """Plain floats; a metric without a single observation is absent."""
        counted = {name: (total, count) for name, (total, count) in self.sums.items() if float(count) != 0.0}
        means = {name: float(total / count) for name, (total, count) in counted.items()}
        return means | {name: float(value) for name, value in self.maxima.items()}


@dataclass(frozen=True)
class Loss:
    """A scalar to call `backward` on, and what was measured on the way."""

    value: Float[Tensor, ""]
    metrics: Metrics
    tokens: Mapping[str, Tensor] = field(default_factory=dict)
    """Per-token quantities [N] by name, detached: what a log of the update shows."""
