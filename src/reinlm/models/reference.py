"""The reference model of a KL: another model, a copy of the policy at the start, or the policy without its adapter."""

from __future__ import annotations

from typing import Any

import torch

from reinlm.errors import InputError
from reinlm.models.build import same_model
from reinlm.models.modules import assign, whole
from reinlm.models.token_model import NO_ADAPTER, Anchor, TokenModel


class Reference:
    """A frozen model on the policy's tokens.

    By default a copy of the current policy; for a policy with LoRA its base model, without a copy.

    Args:
        policy: the policy's model.
        source: another language model with the same tokens to be the reference, such as π_SFT; it is not copied.

    Example:
        reference = Reference(policy_model)
        learner.forward(batch, anchor=reference.anchor)
    """

    def __init__(self, policy: TokenModel, source: torch.nn.Module | None = None) -> None:
        self._policy = policy
        inner: Any = policy.lm
        self.shared = source is None and hasattr(inner, "disable_adapter")
        if self.shared:
            self.anchor = Anchor(policy, NO_ADAPTER)
            return
        frozen = same_model(policy.lm) if source is None else source.requires_grad_(False)
        self.anchor = Anchor(TokenModel(frozen, packing=policy.asked_packing, chunk_tokens=policy.chunk_tokens))

    @property
    def weights(self) -> torch.nn.Module:
        """The module with the frozen weights."""
        return self.anchor.model.lm

    @torch.no_grad()
    def refresh(self, mix: float) -> None:
        """reference ← mix · policy + (1 - mix) · reference. TR-DPO, arXiv 2404.09656. Raises InputError for an adapter's."""
        if self.shared:
            raise InputError(
                "a policy with a LoRA adapter has its own backbone as the reference, which cannot be refreshed",
                hint="set training.reference_refresh=null, or train without model.lora",
            )
        for kept, current in zip(self.weights.parameters(), self._policy.lm.parameters(), strict=True):
            kept.lerp_(current.to(kept.dtype), mix)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Its weights, for a reference that is refreshed."""
        return {} if self.shared else {name: whole(weight) for name, weight in self.weights.named_parameters()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        if not self.shared:
            for name, kept in self.weights.named_parameters():
                assign(kept, state[name])
