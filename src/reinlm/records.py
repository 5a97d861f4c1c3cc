"""The records of the data flow from a task to an update, one class per stage.

    Task -> Rollout (of Segments) -> RolloutGroup -> ScoredGroup -> reinlm.batches.TokenBatch -> update

Every record is frozen, and a later stage never overwrites an earlier one's field. Tokens are stored in columns: NumPy
arrays with an entry per token, 14 bytes per sampled token without extra columns. This module imports no torch, so that
reward workers start fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reinlm.renamed import renamed

Message = Mapping[str, Any]
"""A chat message as Hugging Face writes it: `{"role": "user", "content": "2+2?"}`."""

Content = str | tuple[Message, ...]
"""Plain text, or chat messages."""

Array = NDArray[Any]

NO_TURN = -1
"""In `Segment.turns`: the policy did not choose this token."""


# ---------------------------------------------------------------------------------------------------- per-token columns


@dataclass(frozen=True)
class Column:
    """The declaration of a per-token column, with an entry for each token that the policy chose.

    It then flows from the engine to the loss, the logs and replay.

    Example:
        declare_column(Column("difficulty", "float32", meaning="how hard the task's author finds this token"))
    """

    name: str
    dtype: str
    """NumPy's name of the type of an entry: "float32", "int16", …"""
    missing: float | int | None = None
    """The value for segments without the column; None: every segment of a batch must have it."""
    meaning: str = ""


COLUMNS: dict[str, Column] = {}
"""Every per-token column by its name; `declare_column` adds to it."""


def declare_column(column: Column) -> Column:
    """Register a per-token column. Raises ValueError for a name that is declared otherwise already."""
    if COLUMNS.setdefault(column.name, column) != column:
        raise ValueError(f"the column {column.name!r} is declared already, as {COLUMNS[column.name]}")
    return column


declare_column(
    Column(
        "rollout_logprobs",
        "float32",
        meaning="the sampling engine's log-probability, in nats, under the distribution that the token was drawn from",
    )
)
UNKNOWN_VERSION = -1
"""In the column `version`: the policy version of the token is unknown."""

declare_column(
    Column(
        "version",
        "int32",
        missing=UNKNOWN_VERSION,
        meaning="the policy version that chose the token: optimizer steps before it; -1 where that is unknown",
    )
)
declare_column(
    Column("teacher_logprobs", "float32", meaning="a teacher model's log-probability, in nats, at the same temperature")
)
declare_column(Column("loss_weight", "float32", missing=1.0, meaning="multiplies the token's weight in the loss"))


# ---------------------------------------------------------------------------------------------------- tasks and rollouts


@dataclass(frozen=True)
class Task:
    """What an environment is reset to: one question, game or problem, from one row of the data.

    Example:
        Task(id="train.jsonl:1", content="12+30=", columns={"answer": "42"})
    """

    id: str
    """Where it comes from, for error messages: `FILE:LINE` or `data[INDEX]`. Unique within a data set."""
    content: Content
    """Plain text, or chat messages: what reward functions receive in `prompts`."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Every other column of the row; they reach reward functions by name."""
    from_text: bool = field(default=False, compare=False)
    """Whether the row's prompt is text and `chat: auto` made a user message of it: reward functions then receive text, as from
    a tokenizer without a chat template."""

    @property
    def prompt(self) -> Content:
        """What reward functions receive: the content, or the text that the user message was made of."""
        return (
            str(self.content[-1]["content"]) if self.from_text and not isinstance(self.content, str) else self.content
        )


@dataclass(frozen=True)
class SamplingSettings:
    """The distribution that a segment's tokens were drawn from.

    Example:
        SamplingSettings(temperature=1.0, max_new_tokens=256)
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    max_new_tokens: int | None = None
    """Tokens of a turn at most; None if unknown."""


@dataclass(frozen=True)
class Segment:
    """The tokens of one context of the model: prompt, answers, and tool output between them.

    Example: a prompt of 3 tokens, then an answer of 2:
        Segment(token_ids=np.array([5, 6, 7, 9, 1], np.int32), turns=np.array([-1, -1, -1, 0, 0], np.int16),
                columns={"rollout_logprobs": np.array([-0.7, -0.1], np.float32), "version": np.array([4, 4], np.int32)})
    """

    token_ids: Array
    """[n] int32: ids as they were read and sampled, never tokenised again from text; no padding."""
    turns: Array
    """[n] int16: the turn of the episode in which the policy chose the token, from 0; `NO_TURN` where it did not."""
    columns: Mapping[str, Array] = field(default_factory=dict)
    """Per-token columns by their declared names, [chosen, …]."""
    sampling: SamplingSettings = SamplingSettings()

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", _column(self.token_ids, np.int32))
        object.__setattr__(self, "turns", _column(self.turns, np.int16))
        if self.turns.shape != self.token_ids.shape or self.token_ids.ndim != 1:
            raise ValueError(f"turns has shape {self.turns.shape} for token_ids of shape {self.token_ids.shape}")
        if self.turns.size and self.turns[0] != NO_TURN:
            raise ValueError("the first token of a segment cannot be chosen: nothing stands before it")
        checked = {name: self._checked(name, values) for name, values in self.columns.items()}
        object.__setattr__(self, "columns", checked)

    def _checked(self, name: str, values: Array) -> Array:
        if name not in COLUMNS:
            raise ValueError(
                f"no per-token column {name!r} is declared; declared are {', '.join(COLUMNS)} "
                "(reinlm.records.declare_column adds one)"
            )
        column = _column(values, np.dtype(COLUMNS[name].dtype))
        if column.ndim < 1 or column.shape[0] != self.length:
            raise ValueError(f"the column {name!r} has {column.shape[:1]} entries for {self.length} chosen tokens")
        return column

    def __len__(self) -> int:
        """Tokens, those that the policy did not choose included."""
        return int(self.token_ids.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Segment):
            return NotImplemented
        return (
            np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.turns, other.turns)
            and self.sampling == other.sampling
            and self.columns.keys() == other.columns.keys()
            and all(same_bits(values, other.columns[name]) for name, values in self.columns.items())
        )

    __hash__ = None  # type: ignore[assignment]  # it holds arrays

    @property
    def chosen(self) -> Array:
        """[n] bool: where the policy chose the token."""
        chosen: Array = self.turns != NO_TURN
        return chosen

    @property
    def positions(self) -> Array:
        """Where the chosen tokens stand in `token_ids`."""
        return np.flatnonzero(self.chosen)

    @property
    def chosen_ids(self) -> Array:
        """The ids of the chosen tokens, stop tokens included."""
        ids: Array = self.token_ids[self.chosen]
        return ids

    @property
    def length(self) -> int:
        """The number of tokens that the policy chose."""
        return int(np.count_nonzero(self.chosen))

    @property
    def nbytes(self) -> int:
        """Memory of its columns in bytes."""
        return sum(int(values.nbytes) for values in (self.token_ids, self.turns, *self.columns.values()))


def _column(values: Any, dtype: Any) -> Array:
    """A contiguous read-only array."""
    array: Array = np.ascontiguousarray(values, dtype=dtype)
    if array is values or array.base is not None:
        array = array.view()
    array.flags.writeable = False
    return array


def same_bits(a: Array, b: Array) -> bool:
    """Equal shapes, types and bits; NaN equals NaN."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@dataclass(frozen=True)
class RewardEvent:
    """One reward: where it lands, which one it is, and its value before weights.

    Example: a verifier's reward of the whole episode, and a process reward on the 12th chosen token:
        RewardEvent(name="math", value=1.0), RewardEvent(name="steps", value=0.5, token=11)
    """

    name: str
    value: float
    token: int | None = None
    """Index among the episode's chosen tokens; None for the episode as a whole."""
    weight: float = 1.0


@dataclass(frozen=True)
class Rollout:
    """One episode: what the policy did with a task, in one or more segments.

    How it ended is three facts. An episode that an error ended is neither terminated nor truncated.

    Example:
        Rollout(task=task, segments=(segment,), completion="42", terminated=True, truncated=False, reason="stop")
    """

    task: Task
    segments: tuple[Segment, ...]
    completion: Content
    """What reward functions receive in `completions`: text without special tokens, or the messages after the task's."""
    terminated: bool
    """The model or the environment ended the episode."""
    truncated: bool
    """A limit ended the episode. Excludes `terminated`."""
    reason: str
    """Which one: "stop", "environment"; "length" (tokens of a turn), "context", "turns", "time"; or the text of the error."""
    events: tuple[RewardEvent, ...] = ()
    """Rewards of the environment, if it gives any."""

    def __post_init__(self) -> None:
        if self.terminated and self.truncated:
            raise ValueError("an episode is terminated or truncated, not both")
        _check_events(self.events, self.length, self.task.id)

    @property
    def failed(self) -> bool:
        """An error ended it: `reason` says which. It is in no statistic and no loss."""
        return not (self.terminated or self.truncated)

    @property
    def length(self) -> int:
        """The number of tokens that the policy chose."""
        return sum(segment.length for segment in self.segments)

    @property
    def turns(self) -> int:
        """The number of turns in which the policy chose a token."""
        return 1 + max((int(segment.turns.max(initial=NO_TURN)) for segment in self.segments), default=NO_TURN)

    @property
    def versions(self) -> tuple[int, int] | None:
        """The oldest and the newest policy version among its tokens; None if no token has a version."""
        stamped = np.concatenate([_NONE, *(s.columns["version"] for s in self.segments if "version" in s.columns)])
        known = stamped[stamped != UNKNOWN_VERSION]
        return (int(known.min()), int(known.max())) if known.size else None


_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True)
class RolloutGroup:
    """All rollouts of one task: the group that group baselines compare within."""

    task: Task
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True)
class ScoredGroup:
    """A group with its rewards as earned. A missing event means no reward, not a reward of 0.

    Adjustments are stored separately: `shaping` here, costs, KL and advantages in the update.
    """

    group: RolloutGroup
    events: tuple[tuple[RewardEvent, ...], ...]
    """For every rollout the rewards of its environment and of the reward functions."""
    baseline: float | None = None
    """The return of the policy's greedy answer to the task, where an algorithm asks for it."""
    shaping: tuple[tuple[RewardEvent, ...], ...] = ()
    """For every rollout the events of the algorithm's shapers; empty without shapers."""
    logged: tuple[Mapping[str, Any], ...] = ()
    """For every rollout what reward functions logged about it (`log_extra`), by column; empty where none did."""

    def __post_init__(self) -> None:
        rollouts = self.group.rollouts
        for name, events in (("events", self.events), ("shaping", self.shaping)):
            if len(events) != len(rollouts) and (events or name == "events"):
                raise ValueError(f"{len(rollouts)} rollouts need as many tuples of {name}, not {len(events)}")
            for index, (rollout, earned) in enumerate(zip(rollouts, events, strict=False)):
                _check_events(earned, rollout.length, f"{self.group.task.id}, sample {index}")

    @property
    def returns(self) -> tuple[float | None, ...]:
        """The weighted sum of all that every rollout earned, on the whole episode and on tokens; None without a term."""
        return tuple(total(events) for events in self.events)


def total(events: Sequence[RewardEvent], name: str | None = None) -> float | None:
    """Σ weight · value over the events (of that name), or None where there is none."""
    terms = [event.weight * event.value for event in events if name is None or event.name == name]
    return sum(terms) if terms else None


def unweighted(events: Sequence[RewardEvent], name: str) -> float | None:
    """Σ value over the events of that name, or None where there is none: as a reward function returned it."""
    values = [event.value for event in events if event.name == name]
    return sum(values) if values else None


def _check_events(events: Sequence[RewardEvent], length: int, where: str) -> None:
    for event in events:
        if event.token is not None and not 0 <= event.token < length:
            raise ValueError(
                f"{where}: reward {event.name!r} lands on token {event.token} of an answer of {length} tokens"
            )


renamed(
    __name__,
    {"outcome": "reinlm.records:total"},
    {
        "Prompt": "reinlm.records.Task, which has no tokens",
        "TrainBatch": "reinlm.batches.TokenBatch, with the rewards in `feedback`",
        "train_batch": "reinlm.batches.token_batch",
    },
)
