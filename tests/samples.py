"""Small rollouts and groups for tests, written out by hand, and random ones drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from reinlm.records import (
    NO_TURN,
    RewardEvent,
    Rollout,
    RolloutGroup,
    SamplingSettings,
    ScoredGroup,
    Segment,
    Task,
)


def segment(pattern: str, version: int = 0, **columns: Any) -> Segment:
    """A segment by a picture: `p` a token of the prompt or of a tool, `a` a token that the policy chose.

    Token ids count from 10, log-probabilities from -0.1 in steps of -0.1; every stretch of `a` is a turn.
    """
    turns, turn = [], NO_TURN
    for place, letter in enumerate(pattern):
        if letter == "a":
            turn += pattern[place - 1] != "a"
        turns.append(turn if letter == "a" else NO_TURN)
    count = pattern.count("a")
    known: dict[str, Any] = {
        "rollout_logprobs": [-0.1 * (i + 1) for i in range(count)],
        "version": [version] * count,
    }
    return Segment(np.arange(10, 10 + len(pattern)), np.array(turns), {**known, **columns})


def ended(end: str) -> dict[str, Any]:
    """How an episode ended, by one word: "stop" and "environment" terminate, "error" does neither, the rest truncate."""
    terminated = end in ("stop", "environment")
    return {"terminated": terminated, "truncated": not terminated and end != "error", "reason": end}


def scored(
    *answers: tuple[list[str] | str, list[RewardEvent]], where: str = "data[0]", end: str = "stop"
) -> ScoredGroup:
    """A group from pairs (segments as pictures, events)."""
    task = Task(id=where, content="1+1=")
    rollouts = []
    for pictures, _ in answers:
        pictures = [pictures] if isinstance(pictures, str) else pictures
        rollouts.append(Rollout(task, tuple(segment(p) for p in pictures), completion="2", **ended(end)))
    return ScoredGroup(RolloutGroup(task, tuple(rollouts)), tuple(tuple(events) for _, events in answers))


def reward(value: float, name: str = "math", token: int | None = None, weight: float = 1.0) -> RewardEvent:
    return RewardEvent(name=name, value=value, token=token, weight=weight)


# ------------------------------------------------------------------------------------------------ random ones

_floats = st.floats(allow_nan=False, allow_infinity=False)
_names = st.sampled_from(["math", "format", "steps"])
_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | _floats | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)
_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text(max_size=4)}),
    max_size=2,
).map(tuple)
_content = st.text(max_size=5) | _messages


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Up to eight tokens in up to three turns, with or without each column; every bit of a float is drawn."""
    chosen = [False, *draw(st.lists(st.booleans(), max_size=7))]
    first = draw(st.integers(0, 300))
    turns = [NO_TURN] * len(chosen)
    for place, mine in enumerate(chosen):
        if mine:
            first += place > 0 and not chosen[place - 1]
            turns[place] = first
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = sum(chosen)
    columns: dict[str, np.ndarray] = {
        "rollout_logprobs": rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32),
        "version": rng.integers(-(2**31), 2**31, count),
        "loss_weight": rng.standard_normal(count),
    }
    kept = draw(st.sets(st.sampled_from(sorted(columns))))
    sampling = SamplingSettings(draw(_floats), 0.9, draw(st.integers(0, 9)), draw(st.none() | st.integers(1, 99)))
    ids = rng.integers(0, 2**31 - 1, len(chosen))
    return Segment(ids, np.array(turns), {name: columns[name] for name in sorted(kept)}, sampling)


@st.composite
def groups(draw: st.DrawFn) -> list[ScoredGroup]:
    """Up to three groups of one to three episodes of one or two segments; some failed, some shaped, some with a baseline."""
    made = []
    for number in range(draw(st.integers(0, 3))):
        columns = draw(st.dictionaries(st.text(max_size=4), _plain, max_size=2))
        task = Task(f"data[{number}]", draw(_content), columns)
        rollouts = []
        for _ in range(draw(st.integers(1, 3))):
            parts = tuple(draw(st.lists(segments(), min_size=1, max_size=2)))
            end = ended(draw(st.sampled_from(["stop", "environment", "length", "turns", "error"])))
            length = sum(part.length for part in parts)
            rollouts.append(Rollout(task, parts, draw(_content), **end, events=draw(_events(length))))
        each = st.tuples(*[_events(rollout.length) for rollout in rollouts])
        baseline = draw(st.none() | _floats)
        group = RolloutGroup(task, tuple(rollouts))
        made.append(ScoredGroup(group, draw(each), baseline, draw(st.just(()) | each)))
    return made


def _events(length: int) -> st.SearchStrategy[tuple[RewardEvent, ...]]:
    token = st.none() | st.integers(0, length - 1) if length else st.none()
    return st.lists(st.builds(RewardEvent, _names, _floats, token, _floats), max_size=2).map(tuple)
