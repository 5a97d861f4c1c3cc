"""Configuration of `reinlm reward`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from reinlm.config import Config
from reinlm.data import JudgedDataConfig
from reinlm.models import RewardHeads
from reinlm.training.config import RunVerbConfig, as_section
from reinlm.training.judged_config import JudgedEvaluation
from reinlm.training.optimizer import OptimizerConfig
from reinlm.training.sections import TrainingConfig

LossName = Literal["auto", "bradley_terry", "plackett_luce", "davidson", "rao_kupper", "regression", "logistic"]

OPTIONS: dict[str, tuple[str, ...]] = {
    "bradley_terry": ("margin_scale", "label_smoothing", "centering"),
    "plackett_luce": ("top", "centering"),
    "davidson": ("tie", "centering"),
    "rao_kupper": ("tie", "centering"),
    "regression": (),
    "logistic": (),
}
"""What each loss uses of `RewardLossConfig`."""


class RewardLossConfig(Config):
    """What a reward model learns from judged answers."""

    name: LossName = "auto"
    """bradley_terry: pairs, and all pairs of a ranking; plackett_luce: whole rankings; davidson, rao_kupper: pairs with ties;
    regression: ratings; logistic: labels and labelled steps. auto: bradley_terry of pairs (davidson where some tie),
    plackett_luce of rankings, and regression or logistic."""
    margin_scale: float = Field(1.0, ge=0, allow_inf_nan=False)
    """Of bradley_terry: the data's margin times this must lie between both scores; 0 leaves it out."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Of bradley_terry: the share of judgements taken to be the wrong way round."""
    centering: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Coefficient of (r_better + r_worse)², which keeps scores near 0 (arXiv 2312.09244 has 0.01)."""
    top: int | None = Field(None, ge=1)
    """Of plackett_luce: the best K of a ranking stand in order, the others in none; null: all do."""
    tie: float | None = Field(None, gt=0, allow_inf_nan=False)
    """ν of davidson (null: 1, a third of ties between equal answers), θ > 1 of rao_kupper (null: 3, half of them)."""

    @model_validator(mode="after")
    def _used(self) -> RewardLossConfig:
        if self.name == "auto":
            return self
        for option in ("margin_scale", "label_smoothing", "centering", "top", "tie"):
            if self.changed(option) and option not in OPTIONS[self.name]:
                raise ValueError(f"{option} {getattr(self, option)} has no effect on {self.name}; leave it out")
        if self.name == "rao_kupper" and self.tie is not None and self.tie <= 1.0:
            raise ValueError(f"tie {self.tie} must be more than 1 with rao_kupper: at 1 a tie is impossible")
        return self


class HeadConfig(Config):
    """The heads of a reward model, and how they become one score."""

    pooling: Literal["last", "mean"] = "last"
    """Read at the last token of an answer, or as the mean over its tokens, which transformers cannot."""
    members: int = Field(1, ge=1, le=64)
    """Heads that learn the same, each from its own bootstrap sample of the data."""
    spread_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Standard deviations of the members that are subtracted from their mean (arXiv 2310.02743)."""
    weights: dict[str, float] | None = None
    """Of the criteria in ratings: the score is their weighted sum; null: 1 each."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of a head's inputs that training drops at random."""

    @model_validator(mode="after")
    def _spread_of_members(self) -> HeadConfig:
        if self.spread_penalty and self.members == 1:
            raise ValueError(f"spread_penalty {self.spread_penalty} has no effect on one member: set head.members")
        return self

    def heads(self, criteria: tuple[str, ...], *, steps: bool) -> RewardHeads:
        """What the outputs mean, of data with these criteria."""
        weights = tuple(1.0 if self.weights is None else self.weights[name] for name in criteria)
        reads: Literal["answer", "steps"] = "steps" if steps else "answer"
        return RewardHeads(criteria, weights, self.members, self.pooling, reads, spread_penalty=self.spread_penalty)


class NormalizeConfig(Config):
    """The reference set over whose scores a saved model has mean 0 and standard deviation 1."""

    path: str | list[Any] | None = None
    """A file of rows of prompt and completion, such as answers of the SFT model; null: the first answers of the training data."""
    answers: int = Field(512, ge=2)
    """How many of them at most, from the first on."""


class RewardOptimizer(OptimizerConfig):
    """The optimizer of reward models."""

    learning_rate: float = Field(1e-5, gt=0, lt=1)
    weight_decay: float = Field(0.01, ge=0)


class RewardTraining(TrainingConfig):
    """The loop of reward models."""

    batch_size: int = Field(32, ge=1)
    """Pairs, rankings or single answers in an optimizer step."""
    length: Literal["ignore", "term", "balanced"] = "ignore"
    """Against a preference for long answers: term: a coefficient of the answer's length is fitted beside the score and left out
    of it; balanced: as many pairs of a batch have a longer better answer as have a shorter one."""

    @model_validator(mode="after")
    def _no_logprobs(self) -> RewardTraining:
        if self.changed("logprob_chunk"):
            raise ValueError(
                f"logprob_chunk {self.logprob_chunk} has no effect: a reward model computes no log-probabilities"
            )
        return self


class RewardModelConfig(RunVerbConfig):
    """`reinlm reward`: learn a score from judged answers."""

    verb: ClassVar[str] = "reward"

    data: JudgedDataConfig
    optimizer: RewardOptimizer = RewardOptimizer()
    evaluation: JudgedEvaluation = JudgedEvaluation()
    training: RewardTraining = RewardTraining()
    loss: RewardLossConfig = RewardLossConfig()
    head: HeadConfig = HeadConfig()
    normalize: NormalizeConfig | None = NormalizeConfig()
    """Null: scores are saved as they are trained."""
    max_tokens: int | None = Field(None, ge=2)
    """Longest prompt with an answer; null: the model's context."""

    @field_validator("normalize", mode="before")
    @classmethod
    def _normalize_path(cls, value: Any) -> Any:
        return None if value is None else as_section("path", value)

    @field_validator("loss", mode="before")
    @classmethod
    def _loss_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
