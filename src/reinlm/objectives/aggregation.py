"""Aggregation: the weight of each token, from counts over one whole optimizer step.

The loss of a micro-batch is Σ w·ℓ, so losses and gradients of micro-batches add up to those of the step, however it is
split. Sequences without a scored token are not counted, except in B of the constant budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.layout import Layout
from reinlm.objectives.ratios import widest
from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Counts:
    """Numbers of tokens, sequences and groups in one optimizer step, over all micro-batches and ranks.

    Counts of parts may be added if no group is split.
    """

    tokens: int
    sequences: int
    """Sequences with at least one scored token."""
    rows: int
    """All sequences, empty ones included."""
    groups: int
    """Prompt groups with at least one scored token."""

    @classmethod
    def of(cls, layout: Layout) -> Counts:
        return cls(
            tokens=layout.tokens,
            sequences=int((layout.count("sequence") > 0).sum()),
            rows=layout.size("sequence"),
            groups=int((layout.count("group") > 0).sum()),
        )

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.rows + other.rows,
            self.groups + other.groups,
        )


Aggregation = Callable[[Layout, Counts], Tensor]
"""(layout of a slice, counts of the whole step) -> weights [N], float64 where the device has it.

For `prompt_mean` the slice holds whole groups."""


@choice("aggregation", "token_mean")
def token_mean(layout: Layout, counts: Counts) -> Float[Tensor, " tokens"]:
    """Every token weighs the same: w = 1 / N. DAPO (arXiv 2503.14476), PPO. Long answers weigh more."""
    return _uniform(layout, 1.0 / max(counts.tokens, 1))


@choice("aggregation", "sequence_mean")
def sequence_mean(layout: Layout, counts: Counts) -> Float[Tensor, " tokens"]:
    """Every sequence weighs the same: w = 1 / (S' · L_i). GRPO (arXiv 2402.03300), GSPO (arXiv 2507.18071)."""
    lengths = layout.expand(layout.count("sequence"), "sequence").to(widest(layout.turn_of_token.device))
    return 1.0 / (lengths * max(counts.sequences, 1))


@choice("aggregation", "prompt_mean")
def prompt_mean(layout: Layout, counts: Counts) -> Float[Tensor, " tokens"]:
    """Every prompt weighs the same, and every token within it: w = 1 / (G' · N_g). ScaleRL (arXiv 2510.13786)."""
    lengths = layout.expand(layout.count("group"), "group").to(widest(layout.turn_of_token.device))
    return 1.0 / (lengths * max(counts.groups, 1))


@choice("aggregation", "sequence_sum")
def sequence_sum(layout: Layout, counts: Counts) -> Float[Tensor, " tokens"]:
    """A sequence is one action, its tokens are summed: w = 1 / S'. REINFORCE, RLOO (arXiv 2402.14740)."""
    return _uniform(layout, 1.0 / max(counts.sequences, 1))


@choice("aggregation", "constant_budget")
@dataclass(frozen=True)
class ConstantBudget:
    """Tokens summed over a constant budget: w = 1 / (B · length), B all sequences. Dr. GRPO (arXiv 2503.20783)."""

    length: int
    """Tokens, at least 1: the longest answer allowed, in the paper's runs 3000."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"a constant budget needs a length of at least 1 token, not {self.length}")

    def __call__(self, layout: Layout, counts: Counts) -> Float[Tensor, " tokens"]:
        return _uniform(layout, 1.0 / (max(counts.rows, 1) * self.length))


def _uniform(layout: Layout, weight: float) -> Float[Tensor, " tokens"]:
    return torch.full(
        (layout.tokens,), weight, dtype=widest(layout.turn_of_token.device), device=layout.turn_of_token.device
    )
