"""Small things done to a whole model."""

from __future__ import annotations

import re
from typing import NamedTuple

from torch import nn

_NOISE = re.compile(r"drop|jitter")


class ParameterCount(NamedTuple):
    """How many numbers a model holds, tied ones once, and how many of them are trained."""

    total: int
    trainable: int


def count_parameters(model: nn.Module) -> ParameterCount:
    """Count each parameter once, however many modules share it."""
    parameters = list(model.parameters())
    return ParameterCount(sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad))


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout, layer drop and router jitter to 0, so that training mode computes what evaluation mode does.

    Reinforcement learning compares log-probabilities of the same weights, and noise would look like movement; training
    mode is still needed for gradient checkpointing. Transformers keeps these rates in `nn.Dropout` modules or in plain
    attributes such as `attention_dropout`.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and _NOISE.search(name):
                setattr(module, name, 0.0)
