"""The critic of a language model: a value for every state, the text so far.

A value is read from the hidden state that the next token is chosen from, so the value of a token's state never sees the
token itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from reinlm.errors import InputError
from reinlm.models.heads import split_head
from reinlm.models.score import Packing, filler, state_values

Backbone = Literal["own", "shared"]
ADAPTER = "critic"


class ValueModel(nn.Module):
    """A value head on a backbone of its own, or on the policy's.

    Its own backbone starts as a copy of the policy's; where the policy is a LoRA adapter, it is a second adapter on the
    same frozen weights. A shared one takes values from the policy's forward pass (`score(…, value_head=model.head)`), and
    this module then owns the head alone. All values are 0 at first.

    Args:
        policy: the model whose backbone is copied or shared.
        source: for a backbone of its own, another model to take it from, such as a reward model with the same tokens.
    """

    def __init__(self, policy: nn.Module, backbone: Backbone = "own", source: nn.Module | None = None) -> None:
        super().__init__()
        self._policy: list[Any] = [policy]  # in a list, so that its weights are not this module's
        self.adapter = backbone == "own" and source is None and hasattr(policy, "peft_config")
        split = split_head(policy if source is None else source)
        weight = cast("Tensor", split.head.weight)
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.head = nn.Linear(weight.shape[1], 1, dtype=dtype, device=weight.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.shared = backbone == "shared"
        self._fill = filler(policy)
        if backbone == "own" and not self.adapter:
            self.backbone = copy.deepcopy(split.backbone).requires_grad_(True)
        if self.adapter:
            self._add_adapter(policy)

    def _add_adapter(self, policy: Any) -> None:
        if ADAPTER in policy.peft_config:
            raise InputError(f"the policy already has an adapter named {ADAPTER}", hint="rename or remove it")
        policy.add_adapter(ADAPTER, copy.deepcopy(policy.peft_config[policy.active_adapter]))
        names = [n for n, _ in policy.named_parameters() if f".{ADAPTER}." in n]
        weights = dict(policy.named_parameters())
        self._adapter_weights = [weights[name].requires_grad_(True) for name in names]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Its adapter in place of the policy's, through forward and backward pass; nothing where it has none."""
        if not self.adapter:
            yield
            return
        policy = self._policy[0]
        before = policy.active_adapter
        policy.set_adapter(ADAPTER)
        try:
            yield
        finally:
            policy.set_adapter(before)
            for weight in self._adapter_weights:
                weight.requires_grad_(True)

    def trainable(self) -> list[nn.Parameter]:
        """The head, and the backbone or adapter that is the critic's own."""
        own = self._adapter_weights if self.adapter else []
        return [*self.parameters(), *own]

    def values(
        self, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], packing: Packing = "pad"
    ) -> Tensor:
        """[N] values of the states before the tokens at `positions`; len(sequence) is the state after the last token."""
        borrowed = self.adapter or self.shared
        backbone = split_head(self._policy[0]).backbone if borrowed else self.backbone
        return state_values(backbone, self.head, sequences, positions, fill=self._fill, packing=packing)

    def learned(self) -> dict[str, Tensor]:
        """Everything that the critic learned, its adapter included."""
        state = dict(self.state_dict())
        if self.adapter:
            state |= {f"{ADAPTER}.{index}": weight.detach() for index, weight in enumerate(self._adapter_weights)}
        return state

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """What `learned` gave."""
        own = {name: tensor for name, tensor in state.items() if not name.startswith(f"{ADAPTER}.")}
        self.load_state_dict(own)
        if self.adapter:
            for index, weight in enumerate(self._adapter_weights):
                weight.copy_(state[f"{ADAPTER}.{index}"])
