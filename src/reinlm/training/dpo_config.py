"""Configuration of `reinlm dpo`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from reinlm.algorithms import preference_name
from reinlm.config import Config
from reinlm.data import JudgedDataConfig
from reinlm.rewards import RewardConfig
from reinlm.rollouts import RolloutConfig
from reinlm.schedules import Schedule
from reinlm.training.anchors import ReferenceConfig, RefreshConfig
from reinlm.training.config import VerbConfig, as_section, read_reward
from reinlm.training.evaluation import EvaluationConfig
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
    """Pairs, rankings or labelled answers in an optimizer step; of sampled answers the prompts whose pairs share one."""
    dropout: bool = False
    """Whether the model's dropout is on in training. The reference is always computed without."""
    reference_cache: str | None = None
    """A folder that keeps the reference's log-probabilities by content (tokens and weights), for runs that read the same ones;
    null: each start computes them."""
    reference_refresh: RefreshConfig | None = None
    """Null: the reference stays as it was at the start, and its log-probabilities are computed once."""


class DPOEvaluation(EvaluationConfig):
    """Scoring on judged answers that training never sees; with a reward on prompts, whose answers are sampled and scored."""

    data: dict[str, JudgedDataConfig] = Field(default_factory=dict)  # type: ignore[assignment]
    """Named sets: `{test: test.jsonl}`; a single path is the set `eval`."""
    correct_above: float = Field(0.5, allow_inf_nan=False)
    """An answer counts as right where the first reward function gives more than this."""


class OnlineRolloutConfig(RolloutConfig):
    """How answers are sampled and judged by the reward; without one nothing is sampled."""

    group_size: int = Field(2, ge=2)
    """Answers to each prompt, of which pairs are made."""
    batch_size: int = Field(64, ge=2)
    """Answers sampled in each step; a multiple of group_size. With more prompts than training.batch_size the step makes several
    updates of them (iterative DPO)."""
    max_attempts: int = Field(1, ge=1)
    """Prompts whose answers all tie give no pair: a batch is filled from at most this many times the prompts that it wants."""


class PairsConfig(Config):
    """Which of the sampled answers to a prompt become pairs. Answers without a reward are in none."""

    choose: Literal["best_worst", "all"] = "best_worst"
    """"best_worst": the highest reward against the lowest, of equal ones the first. "all": every two answers whose rewards
    differ; the pairs of a prompt share its weight."""
    min_margin: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Pairs whose rewards differ by less are left out; equal rewards always are."""
    missing_end_penalty: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Subtracted from the reward of an answer that a limit cut off, before pairs are made; null: nothing is."""


class DPOConfig(VerbConfig):
    """`reinlm dpo`: learn from judged answers, or with a reward from pairs of answers that it samples and judges itself."""

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
    reward: RewardConfig | None = None
    """Judges sampled answers to the prompts of the data (online DPO); null: the data hold judged answers, or an environment
    gives rewards."""
    rollout: OnlineRolloutConfig = OnlineRolloutConfig()
    pairs: PairsConfig = PairsConfig()

    @property
    def online(self) -> bool:
        """Whether answers are sampled and judged, in place of being read."""
        return self.reward is not None or self.changed("environment")

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return read_reward(value)

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
