"""Random batches for property tests: shapes are drawn, so that they shrink; numbers come from a drawn seed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st

from reinlm.objectives import Layout


@dataclass(frozen=True)
class Padded:
    """A padded batch [B, T] in NumPy; rows may be empty, and may have holes."""

    mask: np.ndarray
    groups: np.ndarray
    logprobs: np.ndarray
    old: np.ndarray
    ref: np.ndarray
    rollout: np.ndarray
    advantages: np.ndarray

    def tensors(self, **changes):
        """The same as float64 tensors by name, with some replaced."""
        return {k: torch.as_tensor(changes.get(k, v)) for k, v in vars(self).items()}


@st.composite
def padded_batches(draw, min_tokens=0, spread=0.2):
    """Rows of chosen tokens, some empty, several turns; `spread` is how far the policy moved."""
    columns = draw(st.integers(1, 6))
    row = st.one_of(st.just([False] * columns), st.lists(st.booleans(), min_size=columns, max_size=columns))
    rows = draw(st.lists(row, min_size=min(min_tokens, 1), max_size=5))
    mask = np.array(rows, dtype=bool).reshape(len(rows), columns)
    if mask.sum() < min_tokens:
        mask[0, 0] = True
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups = np.sort(rng.integers(0, 3, len(rows))) if draw(st.booleans()) else rng.integers(0, 3, len(rows))
    old = -rng.exponential(1.0, mask.shape)
    return Padded(
        mask=mask,
        groups=groups,
        logprobs=old + spread * rng.standard_normal(mask.shape),
        old=old,
        ref=old + 0.3 * rng.standard_normal(mask.shape),
        rollout=old + 0.01 * rng.standard_normal(mask.shape),
        advantages=rng.standard_normal(mask.shape) * rng.choice([0.0, 1.0, 3.0], mask.shape),
    )


@st.composite
def layouts(draw, max_groups=3):
    """Groups of 1 to 3 episodes of 1 or 2 sequences of 0 to 2 turns of 1 to 3 tokens; all in order."""
    turn_of_token: list[int] = []
    sequence_of_turn: list[int] = []
    episode_of_sequence: list[int] = []
    group_of_episode: list[int] = []
    groups = draw(st.integers(0, max_groups))
    for group in range(groups):
        for _ in range(draw(st.integers(1, 3))):
            for _ in range(draw(st.integers(1, 2))):
                for length in draw(st.lists(st.integers(1, 3), max_size=2)):
                    turn_of_token += [len(sequence_of_turn)] * length
                    sequence_of_turn.append(len(episode_of_sequence))
                episode_of_sequence.append(len(group_of_episode))
            group_of_episode.append(group)
    parts = (turn_of_token, sequence_of_turn, episode_of_sequence, group_of_episode)
    turn, sequence, episode, of_group = (torch.tensor(part, dtype=torch.long) for part in parts)
    return Layout(turn, sequence, episode, of_group, groups)


def partition(draw, count):
    """The numbers 0 … count-1 in a drawn order, cut into drawn slices."""
    order = draw(st.permutations(range(count)))
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    edges = [0, *cuts, count]
    return [torch.tensor(order[a:b], dtype=torch.long) for a, b in pairwise(edges)]
