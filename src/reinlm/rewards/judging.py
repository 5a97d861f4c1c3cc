"""Judges: functions that see two answers to a prompt and say which is better, asked in both orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, field_serializer, field_validator, model_validator

from reinlm.config import MAX_SECONDS, Config
from reinlm.errors import InputError
from reinlm.records import Rollout
from reinlm.rewards.attempts import Policy
from reinlm.rewards.building import open_choices
from reinlm.rewards.calls import Sample
from reinlm.rewards.functions import as_judge
from reinlm.rewards.scoring import RewardSet, columns_of, ended, no_text
from reinlm.rewards.spec import Choice, read_spec, write_spec
from reinlm.rewards.values import Failure, TrainerState


class JudgeConfig(Config):
    """Which judge compares two answers, and how it is called.

    Example:
        JudgeConfig(function="judges.py:better", batch_size=32, time_limit=120)
    """

    function: Any
    """A function `f(prompts, completions, **columns)`, sync or async, by `file.py:NAME` or itself, whose completions are pairs
    `[first, second]`: a list with 0 or "first", 1 or "second", 0.5 or "tie", and None or -1 for no judgement. Of `prompt` and
    `completion` in its place it judges one pair. Or an object with a method `judge`, such as TRL's pairwise judges."""
    batch_size: int = Field(default=16, ge=1)
    """Pairs of one call, of which each is asked in both orders; an async function of one pair judges as many at the same time."""
    time_limit: float | None = Field(default=300.0, gt=0, le=MAX_SECONDS)
    """Seconds that a call may take; of a function of one pair, a single pair. Null: no limit, and the judge runs inside this
    process."""
    retries: int = Field(default=3, ge=0)
    """Further attempts at a call that raised an error which may pass, as `reward.retries`."""
    retry_delay: float = Field(default=1.0, ge=0, le=MAX_SECONDS)
    """Seconds before the first of them, as `reward.retry_delay`."""

    @field_validator("function")
    @classmethod
    def _readable(cls, function: Any) -> Any:
        choice_of(function)
        return function

    @model_validator(mode="after")
    def _every_setting_has_an_effect(self) -> JudgeConfig:
        if self.retries == 0 and self.changed("retry_delay"):
            raise ValueError("retry_delay has no effect with retries=0")
        return self

    @field_serializer("function", when_used="json")
    def _named(self, function: Any) -> Any:
        return write_spec(function)


def read_judge(value: Any) -> Any:
    """A judge alone stands for the section that holds it under `function`."""
    if value is None or isinstance(value, Config):
        return value
    if isinstance(value, Mapping) and (not value or value.keys() <= JudgeConfig.model_fields.keys()):
        return value
    return {"function": value}


def choice_of(function: Any) -> Choice:
    """The judge that is asked for. Raises InputError for several, one with a weight, and a built-in reward."""
    method = function if isinstance(function, str | Mapping) else as_judge(function)
    spec = function if method is function else {"name": method, "label": type(function).__name__}
    try:
        choices = read_spec(spec)
    except InputError as error:
        message = error.message.replace("reward ", "judge ", 1).replace("is not a reward", "is not a judge")
        raise InputError(message, hint=HOW if error.message.startswith("unknown reward") else error.hint) from error
    if len(choices) > 1:
        raise InputError(f"judge: {len(choices)} judges are given", hint="give one")
    (choice,) = choices
    if (choice.source is not None and choice.source.kind == "part") or isinstance(choice.function, Config):
        raise InputError(f"judge {choice.name!r}: it scores one answer, and a judge compares two", hint=HOW)
    if choice.weight != 1.0:
        raise InputError(f"judge {choice.name!r}: weight {choice.weight:g} has no effect", hint="leave it out")
    return replace(choice, judges=True)


HOW = "give FILE.py:FUNCTION, which takes prompts and completions; a reward compares by its scores without a judge"


@dataclass(frozen=True)
class Pair(Sample):
    """Two answers to one prompt in the order in which they are shown: `rollout`, then `second`."""

    second: Rollout
    swapped: bool
    """Whether the answer of the other model comes first."""
    unit: ClassVar[str] = "pairs"

    def each(self, read: Callable[[Rollout], Any]) -> Any:
        """What `read` gives for both answers."""
        return [read(self.rollout), read(self.second)]

    def __str__(self) -> str:
        order = ", the other model's answer first" if self.swapped else ""
        return f"{self.rollout.task.id}, pair {self.index + 1} of {self.of}{order}"


class Judgement(NamedTuple):
    """What a judge said of a pair: 1 where our answer is better, 0.5 for a tie, 0 where theirs is; None for no judgement.

    Example:
        Judgement(first=1.0, swapped=0.0)    # whichever answer came first
    """

    first: float | None
    """With our answer first."""
    swapped: float | None
    """With theirs first."""


class Judge(RewardSet):
    """A judge that is ready to be asked. Made by `build_judge`; a context manager that ends its process."""

    batch_size = 1

    def judge(self, groups: Sequence[Sequence[tuple[Rollout, Rollout]]]) -> list[list[Judgement]]:
        """Its judgement of each pair (ours, theirs) of each prompt, in both orders.

        Raises:
            RunError: it raised, overran its limit, or returned what is no judgement; the message names the pair.
        """
        asked = [
            Pair(number, index, len(pairs), *((theirs, ours) if swapped else (ours, theirs)), swapped)
            for swapped in (False, True)
            for number, pairs in enumerate(groups)
            for index, (ours, theirs) in enumerate(pairs)
        ]
        parts = [asked[start : start + self.batch_size] for start in range(0, len(asked), self.batch_size)]
        columns = columns_of([pair.rollout.task for pair in asked])
        given: list[float | None] = []
        begun = self.queued(parts, columns, TrainerState(evaluating=True), no_text)
        with ended(begun):
            for events in (one for call in begun for one in call.future.result().events):
                assert not isinstance(events, Failure)  # the policy ends the evaluation at the first one
                given.append(events[0].value if events else None)
        answers = iter(given)
        first = [[None if x is None else 1.0 - x for x in (next(answers) for _ in pairs)] for pairs in groups]
        swapped = [[next(answers) for _ in pairs] for pairs in groups]
        return [[Judgement(*both) for both in zip(*orders, strict=True)] for orders in zip(first, swapped, strict=True)]


def build_judge(config: JudgeConfig) -> Judge:
    """Find, import and check a judge, as `build_rewards` does with rewards.

    Raises InputError for a file, function or object that cannot be had.
    """
    rewards, pools = open_choices(
        [choice_of(config.function)], time_limit=config.time_limit, workers=1, concurrency=config.batch_size
    )
    policy = Policy(stop=True, retries=config.retries, retry_delay=config.retry_delay)
    judge = Judge(rewards, pools, time_limit=config.time_limit, policy=policy, call="batch")
    judge.batch_size = config.batch_size
    return judge
