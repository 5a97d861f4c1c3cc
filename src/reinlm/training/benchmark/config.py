"""The configuration of `reinlm bench`: a model, the shape of a step, and how the step is computed."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from reinlm.algorithms import ALGORITHMS
from reinlm.config import build
from reinlm.errors import find_name
from reinlm.rollouts.config import EngineChoice, check_groups
from reinlm.training.config import DEFAULT_ALGORITHM, ModelAndPartsConfig, RLConfig
from reinlm.training.sections import TrainingConfig

WARM_UP = 1
"""Steps before the first that is measured."""
NO_RATE = 1e-30
"""A learning rate with which an optimizer makes its step, and no weight changes."""
OF_A_LOOP = ("steps", "epochs")
"""Keys of `training` that say how long a run is; `bench` has `turns`."""


def alternating(completions: list[Any], **_: Any) -> list[float]:
    """Rewards that differ within every group: 0 and 1 by turns."""
    return [float(number % 2) for number in range(len(completions))]


class BenchRollout(EngineChoice):
    """What is sampled in a step."""

    group_size: int = Field(8, ge=1)
    """Answers to each prompt."""
    batch_size: int = Field(64, ge=1)
    """Answers of a step; a multiple of group_size."""
    prompt_tokens: int = Field(64, ge=1)
    """Tokens of every prompt, drawn at random."""
    max_new_tokens: int = Field(64, ge=1)
    """Tokens of an answer at most; one ends earlier where the model ends it."""
    ignore_eos: bool = False
    """Let no stop token end an answer: every one has `max_new_tokens`."""

    @property
    def groups(self) -> int:
        """Prompts of a step."""
        return self.batch_size // self.group_size

    @model_validator(mode="after")
    def _divides(self) -> Self:
        check_groups(self.batch_size, self.group_size)
        return self


class BenchConfig(ModelAndPartsConfig):
    """`reinlm bench`: how fast a model samples and trains on this machine."""

    verb: ClassVar[str] = "bench"

    algorithm: str = DEFAULT_ALGORITHM
    """A name; its reference, its critic and its number of updates are part of the step."""
    rollout: BenchRollout = BenchRollout()
    training: TrainingConfig = TrainingConfig()
    turns: int = Field(5, ge=1)
    """Steps that are measured, after one that is not; figures are medians over them."""
    threads: int | None = Field(None, ge=1)
    """Threads of torch on the CPU; null: as `reinlm rl` chooses them."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Of prompts and answers."""
    imports: list[str] = Field(default_factory=list)
    """Files or modules whose parts the recipe names: `[mine.py]`; one may stand alone."""
    output: str | None = None
    """A JSON file for all figures; `-` is the standard output."""
    profile: str | None = None
    """A file for the trace of one further step, for a trace viewer such as Perfetto; `.json`, or `.json.gz`."""

    @field_validator("algorithm")
    @classmethod
    def _registered_name(cls, value: str) -> str:
        return find_name(value, ALGORITHMS) or value

    @field_validator("training")
    @classmethod
    def _no_loop(cls, value: TrainingConfig) -> TrainingConfig:
        for name in OF_A_LOOP:
            if value.changed(name):
                raise ValueError(f"{name} has no effect: bench measures `turns` steps; leave it out")
        return value

    @field_validator("profile")
    @classmethod
    def _a_trace(cls, value: str | None) -> str | None:
        if value is not None and not value.endswith((".json", ".json.gz")):
            raise ValueError(f"{value!r} must end in .json or .json.gz, which trace viewers open")
        return value

    def of_rl(self) -> RLConfig:
        """The run of reinforcement learning whose steps are measured."""
        rollout = self.rollout
        return build(
            RLConfig,
            {
                "model": self.model,
                "data": {"path": [{"prompt": str(number)} for number in range(rollout.groups)]},
                "reward": {"functions": alternating, "time_limit": None},
                "algorithm": self.algorithm,
                "rollout": {
                    name: getattr(rollout, name)
                    for name in ("group_size", "batch_size", "max_new_tokens", "engine", "max_running")
                },
                "training": {
                    "steps": WARM_UP + self.turns + 1,
                    **{n: getattr(self.training, n) for n in TrainingConfig.model_fields if n not in OF_A_LOOP},
                },
                "optimizer": {"learning_rate": NO_RATE},
                "seed": self.seed,
            },
        )
