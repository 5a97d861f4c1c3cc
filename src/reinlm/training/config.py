"""Configuration of the verbs of language models. Each part's own section is defined beside that part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from reinlm.algorithms import ALGORITHMS
from reinlm.config import Config
from reinlm.data import DataConfig
from reinlm.data.config import Chat
from reinlm.data.frames import is_rows
from reinlm.errors import find_name
from reinlm.models import ModelConfig
from reinlm.rewards import RewardConfig
from reinlm.rewards.spec import read_spec
from reinlm.rollouts import EpisodeConfig, EvalRolloutConfig, RolloutConfig, SamplingConfig
from reinlm.training.anchors import ReferenceConfig, TeacherConfig
from reinlm.training.critic import CriticConfig, over_policy_optimizer
from reinlm.training.evaluation import EvaluationConfig
from reinlm.training.gold import TRIGGERS, GoldConfig
from reinlm.training.optimizer import OptimizerConfig
from reinlm.training.sections import RLTraining, RunConfig, SFTOptimizer, SFTTraining, TrainingConfig
from reinlm.training.text import TextConfig

DEFAULT_ALGORITHM = "grpo"


class PartsConfig(Config):
    """What every verb that names parts reads in a short form: one file alone as `imports`."""

    @field_validator("imports", mode="before", check_fields=False)
    @classmethod
    def _one_import(cls, value: Any) -> Any:
        return [str(value)] if isinstance(value, str | Path) else [] if value is None else value


class ModelAndPartsConfig(PartsConfig):
    """What every verb that runs one model reads in a short form: its path alone as `model`."""

    model: ModelConfig

    @field_validator("model", mode="before")
    @classmethod
    def _model_path(cls, value: Any) -> Any:
        return as_section("path", value)


class EpisodesConfig(PartsConfig):
    """Settings of verbs that run episodes: environment, seed and imports."""

    environment: Any = "question"
    """A name, {name: values}, or file.py:CLASS; `question` asks once and takes one answer."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of everything random: order of the data, sampling, adapters."""
    imports: list[str] = Field(default_factory=list)
    """Files or modules whose parts the recipe names: `[mine.py]`; one may stand alone."""


class ModelVerbConfig(EpisodesConfig, ModelAndPartsConfig):
    """Settings of verbs that run episodes of one model."""


class RunVerbConfig(ModelAndPartsConfig):
    """What every verb that trains shares."""

    verb: ClassVar[str]
    if TYPE_CHECKING:
        training: TrainingConfig  # each verb has its own, where it stands among its fields

    seed: int = Field(0, ge=0, lt=2**31)
    """Of everything random: order of the data, sampling, adapters."""
    imports: list[str] = Field(default_factory=list)
    """Files or modules whose parts the recipe names: `[mine.py]`; one may stand alone."""
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: Any = None
    """Sets by name under `data`, `every` and `patience`; a verb gives it its type."""
    run: RunConfig = RunConfig()
    resolved: dict[str, Any] = Field(default_factory=dict)
    """Written by a run: renderer, working directory etc. A resumed run compares it; it cannot be set."""

    @property
    def scores_answers(self) -> RewardConfig | None:
        """The reward functions of the verb; None where it has none."""
        return getattr(self, "reward", None)

    @property
    def scores_evaluation(self) -> RewardConfig | None:
        """The gold score of the verb; None where it has none."""
        return None

    @field_validator("data", mode="before")
    @classmethod
    def _data_path(cls, value: Any) -> Any:
        return as_section("path", value)

    @model_validator(mode="after")
    def _evaluation_has_data(self) -> Self:
        for name in type(self.evaluation).model_fields:
            if (
                name not in ("data", "stop_at", "patience")
                and self.evaluation.changed(name)
                and not self.evaluation.data
            ):
                given = getattr(self.evaluation, name)
                raise ValueError(
                    f"evaluation.{name} {given} has no effect without evaluation.data: name a set of prompts"
                )
        return self

    @model_validator(mode="after")
    def _early_stop_has_evaluations(self) -> Self:
        for name in ("stop_at", "patience"):
            given = getattr(self.evaluation, name, None)
            if given is not None and not (self.evaluation.data and self.evaluation.every):
                raise ValueError(
                    f"evaluation.{name} {given} has no effect without evaluations during the run: "
                    "set evaluation.data and evaluation.every"
                )
        return self


class VerbConfig(RunVerbConfig, ModelVerbConfig):
    """What the verbs that sample answers and train share."""

    if TYPE_CHECKING:  # each verb says what stands there
        reward: RewardConfig | None
    evaluation: EvaluationConfig = EvaluationConfig()


class SFTConfig(VerbConfig):
    """`reinlm sft`: imitate completions."""

    verb: ClassVar[str] = "sft"

    optimizer: SFTOptimizer = SFTOptimizer()
    training: SFTTraining = SFTTraining()
    reward: RewardConfig | None = None
    """Scores sampled answers in evaluation; without it, and without an environment that gives rewards, evaluation reports
    the loss alone."""
    rollout: EvalRolloutConfig = EvalRolloutConfig()
    """How answers are sampled in evaluation."""
    max_tokens: int | None = Field(None, ge=2)
    """Longest example; null: the model's context."""

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return read_reward(value)

    @model_validator(mode="after")
    def _no_steps_of_rl(self) -> SFTConfig:
        refuse_failed_steps(self.reward, "sft")
        refuse_running(self.reward, "sft")
        return self

    @model_validator(mode="after")
    def _accuracy_has_a_reward(self) -> SFTConfig:
        if self.evaluation.stop_at is not None and self.reward is None and not self.changed("environment"):
            raise ValueError("evaluation.stop_at compares an accuracy, and there is none without a reward: set reward")
        return self


class RLConfig(VerbConfig):
    """`reinlm rl`: improve a policy by reinforcement learning."""

    verb: ClassVar[str] = "rl"

    reward: RewardConfig | None = None
    """Null: the environment's own rewards alone."""
    algorithm: str | dict[str, Any] = DEFAULT_ALGORITHM
    """A name, or {base: name, …} with any of its choices replaced; without a base, those of the default."""
    rollout: RolloutConfig = RolloutConfig()
    training: RLTraining = RLTraining()
    critic: CriticConfig | None = None
    """For algorithms with a critic; null: as `CriticConfig` stands."""
    reference: ReferenceConfig | None = None
    """For algorithms with a KL to a reference; null: the policy as the run begins."""
    teacher: TeacherConfig | None = None
    """For algorithms that learn from a teacher."""
    text: TextConfig | None = None
    """Data-set text that is trained on beside the sampled answers; null: none."""
    gold: GoldConfig | None = None
    """A score of evaluation answers beside the reward, and a warning where the reward rises and the score falls; null: none."""

    @property
    def scores_evaluation(self) -> RewardConfig | None:
        return None if self.gold is None else self.gold.rewards(self.reward)

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return read_reward(value)

    @field_validator("gold", mode="before")
    @classmethod
    def _gold_reward(cls, value: Any) -> Any:
        if value is None or isinstance(value, Config):
            return value
        section = isinstance(value, Mapping) and ("reward" in value or value.keys() <= GoldConfig.model_fields.keys())
        return value if section else {"reward": value}

    @model_validator(mode="after")
    def _gold_is_measured(self) -> RLConfig:
        if self.gold is not None:
            check_gold(self)
        return self

    @field_validator("critic", mode="before")
    @classmethod
    def _critic_optimizer(cls, value: Any, info: ValidationInfo) -> Any:
        policy = info.data.get("optimizer")  # absent where it is itself refused
        critic = _given_values(value)
        own = None if critic is None else _given_values(critic.get("optimizer"))
        if critic is None or own is None or policy is None:
            return value
        return {**critic, "optimizer": over_policy_optimizer(own, policy)}

    @field_validator("reference", "teacher", mode="before")
    @classmethod
    def _other_model(cls, value: Any) -> Any:
        return None if value is None else as_section("path", value)

    @field_validator("text", mode="before")
    @classmethod
    def _text_data(cls, value: Any) -> Any:
        return None if value is None else as_section("data", value)

    @field_validator("algorithm", mode="before")
    @classmethod
    def _with_a_base(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return value["base"] if value.keys() == {"base"} else {"base": DEFAULT_ALGORITHM, **value}

    @field_validator("algorithm")
    @classmethod
    def _registered_name(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        """As it is registered, so that `GRPO` and `grpo` are one setting; an unknown one is refused where it is read."""
        if isinstance(value, str):
            return find_name(value, ALGORITHMS) or value
        return {**value, "base": find_name(value["base"], ALGORITHMS) or value["base"]} if "base" in value else value

    @model_validator(mode="after")
    def _minibatches_divide(self) -> RLConfig:
        if self.training.minibatches is not None and self.rollout.groups % self.training.minibatches:
            raise ValueError(
                f"training.minibatches {self.training.minibatches} does not divide the {self.rollout.groups} groups of a "
                f"batch (rollout.batch_size {self.rollout.batch_size} / group_size {self.rollout.group_size})"
            )
        return self


def check_gold(config: RLConfig) -> None:
    """Refuse a gold score that would not be measured, or be compared with a reward whose scale moves."""
    assert config.gold is not None
    if not config.evaluation.data:
        raise ValueError(
            "gold has no effect without evaluation.data: it scores evaluation answers; name a set of prompts"
        )
    given = next((name for name in TRIGGERS if config.gold.changed(name)), None)
    if given is not None and not config.evaluation.every:
        raise ValueError(
            f"gold.{given} {getattr(config.gold, given)} has no effect without evaluations during the run: set evaluation.every"
        )
    refuse_running(config.scores_evaluation, "gold")
    for choice in read_spec(config.reward.functions) if config.reward is not None else ():
        source = choice.source
        if source is not None and source.function == "model" and source.options.get("normalize"):
            raise ValueError(
                f"gold compares the reward {choice.name!r} of several evaluations, and running normalisation moves its scale: "
                "leave normalize out"
            )


def _given_values(section: Any) -> Mapping[str, Any] | None:
    """What a mapping or a configuration sets; None for anything else."""
    if isinstance(section, Config):
        return {name: getattr(section, name) for name in section.model_fields_set}
    return section if isinstance(section, Mapping) else None


def read_reward(value: Any) -> Any:
    """A name, a function, or a list of them stands for the section; a mapping with a name is one function."""
    if value is None or isinstance(value, Config):
        return value
    if isinstance(value, Mapping) and ("functions" in value or value.keys() <= RewardConfig.model_fields.keys()):
        return value
    return {"functions": value}


OF_TRAINING = ("lora", "gradient_checkpointing")
"""Keys of `model` that change nothing without training: a new adapter adds 0, and no gradient is computed."""


def failed_steps(reward: RewardConfig | None) -> int:
    """How many steps in a row without any reward end the run, where reward functions failed."""
    return reward.max_failed_steps if reward is not None and reward.on_reward_error == "skip" else 1


def refuse_failed_steps(reward: RewardConfig | None, verb: str) -> None:
    if reward is not None and reward.changed("max_failed_steps"):
        raise ValueError(
            f"reward.max_failed_steps {reward.max_failed_steps} has no effect: it counts steps of rl, and {verb} samples "
            "answers only to evaluate; leave it out"
        )


def refuse_running(reward: RewardConfig | None, verb: str) -> None:
    """Refuse what a reward model keeps of the answers in training, where there is none."""
    for choice in read_spec(reward.functions) if reward is not None else ():
        source = choice.source
        for name in ("normalize", "window") if source is not None and source.function == "model" else ():
            if source is not None and source.options.get(name):
                key = "gold.reward" if verb == "gold" else "reward.functions"
                raise ValueError(
                    f"{key}.model.{name} has no effect: it is of scores in training, which {verb} has none of"
                )


def refuse_training(model: ModelConfig, verb: str) -> ModelConfig:
    for name in OF_TRAINING:
        if model.changed(name):
            raise ValueError(f"{name} has no effect: it belongs to training, and {verb} trains nothing; leave it out")
    return model


class GenerateConfig(ModelVerbConfig):
    """`reinlm generate`: sample from a model."""

    verb: ClassVar[str] = "generate"

    prompts: list[Any] = Field(min_length=1)
    """Texts, chats (lists of messages), or rows {prompt: …} with the columns that an environment reads."""
    chat: Chat = "auto"
    """As `DataConfig.chat`."""
    system_prompt: str | None = None
    """Put before chats; for models with a chat template."""
    samples: int = Field(1, ge=1)
    """Answers to each prompt."""
    best_of: int | None = Field(None, ge=2)
    """Each answer is the one with the highest reward of so many that are sampled; null: every one that is sampled."""
    majority_vote: int | None = Field(None, ge=2)
    """Each answer is the first of so many that says what most of them say (self-consistency); null: every one that is sampled."""
    reward: Any = None
    """As in `rl`: chooses with `best_of`; with `majority_vote` it says when two answers are the same. Null: none, and votes are
    read as `math` reads answers."""
    sampling: SamplingConfig = SamplingConfig()
    rollout: EpisodeConfig = EpisodeConfig()

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return None if value is None else RewardConfig.model_validate(read_reward(value))

    @model_validator(mode="after")
    def _choose_one_way(self) -> Self:
        if self.best_of is not None and self.majority_vote is not None:
            raise ValueError(
                f"best_of {self.best_of} and majority_vote {self.majority_vote} both choose an answer; give one of them"
            )
        if self.best_of is not None and self.reward is None:
            raise ValueError(
                f"best_of {self.best_of} has no effect without a reward, which says what is best: set reward"
            )
        if self.reward is not None and self.chosen_from == 1:
            raise ValueError("reward has no effect without best_of or majority_vote: nothing is chosen; set best_of")
        if self.chosen_from > 1 and self.sampling.temperature == 0:
            raise ValueError("sampling.temperature 0 gives equal answers to choose from; raise it")
        refuse_failed_steps(self.reward, "generate")
        refuse_running(self.reward, "generate")
        return self

    @property
    def chosen_from(self) -> int:
        """Answers that are sampled for each one that is given."""
        return self.best_of or self.majority_vote or 1

    @field_validator("model")
    @classmethod
    def _nothing_of_training(cls, value: ModelConfig) -> ModelConfig:
        return refuse_training(value, "generate")


def as_section(key: str, value: Any) -> Any:
    """A bare value stands for the section that holds it under `key`."""
    return value if isinstance(value, Config) or not is_rows(value) else {key: value}
