"""The model that a KL ties the policy to: a frozen copy, or, where the policy is an adapter, the policy without it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reinlm.errors import InputError


class Reference:
    """The policy as it is now, kept as it is; a policy with a LoRA adapter shares its backbone and costs nothing.

    Example:
        >>> reference = Reference(policy.model)
        >>> with torch.no_grad(), reference.active() as model: ...
    """

    def __init__(self, policy: nn.Module) -> None:
        self._policy: Any = policy
        self.shared = hasattr(policy, "disable_adapter")
        self._copy = None if self.shared else copy.deepcopy(policy).eval().requires_grad_(False)

    @contextmanager
    def active(self) -> Iterator[nn.Module]:
        """The reference as a model to run."""
        if self._copy is not None:
            yield self._copy
        else:
            with self._policy.disable_adapter():
                yield self._policy

    @property
    def weights(self) -> nn.Module:
        """What its frozen weights belong to."""
        return self._policy if self._copy is None else self._copy

    @torch.no_grad()
    def refresh(self, mix: float) -> None:
        """reference ← mix · policy + (1 - mix) · reference. TR-DPO, arXiv 2404.09656. Raises InputError for an adapter's."""
        if self._copy is None:
            raise InputError(
                "a policy with a LoRA adapter has its own backbone as the reference, which cannot be refreshed",
                hint="set training.reference_refresh=null, or train without model.lora",
            )
        for kept, current in zip(self._copy.parameters(), self._policy.parameters(), strict=True):
            kept.lerp_(current.to(kept.dtype), mix)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Its weights, for a reference that moves."""
        return {} if self._copy is None else dict(self._copy.named_parameters())

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for name, kept in self.state_dict().items():
            kept.copy_(state[name])
