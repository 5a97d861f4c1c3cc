"""The section `rollout`: sampling settings, groups, and limits of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, field_validator, model_validator

from reinlm.config import MAX_SECONDS, Config
from reinlm.errors import InputError
from reinlm.parts import read_part
from reinlm.rollouts import engines  # noqa: F401  registers the engines that come with the library
from reinlm.rollouts.admission import Order
from reinlm.rollouts.episode import Limits
from reinlm.rollouts.protocol import MIN_TEMPERATURE, Sampling
from reinlm.schedules import Schedule, interpolate


class StopsConfig(Config):
    """Stop conditions besides the model's own stop tokens."""

    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Tokens that end an answer beside the model's own."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end an answer; they stay in it."""

    @field_validator("stop_token_ids", "stop_strings", mode="before")
    @classmethod
    def _one_alone(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | int) else value

    @field_validator("stop_strings")
    @classmethod
    def _not_empty(cls, strings: tuple[str, ...]) -> tuple[str, ...]:
        if "" in strings:
            raise ValueError("a stop string cannot be empty: every answer would end at its first token")
        return strings


def check_greedy(config: Any) -> None:
    """Raise ValueError where `temperature` is 0 and `top_p` or `top_k` is set, which say what is drawn from."""
    for name in ("top_p", "top_k"):
        if config.temperature == 0 and config.changed(name):
            raise ValueError(
                f"{name} {getattr(config, name)} has no effect at temperature 0, which is greedy; leave it out"
            )


class SamplingConfig(StopsConfig):
    """How a recipe asks for answers to be sampled."""

    max_new_tokens: int = Field(256, ge=1)
    """Tokens of an answer at most, in each turn; an answer that reaches it counts as truncated."""
    temperature: float = Field(1.0, ge=0.0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Sample from the smallest set of tokens with this mass; 1 is off."""
    top_k: int = Field(0, ge=0)
    """Sample from this many of the likeliest tokens; 0 is off."""

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, temperature: float) -> float:
        if 0 < temperature < MIN_TEMPERATURE:
            raise ValueError(f"must be 0 (greedy) or at least {MIN_TEMPERATURE}")
        return temperature

    @model_validator(mode="after")
    def _greedy_draws_nothing(self) -> Self:
        check_greedy(self)
        return self

    def sampling(self, stops: Sequence[int]) -> Sampling:
        """These settings for an engine, with `stops`, the model's own stop tokens, in front."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop_token_ids=tuple(dict.fromkeys((*stops, *self.stop_token_ids))),
            stop_strings=self.stop_strings,
        )


class EngineChoice(Config):
    """The engine, and how many answers it writes at once."""

    engine: Any = "in_process"
    """A name, or {name: values}."""
    max_running: int = Field(256, ge=1)
    """Answers that the engine advances at once."""

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, spec: Any) -> Any:
        read_part("engine", spec)
        return spec


class EpisodeConfig(EngineChoice):
    """How episodes are run: the engine, the order of admission, and limits."""

    order: Order = "name"
    """"name": a turn is sampled once every episode of its round has had its environment's answer, so that a run can be
    repeated bit for bit. "arrival": each turn at once, which is faster where environments differ in speed."""
    max_turns: int | None = Field(None, ge=1)
    """Turns of an episode at most; null: as many as the context holds."""
    episode_time_limit: float | None = Field(None, gt=0, le=MAX_SECONDS)
    """Seconds for an episode; one that takes longer is truncated. Needs the order "arrival"."""
    environment_time_limit: float | None = Field(60.0, gt=0, le=MAX_SECONDS)
    """Seconds for each call of an environment; one that takes longer has failed. Null: no limit."""
    on_environment_error: Literal["stop", "skip"] = "stop"
    """Where an environment raises, hangs or returns what cannot be used: stop the run, or leave the episode out of it."""

    @model_validator(mode="after")
    def _no_clock_in_a_fixed_order(self) -> Self:
        if self.episode_time_limit is not None and self.order == "name":
            raise ValueError(
                f"episode_time_limit {self.episode_time_limit:g} ends episodes by the clock, and order 'name' promises "
                "that a run can be repeated; set rollout.order=arrival, or limit turns with rollout.max_turns"
            )
        return self

    @property
    def limits(self) -> Limits:
        """What cuts an episode off."""
        return Limits(
            max_turns=self.max_turns,
            episode_time_limit=self.episode_time_limit,
            environment_time_limit=self.environment_time_limit,
            on_environment_error=self.on_environment_error,
        )

    @property
    def for_turns(self) -> tuple[str, ...]:
        """The settings given here that act only where an environment takes several turns, or can fail."""
        names = ["max_turns", "environment_time_limit", "on_environment_error"]
        if self.episode_time_limit is None:
            names.append("order")
        return tuple(name for name in names if self.changed(name))


class EvalRolloutConfig(StopsConfig, EpisodeConfig):
    """How the episodes of an evaluation are played; lengths, temperature and samples are in `evaluation`."""

    def sampling(self, stops: Sequence[int]) -> Sampling:
        """As `SamplingConfig.sampling`, with what it has by default for all but the stops."""
        return SamplingConfig(stop_token_ids=self.stop_token_ids, stop_strings=self.stop_strings).sampling(stops)


class RolloutConfig(SamplingConfig, EpisodeConfig):
    """How tasks become groups of episodes."""

    group_size: int = Field(8, ge=1)
    """Answers to each prompt."""
    batch_size: int = Field(128, ge=1)
    """Answers collected for each step; a multiple of group_size."""
    max_attempts: int = Field(8, ge=1)
    """Where an algorithm drops groups: a batch is filled from at most this many times the groups that it wants."""
    temperature_end: float | None = Field(None, ge=MIN_TEMPERATURE, allow_inf_nan=False)
    """The temperature that the last step samples at; null: `temperature` throughout."""
    max_new_tokens_end: int | None = Field(None, ge=1)
    """The limit of the last step's answers; null: `max_new_tokens` throughout."""
    schedule: Schedule = "linear"
    """How the two go from start to end over the run."""
    async_level: int = Field(0, ge=0, le=1)
    """Steps that sampling is ahead of training. 0: a batch is sampled, then trained on. 1: the next batch is sampled while this
    one is trained on, from a copy of the weights as they were before its update (one step off-policy); algorithms without
    corrections get `truncated`."""

    @property
    def groups(self) -> int:
        return self.batch_size // self.group_size

    @property
    def longest(self) -> int:
        """The largest limit of an answer over the run."""
        return max(self.max_new_tokens, self.max_new_tokens_end or 0)

    def at(self, done: float) -> SamplingConfig:
        """The settings once the share `done` of the run is over: value = end + (start - end) · schedule(done)."""
        return self.model_copy(
            update={
                "temperature": interpolate(self.temperature, self.temperature_end, self.schedule, done),
                "max_new_tokens": round(interpolate(self.max_new_tokens, self.max_new_tokens_end, self.schedule, done)),
            }
        )

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> RolloutConfig:
        moves = self.temperature_end is not None or self.max_new_tokens_end is not None
        if self.changed("schedule") and not moves:
            raise ValueError(f"schedule {self.schedule} has no effect without temperature_end or max_new_tokens_end")
        if moves and self.schedule == "constant":
            raise ValueError("temperature_end and max_new_tokens_end have no effect with the schedule constant")
        return self

    @model_validator(mode="after")
    def _divides(self) -> RolloutConfig:
        check_groups(self.batch_size, self.group_size)
        return self


class SamplesAnswers(Protocol):
    """A section `rollout` from which an evaluation takes stops and, where it says nothing itself, the length of answers."""

    def sampling(self, stops: Sequence[int]) -> Sampling: ...


def check_groups(batch_size: int, group_size: int) -> None:
    """Raise ValueError where a batch does not divide into groups."""
    if batch_size % group_size:
        near = batch_size // group_size * group_size
        options = " or ".join(str(n) for n in (near, near + group_size) if n)
        raise ValueError(f"batch_size {batch_size} is not a multiple of group_size {group_size}; take {options}")


def check_trainable(sampling: Sampling | SamplingConfig) -> None:
    """Refuse settings whose samples cannot be trained on.

    Raises:
        InputError: temperature 0 (a greedy answer has no probability to raise), or top-p / top-k (the trainer's
            log-probabilities are over the whole vocabulary, the sampler's over the tokens that were left standing, so
            their ratio would be wrong even before the first update).
    """
    if sampling.temperature == 0:
        raise InputError(
            "temperature 0 cannot be trained on: greedy answers to a prompt are all the same and were not sampled",
            hint="set rollout.temperature=1.0; evaluation may be greedy",
        )
    for name, value, off in (("top_p", sampling.top_p, 1.0), ("top_k", sampling.top_k, 0)):
        if value != off:
            raise InputError(
                f"{name}={value} cannot be trained on: the trainer's log-probabilities are over the whole vocabulary, "
                "the sampler's over the tokens that the truncation kept",
                hint=f"set rollout.{name}={off} for training; evaluation may truncate",
            )
