"""Configuration of `reinlm rft`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from reinlm.config import Config
from reinlm.data.columns import Template
from reinlm.errors import InputError
from reinlm.rewards import RewardConfig
from reinlm.rollouts import EpisodeConfig, SamplingConfig
from reinlm.training.config import VerbConfig, read_reward, refuse_failed_steps
from reinlm.training.rejection.selection import Distinct, KeepRule
from reinlm.training.sections import SFTOptimizer, SFTTraining

MethodName = Literal["rft", "raft", "rest_em", "star"]
Start = Literal["current", "base"]


@dataclass(frozen=True)
class Method:
    """What a named method of rejection sampling sets where the recipe says nothing.

    Example:
        METHODS["raft"].iterations
    """

    source: str
    iterations: int
    start: Start
    rule: Literal["above", "best"]
    distinct: Distinct
    per_prompt: int | None = None


METHODS: Mapping[MethodName, Method] = {
    "rft": Method("arXiv 2308.01825", 1, "current", "above", "text"),
    "raft": Method("arXiv 2304.06767", 4, "current", "best", "text"),
    "rest_em": Method("arXiv 2312.06585", 2, "base", "above", "text", per_prompt=10),
    "star": Method("arXiv 2203.14465", 3, "base", "above", "text"),
}


class KeepConfig(Config):
    """Which of the sampled answers are learned from."""

    rule: Literal["above", "best"] | None = None
    """"above": every answer whose reward is more than `above`. "best": the highest rewards of each prompt (best-of-N). Null: as
    the method has it."""
    above: list[float] | None = None
    """The bound of the weighted reward; with the rule "best" a further condition. Several, rising ones: the same answers are
    learned from once for each (ReST); one may stand alone. Null: 0.5 with the rule "above", else none."""
    count: int | None = Field(None, ge=1)
    """Of "best": answers of each prompt; null: 1."""
    distinct: Distinct | None = None
    """What two answers to a prompt must differ in: their "text" (but for case and white space), their "equations", or nothing,
    "off". Null: as the method has it."""
    per_prompt: int | None = Field(None, ge=1)
    """Of "above": answers of a prompt at most, the highest rewards; null: as the method has it."""
    truncated: bool = False
    """Whether answers that a limit cut off may be kept."""

    @field_validator("above", mode="before")
    @classmethod
    def _one_alone(cls, value: Any) -> Any:
        return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value

    @field_validator("above")
    @classmethod
    def _rising(cls, value: list[float] | None) -> list[float] | None:
        if value is None:
            return None
        if not value or not all(abs(bound) < float("inf") for bound in value):
            raise ValueError(f"above {value} needs finite numbers")
        if any(later <= earlier for earlier, later in itertools.pairwise(value)):
            raise ValueError(f"above {value} must rise: each round of learning keeps fewer answers than the one before")
        return value


class RFTRolloutConfig(SamplingConfig, EpisodeConfig):
    """How answers are sampled."""

    group_size: int = Field(8, ge=1)
    """Answers to each prompt."""
    batch_size: int = Field(128, ge=1)
    """Answers sampled at once and written together, in whole groups; what is written is not sampled again on resume."""


OF_SAMPLING = ("group_size", "temperature", "top_p", "top_k")
"""Keys of `rollout` that only answers of the model follow."""


class RFTTraining(SFTTraining):
    """Learning from what was kept."""

    steps: int | None = Field(None, ge=1)
    """Optimizer steps on the answers of each iteration, and of each bound of `keep.above`; null: as many as `epochs` takes."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the kept answers of each iteration, where `steps` is not given."""


class RFTConfig(VerbConfig):
    """`reinlm rft`: sample answers, keep the good ones, imitate them."""

    verb: ClassVar[str] = "rft"

    method: MethodName = "rft"
    """"rft": one iteration, all distinct right answers. "raft": iterations on the best answer of each prompt. "rest_em":
    iterations on right answers, at most 10 of a prompt, each from the model at the start. "star": as rest_em without that limit,
    with `hint`. Every key that is given goes over it."""
    iterations: int | None = Field(None, ge=1)
    """Rounds of sampling with the newest weights and learning; null: as the method has it (rft 1, raft 4, rest_em 2, star 3)."""
    start: Start | None = None
    """What each iteration learns from: the "current" weights, or the "base": the model as it was at the start. Null: as the
    method has it."""
    keep: KeepConfig = KeepConfig()
    hint: str | None = None
    """A second try for prompts without a kept answer: their prompt with a hint, such as "{prompt}(The answer is {answer}.) ";
    columns stand in braces. The hint is removed from what is learned. Null: none."""
    reward: RewardConfig | None = None
    """Null: the environment's own rewards alone."""
    answers: Literal["model", "data"] = "model"
    """"model": answers are sampled. "data": they are those of the data, rows with prompt and completion; without reward functions
    the column `reward` scores them."""
    rollout: RFTRolloutConfig = RFTRolloutConfig()
    optimizer: SFTOptimizer = SFTOptimizer()
    training: RFTTraining = RFTTraining()

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return read_reward(value)

    @field_validator("hint")
    @classmethod
    def _hint_holds_the_prompt(cls, value: str | None) -> str | None:
        if value is not None and "prompt" not in _columns(value):
            raise ValueError(f"hint {value!r} must hold the prompt: write {{prompt}} where it belongs")
        return value

    @model_validator(mode="after")
    def _values_act(self) -> RFTConfig:
        rule = self.rule
        if rule.rule == "above" and self.keep.count is not None:
            raise ValueError(f'keep.count {self.keep.count} has no effect with keep.rule "above"; set keep.per_prompt')
        if rule.rule == "best" and self.keep.per_prompt is not None:
            raise ValueError(
                f'keep.per_prompt {self.keep.per_prompt} has no effect with keep.rule "best"; set keep.count'
            )
        if self.start is not None and self.rounds == 1:
            raise ValueError(f"start {self.start} has no effect: one iteration begins from the model as it is")
        if self.method == "star" and self.hint is None:
            raise ValueError(
                'method star tries again with a hint: set hint, such as "{prompt}(The answer is {answer}.) "'
            )
        if self.rollout.temperature == 0 and self.rollout.group_size > 1:
            raise ValueError(
                f"rollout.temperature 0 gives {self.rollout.group_size} equal answers to a prompt; raise it, or set "
                "rollout.group_size=1"
            )
        if self.rollout.batch_size < self.rollout.group_size:
            raise ValueError(
                f"rollout.batch_size {self.rollout.batch_size} holds no group of {self.rollout.group_size} answers"
            )
        if (
            self.answers == "model"
            and rule.rule == "best"
            and rule.count >= self.rollout.group_size
            and rule.above is None
        ):
            raise ValueError(
                f"keep.count {rule.count} keeps every one of rollout.group_size {self.rollout.group_size} answers; raise "
                "the group size"
            )
        refuse_failed_steps(self.reward, "rft")
        return self

    @model_validator(mode="after")
    def _stored_answers_are_not_sampled(self) -> RFTConfig:
        if self.answers == "model":
            return self
        if self.rounds > 1:
            raise ValueError(f"answers data are there once, and {self.rounds} iterations sample anew; set iterations=1")
        given = {f"rollout.{name}": self.rollout.changed(name) for name in OF_SAMPLING}
        given |= {"keep.truncated": self.keep.changed("truncated"), "hint": self.hint is not None}
        given |= {"environment": self.changed("environment")}
        for name, changed in given.items():
            if changed:
                raise ValueError(f"{name} has no effect with answers data: nothing is sampled; leave it out")
        return self

    @property
    def rounds(self) -> int:
        """Iterations of sampling and learning."""
        return self.iterations or METHODS[self.method].iterations

    @property
    def begins(self) -> Start:
        """What each iteration learns from."""
        return self.start or METHODS[self.method].start

    @property
    def bounds(self) -> tuple[float | None, ...]:
        """The bound of the reward in each round of learning of an iteration."""
        own = 0.5 if (self.keep.rule or METHODS[self.method].rule) == "above" else None
        return (own,) if self.keep.above is None else tuple(self.keep.above)

    @property
    def rule(self) -> KeepRule:
        """Which answers are kept in the first round of learning of an iteration."""
        method, keep = METHODS[self.method], self.keep
        return KeepRule(
            rule=keep.rule or method.rule,
            above=self.bounds[0],
            count=keep.count or 1,
            distinct=keep.distinct or method.distinct,
            per_prompt=keep.per_prompt or method.per_prompt,
            truncated=keep.truncated,
        )


def _columns(text: str) -> list[str]:
    try:
        return Template(text, "hint").columns
    except InputError as error:
        raise ValueError(error.message) from error
