"""`TokenBatch`: the tokens of many sequences in one flat batch; and the rewards of its episodes as a `Feedback`.

Shapes: S sequences of T tokens in all, of which N are scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reinlm.errors import InputError
from reinlm.objectives import Feedback, Layout
from reinlm.records import COLUMNS, NO_TURN, Array, RewardEvent, Rollout, ScoredGroup, Segment, unweighted

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Shaped


@dataclass(frozen=True)
class TokenBatch:
    """Sequences end to end, and which of their tokens are scored. Tensors are on the CPU; there is no padding.

    Example: the sequences 5 6 7 and 8 9, whose last two tokens and last token are scored:
        TokenBatch.of([[5, 6, 7], [8, 9]], [[1, 2], [1]])
    """

    token_ids: Int[Tensor, " all_tokens"]
    """[T] int32, sequence after sequence."""
    lengths: Int[Tensor, " sequences"]
    """[S]: the number of tokens of every sequence."""
    positions: Int[Tensor, " tokens"]
    """[N]: index of every scored token in its sequence, at least 1: the first token has no context and cannot be scored."""
    layout: Layout
    """Turn, sequence, episode and group of every scored token; tokens are in the order of the sequences."""
    temperature: Float[Tensor, " sequences"] | None = None
    """[S]: the sampling temperature of each sequence; None: 1 everywhere."""
    columns: Mapping[str, Shaped[Tensor, "tokens ..."]] = field(default_factory=dict)
    """Per-token columns over the scored tokens."""

    @classmethod
    def of(
        cls, sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], group_size: int = 1
    ) -> TokenBatch:
        """From lists: `positions` names the scored tokens of each sequence; `group_size` neighbours make a group.

        Raises InputError where there are not as many lists of positions as sequences.
        """
        if len(sequences) != len(positions):
            raise InputError(f"{len(sequences)} sequences need as many lists of positions, not {len(positions)}")
        flat = [token for sequence in sequences for token in sequence]
        scored = [place for places in positions for place in places]
        return cls(
            token_ids=torch.tensor(flat, dtype=torch.int32),
            lengths=torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long),
            positions=torch.tensor(scored, dtype=torch.long),
            layout=Layout.from_lengths([len(places) for places in positions], group_size),
        )

    @cached_property
    def starts(self) -> Int[Tensor, " sequences"]:
        """Index in `token_ids` of the first token of every sequence."""
        return self.lengths.cumsum(0) - self.lengths

    @property
    def sequences(self) -> int:
        """S, sequences without a scored token included."""
        return int(self.lengths.shape[0])

    @property
    def tokens(self) -> int:
        """N, the number of scored tokens."""
        return self.layout.tokens

    def ids(self, sequence: int) -> list[int]:
        """The token ids of one sequence."""
        start = int(self.starts[sequence])
        ids: list[int] = self.token_ids[start : start + int(self.lengths[sequence])].tolist()
        return ids

    def select(self, sequences: Int[Tensor, " chosen"]) -> TokenBatch:
        """Some of the sequences, in the order given. Raises ValueError for one that is named twice."""
        layout, tokens = self.layout.select(sequences)
        inputs = _ranges(self.starts[sequences], self.lengths[sequences])
        return TokenBatch(
            token_ids=self.token_ids[inputs],
            lengths=self.lengths[sequences],
            positions=self.positions[tokens],
            layout=layout,
            temperature=None if self.temperature is None else self.temperature[sequences],
            columns={name: values[tokens] for name, values in self.columns.items()},
        )


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """start, start + 1, …, start + length - 1 for every pair, concatenated."""
    first = torch.repeat_interleave(starts - (lengths.cumsum(0) - lengths), lengths)
    return first + torch.arange(int(lengths.sum()))


def token_batch(groups: Sequence[ScoredGroup]) -> TokenBatch:
    """Flatten scored groups: a segment is a sequence, a rollout an episode.

    Raises ValueError where a column without a value for missing entries stands in some segments and not in all.
    """
    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    segments = [segment for rollout in rollouts for segment in rollout.segments]
    lengths = np.array([len(segment) for segment in segments], dtype=np.int64)
    offsets = lengths.cumsum() - lengths
    turns = _concatenate([segment.turns for segment in segments], np.int16)
    places = np.flatnonzero(turns != NO_TURN)
    owner = np.repeat(np.arange(len(segments)), lengths)[places]
    columns = {name: _gather(name, segments) for name in COLUMNS if any(name in s.columns for s in segments)}
    return TokenBatch(
        token_ids=torch.from_numpy(_concatenate([segment.token_ids for segment in segments], np.int32)),
        lengths=torch.from_numpy(lengths),
        positions=torch.from_numpy(places - offsets[owner]),
        layout=_layout(groups, owner, turns[places], places),
        temperature=torch.tensor([segment.sampling.temperature for segment in segments], dtype=torch.float64),
        columns=columns,
    )


def _layout(groups: Sequence[ScoredGroup], owner: Array, turns: Array, places: Array) -> Layout:
    """Token ⊂ turn ⊂ segment ⊂ rollout ⊂ group. A turn ends where its number changes, or its tokens are interrupted."""
    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    first = np.ones(len(places), dtype=bool)
    first[1:] = (owner[1:] != owner[:-1]) | (turns[1:] != turns[:-1]) | (places[1:] != places[:-1] + 1)
    return Layout(
        turn_of_token=torch.from_numpy(first.cumsum() - 1),
        sequence_of_turn=torch.from_numpy(owner[first]),
        episode_of_sequence=torch.tensor([e for e, r in enumerate(rollouts) for _ in r.segments], dtype=torch.long),
        group_of_episode=torch.tensor([g for g, group in enumerate(groups) for _ in group.events], dtype=torch.long),
        groups=len(groups),
    )


def _gather(name: str, segments: Sequence[Segment]) -> Tensor:
    """One column of all segments, concatenated."""
    column = COLUMNS[name]
    parts = []
    known = next(segment.columns[name] for segment in segments if name in segment.columns)
    for index, segment in enumerate(segments):
        entries = segment.length
        if name in segment.columns:
            parts.append(segment.columns[name])
        elif column.missing is not None or not entries:
            fill = 0 if column.missing is None else column.missing
            parts.append(np.full((entries, *known.shape[1:]), fill, dtype=known.dtype))
        else:
            raise ValueError(f"segment {index} has no column {name!r}, which other segments of the batch have")
    return torch.from_numpy(_concatenate(parts, known.dtype))


def _concatenate(parts: Sequence[Array], dtype: Any) -> Array:
    """The parts as one new array, which may be empty."""
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def feedback(
    groups: Sequence[ScoredGroup], layout: Layout, *, names: Sequence[str] = (), default: float | None = None
) -> Feedback:
    """The rewards of scored groups for the layout of their `token_batch`; with shaping also `adjusted_rewards`.

    An episode with only step rewards has the outcome reward 0. One without any event has NaN, is excluded from every
    statistic and gets no shaping.

    Args:
        names: rewards whose unweighted outcomes go into `named_rewards`; those of shapers are always included.
        default: the outcome of an episode that has no event and did not fail; None: NaN.
    """
    rollouts = [rollout for group in groups for rollout in group.group.rollouts]
    earned = [events for group in groups for events in group.events]
    shaping = [added for group in groups for added in group.shaping or [()] * len(group.events)]
    given = [
        [*events, *added] if events else list(added) if default is not None and not rollout.failed else []
        for rollout, events, added in zip(rollouts, earned, shaping, strict=True)
    ]
    start = [
        0.0 if events else float("nan") if default is None or rollout.failed else default
        for rollout, events in zip(rollouts, earned, strict=True)
    ]
    adjusted = {}
    if any(shaping):
        adjusted = {f"adjusted_{name}": values for name, values in _rewards(rollouts, given, start).items()}
    return Feedback(
        layout=layout,
        **_rewards(rollouts, earned, start),
        **adjusted,
        truncated=torch.tensor([rollout.truncated for rollout in rollouts], dtype=torch.bool),
        baseline_rewards=torch.tensor(
            [float("nan") if group.baseline is None else group.baseline for group in groups], dtype=torch.float64
        ),
        **_named(given, names),
    )


def _rewards(
    rollouts: Sequence[Rollout], given: Sequence[Sequence[RewardEvent]], start: Sequence[float]
) -> dict[str, Any]:
    """The outcome of every episode, counted from `start`, and the step rewards with the tokens that they land on."""
    outcomes = [
        sum((event.weight * event.value for event in events if event.token is None), start=first)
        for events, first in zip(given, start, strict=True)
    ]
    offsets = accumulate((rollout.length for rollout in rollouts), initial=0)
    steps = [
        (offset + e.token, e) for offset, row in zip(offsets, given, strict=False) for e in row if e.token is not None
    ]
    return {
        "rewards": torch.tensor(outcomes, dtype=torch.float64),
        "step_rewards": torch.tensor([e.weight * e.value for _, e in steps], dtype=torch.float64) if steps else None,
        "step_tokens": torch.tensor([token for token, _ in steps], dtype=torch.long) if steps else None,
    }


def _named(given: Sequence[Sequence[RewardEvent]], names: Sequence[str]) -> dict[str, Any]:
    """The outcome of every reward by its name, and the weight of each."""
    if not names:
        return {}
    events = [event for row in given for event in row if event.token is None]
    known = dict.fromkeys([*names, *(event.name for event in events)])
    weights = {event.name: event.weight for event in events}
    return {
        "named_rewards": {
            name: torch.tensor(
                [_outcome([event for event in row if event.token is None], name) for row in given], dtype=torch.float64
            )
            for name in known
        },
        "reward_weights": {name: weights.get(name, 1.0) for name in known},
    }


def _outcome(events: Sequence[RewardEvent], name: str) -> float:
    value = unweighted(events, name)
    return float("nan") if value is None else value


def example_batch(token_ids: Array, trained: Array, offsets: Array, unit: Array | None = None) -> TokenBatch:
    """Sequences with their own scored tokens, each a group of its own, or those of one unit a group.

    Args:
        token_ids: [T] sequence after sequence.
        trained: [T] bool, which tokens are scored; never the first of a sequence.
        offsets: [S + 1]: sequence i has the tokens from offsets[i] up to offsets[i + 1].
        unit: [S] the group of each, numbered from 0 without a gap; None: each its own.
    """
    lengths = np.diff(offsets)
    places = np.flatnonzero(trained)
    owner = np.repeat(np.arange(len(lengths)), lengths)[places]
    layout = Layout.from_lengths(np.bincount(owner, minlength=len(lengths)).tolist())
    if unit is not None:
        groups = int(unit.max()) + 1 if len(unit) else 0
        layout = replace(layout, group_of_episode=torch.tensor(unit, dtype=torch.long), groups=groups)
    return TokenBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int32),
        lengths=torch.from_numpy(lengths),
        positions=torch.from_numpy(places - np.asarray(offsets)[owner]),
        layout=layout,
    )
