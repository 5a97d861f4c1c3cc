"""Sections of a recipe that the loops of sft and rl read: training, optimizer of sft, run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from reinlm.config import Config
from reinlm.loop import check_trackers
from reinlm.schedules import Schedule
from reinlm.training.anchors import RefreshConfig
from reinlm.training.optimizer import OptimizerConfig
from reinlm.training.replay import ReplayConfig


class TrainingConfig(Config):
    """Settings of every training loop."""

    steps: int | None = Field(None, ge=1)
    """Steps of the run; null: as many as `epochs` takes."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the data, where `steps` is not given."""
    micro_batch_tokens: int = Field(16384, ge=1)
    """Tokens, padding included and shared ones once, that go through the model at once; memory, not results, depends on it."""
    packing: Literal["auto", "share", "pack", "pad"] = "auto"
    """"share": all sequences of a micro-batch in one row, what they share at their beginning (the prompt of a group, the
    turns of an episode) computed once; "pack": one row, nothing shared; "pad": rows side by side with padding. "auto": share
    where the model's attention is SDPA, pack with flash attention, else pad."""
    logprob_chunk: int | None = Field(None, ge=1)
    """Tokens whose vocabulary-wide logits exist at once; null: as many as take 8 MiB on a CPU,
    where they stay in its cache, and 512 MiB elsewhere."""
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
