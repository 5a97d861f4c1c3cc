"""Build a second model from the configuration and the weights of a loaded one."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from reinlm.models.heads import copy_findings


def same_model(lm: nn.Module) -> nn.Module:
    """A new model of the same configuration, weights, types and device, frozen.

    What has been tested of the loaded one (`heads`) is not tested again. The random state does not change. Adapters are not
    copied: pass the base model.
    """
    source: Any = lm
    made = without_weights(source)
    made.to(source.device)
    with torch.no_grad():
        for (name, new), (_, old) in zip(made.named_parameters(), source.named_parameters(), strict=True):
            assert new.shape == old.shape, name
            new.data = old.detach().to(old.dtype, copy=True)
        for (name, buffer), (_, other) in zip(made.named_buffers(), source.named_buffers(), strict=True):
            owner, _, last = name.rpartition(".")
            made.get_submodule(owner)._buffers[last] = other.detach().clone().to(buffer.device)
    copy_findings(source, made)
    frozen: nn.Module = made.requires_grad_(False)
    return frozen


def without_weights(source: Any) -> Any:
    """A new model of the same configuration whose weights have no values yet. The random state does not change."""
    from transformers.initialization import no_init_weights

    config = copy.deepcopy(source.config)
    with torch.random.fork_rng(devices=[]), no_init_weights():
        made = type(source)._from_config(config, dtype=source.dtype)
    made.tie_weights()  # skipped together with the initial weights
    return made
