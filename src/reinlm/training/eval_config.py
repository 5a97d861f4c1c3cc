"""Configuration of the verb `eval`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from reinlm.config import ModelPath
from reinlm.data import DataConfig
from reinlm.errors import InputError
from reinlm.models import ModelConfig
from reinlm.places import short_names
from reinlm.rewards import RewardConfig
from reinlm.rewards.judging import JudgeConfig, read_judge
from reinlm.rollouts import EvalRolloutConfig
from reinlm.training.config import (
    EpisodesConfig,
    as_section,
    read_reward,
    refuse_failed_steps,
    refuse_running,
    refuse_training,
)
from reinlm.training.evaluation import EvaluationConfig
from reinlm.training.held_out import HeldOutTextConfig
from reinlm.training.win_rate import is_file_of_answers

OF_A_RUN = ("every", "stop_at", "patience")
"""Keys of `evaluation` that say when a run evaluates and ends; `reinlm eval` has none of them."""


OF_ANSWERS = ("environment", "reward", "against", "judge", "diversity", "output", "seed")
"""Keys of `eval` that say how answers are sampled, scored, compared or written."""


class EvalConfig(EpisodesConfig):
    """`reinlm eval`: score one or several models on one or several sets of prompts, and on held-out text."""

    verb: ClassVar[str] = "eval"

    model: ModelConfig | None = None
    """The model to score; or several under `models`."""
    models: dict[str, ModelConfig] = Field(default_factory=dict)
    """Models by name, each scored on every set: `{sft: runs/sft, rl: runs/rl}`. In place of `model`."""
    data: DataConfig | None = None
    """The set of prompts; or several sets by name under `evaluation.data`."""
    reward: RewardConfig | None = None
    """Null: the environment's own rewards alone."""
    text: HeldOutTextConfig = HeldOutTextConfig()
    """Held-out text: each model's loss and perplexity per token on it. Prompts may then be left out."""
    evaluation: EvaluationConfig = EvaluationConfig()
    rollout: EvalRolloutConfig = EvalRolloutConfig()
    against: ModelPath | None = None
    """A model or a run, or a file of answers (rows with prompt and completion): how often each model's answers earn more than its
    answers to the same prompts, a tie counted half; or with `judge`, how often they are judged better."""
    judge: JudgeConfig | None = None
    """With `against`: a function that sees both answers to a prompt and says which is better, in place of their rewards. Each
    pair is shown in both orders."""
    diversity: bool = False
    """Whether to measure how much the answers differ: distinct_1 and distinct_2 of the set, similarity and entropy of the
    answers to one prompt."""
    output: str | None = None
    """A JSONL file for all answers with their rewards."""

    @field_validator("model", mode="before")
    @classmethod
    def _model_path(cls, value: Any) -> Any:
        return None if value is None else as_section("path", value)

    @field_validator("models", mode="before")
    @classmethod
    def _model_paths(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return {} if value is None else value
        return {name: as_section("path", model) for name, model in value.items()}

    @field_validator("data", mode="before")
    @classmethod
    def _data_path(cls, value: Any) -> Any:
        return None if value is None else as_section("path", value)

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return read_reward(value)

    @field_validator("judge", mode="before")
    @classmethod
    def _judge(cls, value: Any) -> Any:
        return read_judge(value)

    @field_validator("model")
    @classmethod
    def _nothing_of_training(cls, value: ModelConfig | None) -> ModelConfig | None:
        return value if value is None else refuse_training(value, "eval")

    @field_validator("models")
    @classmethod
    def _nothing_of_training_in_any(cls, value: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
        return {name: refuse_training(model, "eval") for name, model in value.items()}

    @field_validator("evaluation")
    @classmethod
    def _nothing_of_a_run(cls, value: EvaluationConfig) -> EvaluationConfig:
        for name in OF_A_RUN:
            if getattr(value, name):
                raise ValueError(f"{name} belongs to training; eval scores every set once")
        return value

    @model_validator(mode="after")
    def _no_steps_of_rl(self) -> EvalConfig:
        refuse_failed_steps(self.reward, "eval")
        refuse_running(self.reward, "eval")
        return self

    @model_validator(mode="after")
    def _one_or_several(self) -> EvalConfig:
        given = (
            ("model", self.model, "models", self.models),
            ("data", self.data, "evaluation.data", self.evaluation.data),
        )
        for one, value, several, values in given:
            if value is None and not values and not (one == "data" and self.text.data):
                more = ", or text for the loss on it" if one == "data" else ""
                raise InputError(f"{one!r} is required", hint=f"set {one}=… or name it in the recipe{more}")
            if value is not None and values:
                raise InputError(
                    f"{one} and {several} are both given: {several} names all of them",
                    hint=f"move {one} into {several} under a name, or leave it out",
                )
        return self

    @model_validator(mode="after")
    def _samples_answers_or_not(self) -> EvalConfig:
        """Refuse what belongs to answers where text alone is measured; and a text with the name of a set."""
        both = [name for name in self.text.data if name in self.named_sets and self.tabled]
        if both:
            raise InputError(
                f"a set of prompts and a text are both named {both[0]!r}",
                hint="give the text another name: --text NAME=FILE",
            )
        if self.named_sets:
            return self
        given = [name for name in OF_ANSWERS if self.changed(name)]
        for section in ("evaluation", "rollout"):
            part = getattr(self, section)
            given += [f"{section}.{name}" for name in type(part).model_fields if part.changed(name)]
        if given:
            raise InputError(
                f"{given[0]} has no effect: without data nothing is sampled, and the loss on text is all that is measured",
                hint=f"set data, or leave {given[0]} out",
            )
        return self

    @model_validator(mode="after")
    def _compares_rewards(self) -> EvalConfig:
        if self.judge is not None and self.against is None:
            raise InputError(
                "judge has no effect without against: it compares answers", hint="set against to a model or a file"
            )
        if self.against is not None and self.reward is None and self.judge is None and is_file_of_answers(self.against):
            raise ValueError("against: answers in a file have no environment that rewards them: set reward or judge")
        return self

    @model_validator(mode="after")
    def _compares_answers(self) -> EvalConfig:
        if self.diversity and self.evaluation.samples < 2:
            raise InputError(
                "diversity: the similarity and the entropy are of several answers to a prompt, and evaluation.samples is "
                f"{self.evaluation.samples}",
                hint="set samples to 2 or more",
            )
        return self

    @property
    def tabled(self) -> bool:
        """Whether models, sets or texts are named, so that the result is a table of models and sets."""
        return bool(self.models or self.evaluation.data or len(self.text.data) > 1)

    @property
    def named_models(self) -> dict[str, ModelConfig]:
        """The models by name; one alone has the last part of its path."""
        return self.models or ({} if self.model is None else {short_names([self.model.path])[0]: self.model})

    @property
    def named_sets(self) -> dict[str, DataConfig]:
        """The sets of prompts by name; one alone has the name of its file."""
        if self.data is None:
            return self.evaluation.data
        path = self.data.path
        return {short_names([path])[0] if isinstance(path, str) else "data": self.data}
