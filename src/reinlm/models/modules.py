"""Small things done to a whole model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

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


@contextmanager
def training_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Training or evaluation mode for a while; every module's own mode comes back.

    The only place that changes the mode of a model in use. A model that `loading` or `tiny` has made is handed over in
    evaluation mode, which neither a new adapter nor a model from a configuration is in by itself.
    """
    changed = [module for module in model.modules() if module.training != training]
    for module in changed:
        vars(module)["training"] = training  # nn.Module's own assignment is slow, and engines do this every step
    try:
        yield
    finally:
        for module in changed:
            vars(module)["training"] = not training


def whole(x: Tensor) -> Tensor:
    """A tensor that is sharded over ranks in one piece, on every rank; any other as it is."""
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered


def sharded_like(x: Tensor, like: Tensor) -> Tensor:
    """A whole tensor laid out over the ranks as another one is; as it is where that is whole too."""
    if not hasattr(like, "full_tensor") or hasattr(x, "full_tensor"):
        return x
    from torch.distributed.tensor import distribute_tensor

    layout: Any = like
    placed: Tensor = distribute_tensor(x.to(like.device), layout.device_mesh, layout.placements)
    return placed


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter, sharded or not, the values of a whole tensor."""
    parameter.copy_(sharded_like(value, parameter))
