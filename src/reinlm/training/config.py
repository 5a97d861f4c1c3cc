"""Configuration of the training verbs. Each part's own section is defined beside that part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from reinlm.algorithms import ALGORITHMS
from reinlm.config import Config
from reinlm.data import DataConfig
from reinlm.data.config import Chat
from reinlm.data.frames import is_rows
from reinlm.errors import find_name
from reinlm.importable import written
from reinlm.loop import check_trackers
from reinlm.models import ModelConfig
from reinlm.parts import is_part, part_spec
from reinlm.rewards import RewardConfig
from reinlm.rewards.spec import write_spec
from reinlm.rollouts import EpisodeConfig, EvalRolloutConfig, RolloutConfig, SamplingConfig
from reinlm.schedules import Schedule
from reinlm.training.anchors import ReferenceConfig, RefreshConfig, TeacherConfig
from reinlm.training.critic import CriticConfig, over_policy_optimizer
from reinlm.training.evaluation import EvaluationConfig
from reinlm.training.optimizer import OptimizerConfig
from reinlm.training.replay import ReplayConfig
from reinlm.training.text import TextConfig

DEFAULT_ALGORITHM = "grpo"


class TrainingConfig(Config):
    """Settings of every training loop."""

    steps: int | None = Field(None, ge=1)
    """Steps of the run; null: as many as `epochs` takes."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the data, where `steps` is not given."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens, padding included, that go through the model at once; memory, not results, depends on it."""
    packing: Literal["pad", "pack"] = "pad"
    """Rows side by side with padding, or all sequences of a micro-batch in one row."""
    logprob_chunk: int | None = Field(None, ge=1)
    """Tokens whose vocabulary-wide logits exist at once; null: as many as take 512 MiB."""
    autocast: Literal["auto", "off", "bfloat16"] = "auto"
    """"auto": float32 weights compute in bfloat16 on CUDA, and in float32 elsewhere."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is not None and self.changed("epochs"):
            raise ValueError(
                f"steps {self.steps} and epochs {self.epochs:g} both say how long the run is; give one of them"
            )
        return self


class SFTOptimizer(OptimizerConfig):
    """The optimizer of SFT: a higher default learning rate, with a decreasing schedule."""

    learning_rate: float = Field(1e-5, gt=0, lt=1)
    schedule: Schedule = "cosine"


class SFTTraining(TrainingConfig):
    """The loop of supervised fine-tuning."""

    batch_size: int = Field(32, ge=1)
    """Examples in an optimizer step."""


class RLTraining(TrainingConfig):
    """The loop of reinforcement learning."""

    minibatches: int | None = Field(None, ge=1)
    """Optimizer steps in one pass over a collected batch; groups are never split. Null: as the algorithm's paper has it, with
    at least eight groups in each."""
    passes: int | None = Field(None, ge=1)
    """Passes over each collected batch; null: as the algorithm's paper has it."""
    target_kl: float | None = Field(None, gt=0)
    """Nats per token: before each update, if the divergence from the old policy exceeds 1.5 times this, the remaining updates
    of the batch are skipped."""
    kl_learning_rate: float | None = Field(None, gt=0)
    """Nats per token: if the divergence before the last update of a batch exceeds twice this, the learning rate is divided by
    1.5; if it is below half of it, multiplied by 1.5; within 1/100 to 10 times the scheduled rate. A batch of one update
    without replayed answers does not change it, since its update begins at the old policy."""
    reference_refresh: RefreshConfig | None = None
    """Null: the reference stays as it was at the start."""
    replay: ReplayConfig | None = None
    """Null: every batch is sampled anew."""


class RunConfig(Config):
    """The run folder, checkpoints, rollout log and trackers."""

    output: str | None = None
    """The run's folder; null: `runs/` and the kind of run with a time stamp."""
    save_every: int = Field(50, ge=0)
    """Steps between checkpoints; 0: at the end alone."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept, beside the best one."""
    rollouts_every: int = Field(10, ge=0)
    """Steps between those whose answers are written to `rollouts/`; 0: never."""
    rollouts_max: int | None = Field(1024, ge=1)
    """Episodes of a step that are written there at most, in whole groups; null: all."""
    trackers: list[str | dict[str, Any]] | None = None
    """Where the metrics go beside metrics.jsonl: `tensorboard`, `wandb`, `trackio`, or one with settings, such as
    `{wandb: {project: x, mode: offline}}`; one may stand alone; null: TensorBoard."""
    tensorboard: bool | None = None
    """In place of `trackers`: true for `[tensorboard]`, false for none."""

    @field_validator("trackers", mode="before")
    @classmethod
    def _one_tracker(cls, value: Any) -> Any:
        if isinstance(value, str):
            return [value]
        return [{name: settings} for name, settings in value.items()] if isinstance(value, Mapping) else value

    @field_validator("trackers")
    @classmethod
    def _known(cls, value: list[Any] | None) -> list[Any] | None:
        return None if value is None else check_trackers(value)

    @model_validator(mode="after")
    def _trackers_agree(self) -> RunConfig:
        if self.trackers is not None and self.tensorboard not in (None, any("tensorboard" in t for t in self.trackers)):
            raise ValueError(
                f"tensorboard {self.tensorboard} contradicts trackers {self.trackers}; leave tensorboard out"
            )
        return self

    @model_validator(mode="after")
    def _rollouts_are_written(self) -> RunConfig:
        if self.changed("rollouts_max") and not self.rollouts_every:
            raise ValueError(
                f"rollouts_max {self.rollouts_max} has no effect with rollouts_every 0: no rollout is written"
            )
        return self

    @property
    def chosen_trackers(self) -> list[Any]:
        """What `trackers` says, or `tensorboard` in its place."""
        if self.trackers is not None:
            return self.trackers
        return [] if self.tensorboard is False else ["tensorboard"]


class ModelVerbConfig(Config):
    """Settings of every verb: model, environment and imports."""

    model: ModelConfig
    environment: Any = "question"
    """A name, {name: values}, or file.py:CLASS; `question` asks once and takes one answer."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of everything random: order of the data, sampling, adapters."""
    imports: list[str] = Field(default_factory=list)
    """Files or modules whose parts the recipe names: `[mine.py]`; one may stand alone."""

    @field_validator("model", mode="before")
    @classmethod
    def _model_path(cls, value: Any) -> Any:
        return as_section("path", value)

    @field_validator("imports", mode="before")
    @classmethod
    def _one_import(cls, value: Any) -> Any:
        return [str(value)] if isinstance(value, str | Path) else [] if value is None else value


class VerbConfig(ModelVerbConfig):
    """What sft and rl share."""

    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()
    resolved: dict[str, Any] = Field(default_factory=dict)
    """Written by a run: renderer, working directory etc. A resumed run compares it; it cannot be set."""

    @field_validator("data", mode="before")
    @classmethod
    def _data_path(cls, value: Any) -> Any:
        return as_section("path", value)

    @model_validator(mode="after")
    def _evaluation_has_data(self) -> Self:
        for name in ("every", "samples", "temperature", "top_p", "top_k", "max_new_tokens", "correct_above"):
            if self.evaluation.changed(name) and not self.evaluation.data:
                given = getattr(self.evaluation, name)
                raise ValueError(
                    f"evaluation.{name} {given} has no effect without evaluation.data: name a set of prompts"
                )
        return self

    @model_validator(mode="after")
    def _early_stop_has_evaluations(self) -> Self:
        for name in ("stop_at", "patience"):
            given = getattr(self.evaluation, name)
            if given is not None and not (self.evaluation.data and self.evaluation.every):
                raise ValueError(
                    f"evaluation.{name} {given} has no effect without evaluations during the run: "
                    "set evaluation.data and evaluation.every"
                )
        return self


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
        return _reward(value)

    @model_validator(mode="after")
    def _no_steps_of_rl(self) -> SFTConfig:
        _refuse_failed_steps(self.reward, "sft")
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

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return _reward(value)

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


def _given_values(section: Any) -> Mapping[str, Any] | None:
    """What a mapping or a configuration sets; None for anything else."""
    if isinstance(section, Config):
        return {name: getattr(section, name) for name in section.model_fields_set}
    return section if isinstance(section, Mapping) else None


def _reward(value: Any) -> Any:
    """A name, a function, or a list of them stands for the section; a mapping with a name is one function."""
    if value is None or isinstance(value, Config):
        return value
    if isinstance(value, Mapping) and ("functions" in value or value.keys() <= RewardConfig.model_fields.keys()):
        return value
    return {"functions": value}


OF_A_RUN = ("data", "every", "stop_at", "patience")
"""Keys of `evaluation` that say when a run evaluates, and on what; `reinlm eval` has none of them."""


OF_TRAINING = ("lora", "gradient_checkpointing")
"""Keys of `model` that change nothing without training: a new adapter adds 0, and no gradient is computed."""


def _refuse_failed_steps(reward: RewardConfig | None, verb: str) -> None:
    if reward is not None and reward.changed("max_failed_steps"):
        raise ValueError(
            f"reward.max_failed_steps {reward.max_failed_steps} has no effect: it counts steps of rl, and {verb} samples "
            "answers only to evaluate; leave it out"
        )


def _refuse_training(model: ModelConfig, verb: str) -> ModelConfig:
    for name in OF_TRAINING:
        if model.changed(name):
            raise ValueError(f"{name} has no effect: it belongs to training, and {verb} trains nothing; leave it out")
    return model


class EvalConfig(ModelVerbConfig):
    """`reinlm eval`: score a model."""

    verb: ClassVar[str] = "eval"

    data: DataConfig
    reward: RewardConfig | None = None
    """Null: the environment's own rewards alone."""
    evaluation: EvaluationConfig = EvaluationConfig()
    rollout: EvalRolloutConfig = EvalRolloutConfig()
    output: str | None = None
    """A JSONL file for all answers with their rewards."""

    @field_validator("data", mode="before")
    @classmethod
    def _data_path(cls, value: Any) -> Any:
        return as_section("path", value)

    @model_validator(mode="after")
    def _no_steps_of_rl(self) -> EvalConfig:
        _refuse_failed_steps(self.reward, "eval")
        return self

    @field_validator("model")
    @classmethod
    def _nothing_of_training(cls, value: ModelConfig) -> ModelConfig:
        return _refuse_training(value, "eval")

    @field_validator("evaluation")
    @classmethod
    def _nothing_of_a_run(cls, value: EvaluationConfig) -> EvaluationConfig:
        for name in OF_A_RUN:
            if getattr(value, name):
                raise ValueError(f"{name} belongs to training; eval scores the set in `data`, once")
        return value

    @field_validator("reward", mode="before")
    @classmethod
    def _functions(cls, value: Any) -> Any:
        return _reward(value)


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
    sampling: SamplingConfig = SamplingConfig()
    rollout: EpisodeConfig = EpisodeConfig()

    @field_validator("model")
    @classmethod
    def _nothing_of_training(cls, value: ModelConfig) -> ModelConfig:
        return _refuse_training(value, "generate")


def as_section(key: str, value: Any) -> Any:
    """A bare value stands for the section that holds it under `key`."""
    return value if isinstance(value, Config) or not is_rows(value) else {key: value}


def dump(config: Config) -> dict[str, Any]:
    """The resolved configuration as plain values, for config.yaml: rows and functions stand there by name."""
    tree: dict[str, Any] = _dumped({name: getattr(config, name) for name in type(config).model_fields})
    return tree


def dump_defaults(kind: type[VerbConfig]) -> dict[str, Any]:
    """What `dump` says of sections and keys that are not given: what a run from before a key existed had in force."""
    fields = {name: field for name, field in kind.model_fields.items() if not field.is_required()}
    return {name: _dumped(field.get_default(call_default_factory=True)) for name, field in fields.items()}


def _dumped(value: Any) -> Any:
    if isinstance(value, RewardConfig):
        return {
            **{key: getattr(value, key) for key in type(value).model_fields},
            "functions": write_spec(value.functions),
        }
    if isinstance(value, Config) and is_part(value):
        return part_spec("", value)
    if isinstance(value, Config):
        return {name: _dumped(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _dumped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, Mapping) for item in value) and len(str(value)) > _LONG:
            digest = hashlib.sha256(json.dumps(list(value), sort_keys=True, default=repr).encode()).hexdigest()
            return f"<{len(value)} rows given in Python, sha256 {digest[:16]}>"
        return [_dumped(item) for item in value]
    if callable(value):
        return written(value)
    return value


_LONG = 2000
