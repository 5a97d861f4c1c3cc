"""Configuration of `reinlm dpo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator

from reinlm.algorithms import preference_name
from reinlm.data import JudgedDataConfig
from reinlm.schedules import Schedule
from reinlm.training.anchors import ReferenceConfig, RefreshConfig
from reinlm.training.config import RunVerbConfig, as_section
from reinlm.training.judged_config import JudgedEvaluation
from reinlm.training.optimizer import OptimizerConfig
from reinlm.training.sections import TrainingConfig

DEFAULT_PREFERENCE = "dpo"


class DPOOptimizer(OptimizerConfig):
    """The optimizer of dpo: a rate as in the papers, with a decreasing schedule."""

    learning_rate: float = Field(1e-6, gt=0, lt=1)
    schedule: Schedule = "linear"


class DPOTraining(TrainingConfig):
    """The loop of direct preference learning."""

    batch_size: int = Field(32, ge=1)
    """Pairs, rankings or labelled answers in an optimizer step."""
    dropout: bool = False
    """Whether the model's dropout is on in training. The reference is always computed without."""
    reference_cache: str | None = None
    """A folder that keeps the reference's log-probabilities by content (tokens and weights), for runs that read the same ones;
    null: each start computes them."""
    reference_refresh: RefreshConfig | None = None
    """Null: the reference stays as it was at the start, and its log-probabilities are computed once."""


class DPOEvaluation(JudgedEvaluation):
    """Scoring on judged answers that training never sees."""

    stop_at: float | None = Field(None, ge=0, le=1)
    """End the run early once the first set's accuracy reaches this."""


class DPOConfig(RunVerbConfig):
    """`reinlm dpo`: learn from judged answers without a reward model."""

    verb: ClassVar[str] = "dpo"

    data: JudgedDataConfig
    optimizer: DPOOptimizer = DPOOptimizer()
    evaluation: DPOEvaluation = DPOEvaluation()
    algorithm: str | dict[str, Any] = DEFAULT_PREFERENCE
    """A name, or {base: name, …} with values of its loss replaced: {base: dpo, beta: 0.2}."""
    training: DPOTraining = DPOTraining()
    reference: ReferenceConfig | None = None
    """For algorithms with a reference; null: the policy as the run begins, or its base model where it has an adapter."""
    max_tokens: int | None = Field(None, ge=2)
    """Longest prompt with an answer; null: the model's context."""

    @field_validator("reference", mode="before")
    @classmethod
    def _other_model(cls, value: Any) -> Any:
        return None if value is None else as_section("path", value)

    @field_validator("algorithm", mode="before")
    @classmethod
    def _with_a_base(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return value["base"] if value.keys() == {"base"} else {"base": DEFAULT_PREFERENCE, **value}

    @field_validator("algorithm")
    @classmethod
    def _registered_name(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        if isinstance(value, str):
            return preference_name(value)
        return {**value, "base": preference_name(value["base"])} if isinstance(value["base"], str) else value
