"""The frozen models beside the policy: the reference of a KL, a teacher, and the policy as it was before a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field

from reinlm.algorithms import Algorithm
from reinlm.config import Config, ModelPath
from reinlm.errors import InputError
from reinlm.models import Anchor, ModelConfig, Policy, Reference, TokenModel, same_model
from reinlm.training.policy import same_tokens


class ReferenceConfig(Config):
    """The reference model of a KL."""

    path: ModelPath
    """A model with the same tokens, such as the one after SFT, a base model or a stronger one."""


class TeacherConfig(Config):
    """The teacher model."""

    path: ModelPath
    """A model with the same tokens."""


class RefreshConfig(Config):
    """A reference that follows the policy. TR-DPO, arXiv 2404.09656."""

    every: int = Field(ge=1)
    """Steps between moves."""
    mix: float = Field(1.0, gt=0, le=1)
    """reference ← mix · policy + (1 - mix) · reference: 1 replaces it, TR-DPO takes 0.6."""


class Anchors:
    """The reference and the teacher that an algorithm asks for; what moves is the reference, where it is refreshed.

    Args:
        text_kl: whether a loss of data-set text needs the reference too.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        policy: Policy,
        model: TokenModel,
        *,
        config: ModelConfig,
        reference: ReferenceConfig | None = None,
        teacher: TeacherConfig | None = None,
        refresh: RefreshConfig | None = None,
        text_kl: bool = False,
    ) -> None:
        self.refresh_settings = refresh
        self.reference: Reference | None = None
        if algorithm.needs_reference or text_kl:
            source = same_tokens("reference.path", reference.path, config, policy).model if reference else None
            self.reference = Reference(model, source)
        self.teacher: Anchor | None = None
        if algorithm.needs_teacher and teacher is not None:
            other = same_tokens("teacher.path", teacher.path, config, policy).model.requires_grad_(False)
            self.teacher = Anchor(TokenModel(other, packing=model.asked_packing, chunk_tokens=model.chunk_tokens))
        self.marks = {name: fingerprint(anchor.model.lm) for name, anchor in self.by_name.items()}
        """Hash of the frozen weights, by model name."""

    @property
    def by_name(self) -> dict[str, Anchor]:
        """What divergences are measured from."""
        found = {"reference": self.reference.anchor if self.reference else None, "teacher": self.teacher}
        return {name: anchor for name, anchor in found.items() if anchor is not None}

    def refresh(self, step: int) -> None:
        """Move the reference towards the policy where it is due."""
        settings = self.refresh_settings
        if self.reference is not None and settings is not None and step % settings.every == 0:
            self.reference.refresh(settings.mix)

    def state_dict(self) -> dict[str, Any]:
        moved = self.reference is not None and self.refresh_settings is not None
        return {
            "marks": self.marks,
            "reference": self.reference.state_dict() if self.reference is not None and moved else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises InputError where a frozen model is not the one that the run began with."""
        for name, mark in state["marks"].items():
            if self.marks.get(name) != mark:
                raise InputError(
                    f"the {name} model is not the one that the run started from: its weights differ",
                    hint="resume with the model as it was before training, such as its folder",
                )
        if self.reference is not None and state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])


class OldPolicy:
    """The policy as it was before a batch's first update, as an anchor for divergences over the whole vocabulary."""

    def __init__(self, model: TokenModel) -> None:
        if hasattr(model.lm, "disable_adapter"):
            raise InputError(
                "a full KL to the old policy keeps a second copy of the policy, which an adapter does not have",
                hint="take estimator=k3, or train without an adapter",
            )
        frozen = TokenModel(same_model(model.lm), packing=model.asked_packing, chunk_tokens=model.chunk_tokens)
        self.anchor = Anchor(frozen)

    @torch.no_grad()
    def take(self, model: TokenModel) -> None:
        """Take the weights as they are now."""
        for kept, current in zip(self.anchor.model.lm.parameters(), model.lm.parameters(), strict=True):
            kept.copy_(current)


def fingerprint(model: torch.nn.Module) -> str:
    """A hash of up to 64 values of each frozen weight, independent of device and trained weights."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            flat = weight.detach().flatten()
            places = torch.linspace(0, len(flat) - 1, min(64, len(flat)), dtype=torch.float64).long()
            values = flat[places.to(flat.device)].double().cpu()
            digest.update(f"{name} {tuple(weight.shape)} {values.tolist()}".encode())
    return digest.hexdigest()
