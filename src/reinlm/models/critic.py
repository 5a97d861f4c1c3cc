"""The critic of a language model: the value of every state, that is of the text so far.

A value is read from the hidden state that the next token is chosen from, so the value of a token's state never sees the
token itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from reinlm.errors import InputError
from reinlm.models.build import same_model
from reinlm.models.heads import resolve_packing, split_backbone
from reinlm.models.modules import assign, whole
from reinlm.models.token_model import TokenModel

Backbone = Literal["own", "shared"]
ADAPTER = "critic"


class ValueModel:
    """A value head on a backbone of its own, on a second adapter of the policy's, or on the policy's own backbone.

    Its own backbone starts as a copy of the policy's; where the policy is a LoRA adapter, it is a second adapter on the
    same frozen weights. A shared one takes values from the policy's forward pass. All values are 0 at first, but those of a
    head that is given.

    Args:
        policy: the model whose backbone is copied or shared.
        source: for a backbone of its own, another model with the same tokens to take it from, a language model or a sequence
            classifier; it is taken as it is.
        head: weight [1, hidden] and bias of the head at first; needed with a sequence classifier.
    """

    model: TokenModel
    """The model with the value head: the critic's own, or the policy's if shared."""
    adapter: str | None = None
    """The adapter of the policy's model that belongs to the critic; None without LoRA."""

    def __init__(
        self,
        policy: TokenModel,
        backbone: Backbone = "own",
        source: nn.Module | None = None,
        head: tuple[Tensor, float] | None = None,
    ) -> None:
        lm: Any = policy.lm
        split = split_backbone(lm if source is None else source)
        weight = cast("Tensor", split.head.weight) if head is None else head[0]
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.head = nn.Linear(weight.shape[1], 1, dtype=dtype, device=weight.device)
        with torch.no_grad():
            self.head.weight.copy_(torch.zeros_like(self.head.weight) if head is None else head[0])
            self.head.bias.fill_(0.0 if head is None else head[1])
        self.shared = backbone == "shared"
        if backbone == "own" and source is None and hasattr(lm, "peft_config"):
            self.adapter = ADAPTER
            self._add_adapter(lm)
        if self.shared or self.adapter:
            policy.value_head = self.head
            self.model = policy
            return
        other = same_model(lm) if source is None else source
        own = split_backbone(other).backbone.requires_grad_(True)
        packing = resolve_packing(other, policy.asked_packing)
        self.model = TokenModel(own, value_head=self.head, packing=packing, backbone_only=True)

    def _add_adapter(self, lm: Any) -> None:
        if ADAPTER in lm.peft_config:
            raise InputError(f"the policy already has an adapter named {ADAPTER}", hint="rename or remove it")
        lm.add_adapter(ADAPTER, copy.deepcopy(lm.peft_config[lm.active_adapter]))
        for name, weight in lm.named_parameters():
            if f".{ADAPTER}." in name:
                weight.requires_grad_(True)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of the head and of the critic's own backbone or adapter, sharded or not."""
        yield from ((f"head.{name}", weight) for name, weight in self.head.named_parameters())
        if self.adapter:
            mine = (weight for name, weight in self.model.lm.named_parameters() if f".{ADAPTER}." in name)
            yield from ((f"{ADAPTER}.{index}", weight) for index, weight in enumerate(mine))
        elif not self.shared:
            yield from ((f"backbone.{name}", weight) for name, weight in self.model.lm.named_parameters())

    def trainable(self) -> list[nn.Parameter]:
        """The parameters that the critic's optimizer updates."""
        return [weight for _, weight in self.named_parameters()]

    def learned(self) -> dict[str, Tensor]:
        """All trained weights of the critic, unsharded, its adapter included."""
        return {name: whole(weight).detach() for name, weight in self.named_parameters()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Load what `learned` returned."""
        for name, weight in self.named_parameters():
            assign(weight, state[name])
