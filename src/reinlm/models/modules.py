"""Helpers for whole models: parameter count, dropout, training mode, sharded tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_NOISE = re.compile(r"drop|jitter")


class ParameterCount(NamedTuple):
    """The number of parameters of a model, tied ones once, and the number of trainable ones."""

    total: int
    trainable: int


def count_parameters(model: nn.Module) -> ParameterCount:
    """Count each parameter once, however many modules share it."""
    parameters = list(model.parameters())
    return ParameterCount(sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad))


def attention_windows(config: Any) -> tuple[int | None, ...] | None:
    """By layer, how many tokens a token attends to at most; None for all before it, and in place of the tuple if a layer has
    attention of another kind than full or sliding (chunked, linear).

    Args:
        config: of a decoder, of its text part where it has several.
    """
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    if set(kinds) - {"full_attention", "sliding_attention"}:
        return None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout, layer drop and router jitter to 0, so that training mode computes what evaluation mode does.

    Reinforcement learning compares log-probabilities under the same weights, which dropout would change. Training mode is
    still needed for gradient checkpointing. Transformers keeps these rates in `nn.Dropout` modules or in plain
    attributes such as `attention_dropout`.
    """
    for module, name in list(_noise(model)):
        setattr(module, name, 0.0)


def has_dropout(model: nn.Module) -> bool:
    """Whether a rate that `disable_dropout` sets to 0 is above 0."""
    return any(getattr(module, name) for module, name in _noise(model))


def _noise(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Modules with the names of their rates of dropout, layer drop and router jitter."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            yield module, "p"
        for name, value in vars(module).items():
            if isinstance(value, float) and _NOISE.search(name):
                yield module, name


@contextmanager
def training_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set training or evaluation mode within the context, then restore the mode of every module.

    The only place that changes the mode of a model in use; `loading` and `tiny` return new models in evaluation mode. Every
    module is looked at, since a part may be in another mode than the whole, such as an adapter that was added later.
    """
    changed = [module for module in _parts(model) if module.training != training]
    for module in changed:
        vars(module)["training"] = training  # nn.Module's own assignment is slow, and engines do this every step
    try:
        yield
    finally:
        for module in changed:
            vars(module)["training"] = not training


def _parts(model: nn.Module) -> list[nn.Module]:
    """The model and all modules in it, one that has several places as often as it has places.

    Without the nested generators and names of `nn.Module.modules`, which takes four times as long; an engine needs them
    for every token.
    """
    found = [model]
    for module in found:  # grows meanwhile
        found += [part for part in vars(module)["_modules"].values() if part is not None]
    return found


def whole(x: Tensor) -> Tensor:
    """The unsharded tensor on every rank; a tensor that is not sharded is returned unchanged."""
    gathered: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return gathered


def sharded_like(x: Tensor, like: Tensor) -> Tensor:
    """Shard a tensor over the ranks like `like`; unchanged if `like` is not sharded."""
    if not hasattr(like, "full_tensor") or hasattr(x, "full_tensor"):
        return x
    from torch.distributed.tensor import distribute_tensor

    layout: Any = like
    placed: Tensor = distribute_tensor(x.to(like.device), layout.device_mesh, layout.placements)
    return placed


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Copy an unsharded tensor into a parameter, sharded or not."""
    parameter.copy_(sharded_like(value, parameter))
