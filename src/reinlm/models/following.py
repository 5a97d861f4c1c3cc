"""A second model that follows one in training, to be used while that one changes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reinlm.errors import InputError, error_line
from reinlm.models.build import without_weights
from reinlm.models.heads import close, probe, quietly, unwrap


class FollowingModel:
    """A second model that takes the weights of a model in training when it is told to, so that it can be used meanwhile.

    It holds copies of the weights that are trained, and shares those that are frozen, such as the base of an adapter.

    Args:
        model: a causal language model, or one that peft has adapted; its active adapter is copied.

    Raises:
        InputError: the model cannot be built again from its configuration, or computes something else then.
    """

    def __init__(self, model: nn.Module) -> None:
        try:
            self.model = _without_values(model)
            self._trained = self._take_over(model)
            self.model.eval()
            same = _computes_alike(self.model, model)
        except Exception as error:  # configurations and adapters of many kinds
            raise InputError(f"{type(unwrap(model)).__name__} cannot be copied: {error_line(error)}") from error
        if not same:
            raise InputError(
                f"{type(unwrap(model)).__name__} cannot be copied: a model of its configuration and weights computes "
                "something else, as where hooks or methods were changed after it was made"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that it holds beside those of the model that it follows."""
        return sum(kept.nbytes for kept, _ in self._trained.values())

    @torch.no_grad()
    def follow(self) -> None:
        """Take the weights as they are now."""
        for kept, current in self._trained.values():
            kept.copy_(current)

    def weights(self) -> dict[str, Tensor]:
        """Copies of the weights that are its own, by name."""
        return {name: kept.detach().clone() for name, (kept, _) in self._trained.items()}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take what `weights` gave."""
        for name, (kept, _) in self._trained.items():
            kept.copy_(weights[name])

    def _take_over(self, source: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
        """Put weights and buffers into the new model; returns those that move, each with the one that it follows."""
        current = dict(source.named_parameters(remove_duplicate=False))
        made: dict[int, nn.Parameter] = {}
        trained: dict[str, tuple[Tensor, Tensor]] = {}
        for name, empty in list(self.model.named_parameters(remove_duplicate=False)):
            weight = current.get(name)
            if weight is None or weight.shape != empty.shape:
                raise ValueError(f"by its configuration it has a weight {name} of shape {tuple(empty.shape)}")
            if id(weight) not in made:
                moves = weight.requires_grad
                made[id(weight)] = nn.Parameter(weight.detach().clone(), False) if moves else weight
                if moves:
                    trained[name] = made[id(weight)], weight
            owner, _, last = name.rpartition(".")
            self.model.get_submodule(owner)._parameters[last] = made[id(weight)]
        buffers = dict(source.named_buffers(remove_duplicate=False))
        for name, _ in list(self.model.named_buffers(remove_duplicate=False)):
            owner, _, last = name.rpartition(".")
            self.model.get_submodule(owner)._buffers[last] = buffers[name].detach().clone()
        return trained


def _without_values(model: Any) -> Any:
    """As `without_weights`, with the active adapter where the model has one."""
    made = without_weights(unwrap(model))
    if not hasattr(model, "peft_config"):
        return made
    name = model.active_adapter
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an older name
        return type(model)(made, copy.deepcopy(model.peft_config[name]), adapter_name=name)


def _computes_alike(made: nn.Module, source: nn.Module) -> bool:
    ids = probe(source)
    with quietly(source), quietly(made):
        expected, found = (model(input_ids=ids, use_cache=False).logits for model in (source, made))
    return close(found, expected, expected.dtype)
