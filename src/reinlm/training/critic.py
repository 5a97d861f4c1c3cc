"""The critic of a run: its configuration, its value model and its learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from reinlm.config import Config, ModelPath
from reinlm.errors import InputError
from reinlm.models import ModelConfig, Policy, TokenModel, ValueModel, load_reward_model
from reinlm.models.loading import is_classifier
from reinlm.training.learner import Learner
from reinlm.training.optimizer import OptimizerConfig
from reinlm.training.policy import check_tokens, same_tokens, trained_config


class CriticConfig(Config):
    """The value model of an algorithm with a critic."""

    backbone: Literal["own", "shared"] = "own"
    """A copy of the policy's backbone (with LoRA a second adapter on the same weights), or the policy's itself, with one
    forward and backward pass for both."""
    path: ModelPath | None = None
    """Another model with the same tokens to take the own backbone from. Of a reward model the head too: the first value of a
    state is its score of the text so far."""
    warmup_steps: int = Field(0, ge=0)
    """First steps of the run in which the critic learns and the policy does not move."""
    optimizer: OptimizerConfig | None = None
    """Optimizer of the critic's own weights; what it does not set is as in `optimizer`, but without warm-up."""

    @model_validator(mode="after")
    def _own_has_a_source(self) -> CriticConfig:
        if self.path is not None and self.backbone == "shared":
            raise ValueError(f"critic.path {self.path} has no effect on a shared backbone; set critic.backbone=own")
        return self


def over_policy_optimizer(own: Mapping[str, Any], policy: OptimizerConfig) -> dict[str, Any]:
    """The values of a critic's optimizer: those that are given, the others from the policy's, without warm-up.

    What belongs to an optimizer's name or to a schedule comes along only where the critic has the same one.
    """
    taken = {**policy.model_dump(), "warmup_steps": 0}
    if own.get("name", policy.name) != policy.name:
        taken = {key: value for key, value in taken.items() if key not in ("options", "betas", "epsilon")}
    if own.get("schedule") == "constant":
        del taken["final_fraction"]
    return {**taken, **own}


@dataclass(frozen=True)
class CriticModel:
    """A value model and its learner; one with a shared backbone is computed in the policy's passes."""

    model: ValueModel
    learner: Learner

    @property
    def shared(self) -> bool:
        return self.model.shared


def value_model(settings: CriticConfig, model: ModelConfig, policy: Policy, policy_model: TokenModel) -> ValueModel:
    """The value model that the configuration asks for: its values are 0, or those of a reward model for the text so far.

    Raises InputError for a model that cannot be loaded or reads other tokens, and a reward model without one score of an answer.
    """
    if settings.path is None:
        return ValueModel(policy_model, settings.backbone)
    source = trained_config(model.model_copy(update={"path": settings.path, "lora": None}))
    if not is_classifier(source):
        return ValueModel(policy_model, "own", same_tokens("critic.path", settings.path, model, policy).model)
    try:
        scorer = load_reward_model(source)
        head = scorer.value_head()
    except InputError as error:
        raise InputError(f"critic.path {settings.path}: {error.message}", hint=error.hint) from error
    check_tokens("critic.path", settings.path, scorer.policy, policy)
    return ValueModel(policy_model, "own", scorer.policy.model, head)
