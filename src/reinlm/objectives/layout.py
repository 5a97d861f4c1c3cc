"""Which turn, sequence, episode and prompt group each scored token belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped

Level = Literal["turn", "sequence", "episode", "group"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True)
class Layout:
    """The shape of a flat batch: token ⊂ turn ⊂ sequence ⊂ episode ⊂ group.

    Only tokens that the policy chose are in it: prompts, padding and tool output are not, so nothing has to be masked. A
    *turn* is an unbroken stretch of chosen tokens, a *sequence* what the model read in one context, an *episode* one
    rollout, a *group* all rollouts of one prompt. Members without a token exist (an empty answer still has a reward) and
    count where a formula says so. The tokens of a member stand in order of time; other members' tokens may stand between
    them, as after `select` in another order.

    Example: two answers of 3 and 1 tokens to one prompt:
        >>> layout = Layout.from_lengths([3, 1], group_size=2)
        >>> layout.mean(torch.tensor([1.0, 2.0, 6.0, 5.0]), by="sequence")
        tensor([3., 5.])
    """

    turn_of_token: Int[Tensor, " tokens"]
    sequence_of_turn: Int[Tensor, " turns"]
    episode_of_sequence: Int[Tensor, " sequences"]
    group_of_episode: Int[Tensor, " episodes"]
    groups: int

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], group_size: int = 1, device: torch.device | None = None) -> Layout:
        """Answers of one turn each, `group_size` neighbours to a prompt. Raises ValueError where groups do not divide."""
        if group_size < 1 or len(lengths) % group_size:
            raise ValueError(f"{len(lengths)} sequences do not divide into groups of {group_size}")
        each = torch.arange(len(lengths), device=device)
        turn = each.repeat_interleave(torch.tensor(lengths, dtype=torch.long, device=device))
        return cls(turn, each, each, each // group_size, len(lengths) // group_size)

    @classmethod
    def from_mask(cls, mask: Bool[Tensor, " rows columns"], groups: Int[Tensor, " rows"] | None = None) -> Layout:
        """The layout of `x[mask]`: a row is an episode of one sequence, an unbroken run of True is a turn.

        `groups` numbers the prompt of each row; without it every row is its own group.
        """
        rows, columns = mask.shape
        before = torch.nn.functional.pad(mask, (1, 0))[:, :columns]
        starts = mask & ~before
        turn = (starts.flatten().cumsum(0) - 1).view(rows, columns)[mask]
        each = torch.arange(rows, device=mask.device)
        sequence_of_turn = each[:, None].expand(rows, columns)[starts]
        if groups is None:
            return cls(turn, sequence_of_turn, each, each, rows)
        _, inverse = torch.unique(groups, return_inverse=True)
        return cls(turn, sequence_of_turn, each, inverse, int(inverse.max()) + 1 if rows else 0)

    @property
    def tokens(self) -> int:
        """N, the number of scored tokens."""
        return self.turn_of_token.shape[0]

    def size(self, level: Level) -> int:
        """How many turns, sequences, episodes or groups there are, empty ones included."""
        children: dict[Level, Tensor] = {
            "turn": self.sequence_of_turn,
            "sequence": self.episode_of_sequence,
            "episode": self.group_of_episode,
        }
        return self.groups if level == "group" else children[level].shape[0]

    @cached_property
    def _indices(self) -> dict[Level, Tensor]:
        sequence = self.sequence_of_turn[self.turn_of_token]
        episode = self.episode_of_sequence[sequence]
        return {
            "turn": self.turn_of_token,
            "sequence": sequence,
            "episode": episode,
            "group": self.group_of_episode[episode],
        }

    def index(self, by: Level) -> Int[Tensor, " tokens"]:
        """The number of the turn, sequence, episode or group of every token."""
        return self._indices[by]

    def count(self, by: Level) -> Int[Tensor, " members"]:
        """The number of tokens of every member; 0 for an empty one."""
        return torch.bincount(self.index(by), minlength=self.size(by))

    def sum(self, x: Float[Tensor, " tokens"], by: Level) -> Float[Tensor, " members"]:
        """Σ of x over the tokens of every member; 0 for an empty one. Differentiable."""
        return x.new_zeros(self.size(by)).index_add(0, self.index(by), x)

    def mean(self, x: Float[Tensor, " tokens"], by: Level) -> Float[Tensor, " members"]:
        """Mean of x over the tokens of every member; 0 for an empty one. Differentiable."""
        return self.sum(x, by) / self.count(by).clamp(min=1)

    def expand(self, y: Shaped[Tensor, " members"], by: Level) -> Shaped[Tensor, " tokens"]:
        """The way back: every token gets its member's value. Differentiable."""
        return y[self.index(by)]

    def offset(self, by: Level) -> Int[Tensor, " tokens"]:
        """The place of every token among the tokens of its member, from 0."""
        count = self.count(by)
        together = torch.argsort(self.index(by), stable=True)
        place = torch.arange(self.tokens, device=count.device)
        return torch.empty_like(place).index_put(
            (together,), place - (count.cumsum(0) - count)[self.index(by)[together]]
        )

    def last(self, by: Level) -> Bool[Tensor, " tokens"]:
        """True at the last token of every member."""
        return self.offset(by) == self.expand(self.count(by), by) - 1

    def pad(self, x: Shaped[Tensor, " tokens"], by: Level, fill: float = 0.0) -> Shaped[Tensor, " steps members"]:
        """Time first: column m holds the tokens of member m from row 0 on, then `fill`."""
        steps = int(self.count(by).max()) if self.tokens else 0
        padded = x.new_full((steps, self.size(by)), fill)
        return padded.index_put((self.offset(by), self.index(by)), x)

    def unpad(self, padded: Shaped[Tensor, " steps members"], by: Level) -> Shaped[Tensor, " tokens"]:
        """The inverse of `pad`."""
        return padded[self.offset(by), self.index(by)]

    def select(self, sequences: Int[Tensor, " chosen"]) -> tuple[Layout, Int[Tensor, " chosen_tokens"]]:
        """The layout of some sequences, in the order given, and which tokens of this layout they hold.

        Episodes and groups keep their identity among the chosen: members that lose all their sequences disappear.
        Raises ValueError for a sequence that is named twice.
        """
        device = self.turn_of_token.device
        place = torch.full((self.size("sequence"),), -1, device=device)
        place[sequences] = torch.arange(len(sequences), device=device)
        if int((place >= 0).sum()) < len(sequences):
            raise ValueError(f"select: a sequence is named twice among {sequences.tolist()}")
        turns, turn_place = _pick(place[self.sequence_of_turn])
        tokens, _ = _pick(turn_place[self.turn_of_token])
        episodes, episode_of_sequence = _relabel(self.episode_of_sequence[sequences])
        groups, group_of_episode = _relabel(self.group_of_episode[episodes])
        layout = Layout(
            turn_place[self.turn_of_token[tokens]],
            place[self.sequence_of_turn[turns]],
            episode_of_sequence,
            group_of_episode,
            len(groups),
        )
        return layout, tokens

    def to(self, device: torch.device | str) -> Layout:
        """The same layout on another device."""
        return Layout(
            self.turn_of_token.to(device),
            self.sequence_of_turn.to(device),
            self.episode_of_sequence.to(device),
            self.group_of_episode.to(device),
            self.groups,
        )


def _pick(place: Int[Tensor, " members"]) -> tuple[Int[Tensor, " kept"], Int[Tensor, " members"]]:
    """Members whose parent has a place (≥ 0), in the order of those places; and the new place of every member, or -1."""
    kept = torch.nonzero(place >= 0).flatten()
    kept = kept[torch.argsort(place[kept], stable=True)]
    new = torch.full_like(place, -1)
    new[kept] = torch.arange(len(kept), device=place.device)
    return kept, new


def _relabel(parents: Int[Tensor, " members"]) -> tuple[Int[Tensor, " kept"], Int[Tensor, " members"]]:
    """The distinct parents in order of first appearance, and every member's new parent number."""
    distinct, inverse = torch.unique(parents, return_inverse=True)
    first = torch.full_like(distinct, len(parents))
    first = first.scatter_reduce(0, inverse, torch.arange(len(parents), device=parents.device), "amin")
    order = torch.argsort(first)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return distinct[order], rank[inverse]
