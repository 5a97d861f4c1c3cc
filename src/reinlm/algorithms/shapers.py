"""What is added to rewards before advantages are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from reinlm.errors import InputError
from reinlm.objectives import choice, missing_end_penalty, soft_overlong_penalty

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


class Shaper(Protocol):
    """(lengths of the answers in tokens [E], which ones a limit cut off [E], limit of the sampler in tokens) -> what to add
    to their rewards [E]."""

    name: str

    def __call__(
        self, lengths: Int[Tensor, " episodes"], truncated: Bool[Tensor, " episodes"], limit: int
    ) -> Float[Tensor, " episodes"]: ...


@choice("shaper", "soft_overlong")
@dataclass(frozen=True)
class SoftOverlong:
    """DAPO's soft overlong punishment, arXiv 2503.14476 eq. 13: from 0 down to -1 over the last `cache` tokens.

    `max_length` None is the sampler's limit (in the paper 20480 tokens); a `cache` below 1 is a fraction of it (the paper's
    4096 tokens are 0.2). Raises InputError where the sampler's limit is too low for any answer to be punished.
    """

    max_length: int | None = None
    cache: float = 0.2
    name = "overlong"

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(f"soft overlong: max_length must be at least 1 token, not {self.max_length}")
        if not 0 <= self.cache < float("inf") or (self.cache >= 1 and self.cache != int(self.cache)):
            raise ValueError(f"soft overlong: cache is a fraction below 1 or a number of tokens, not {self.cache}")

    def __call__(
        self, lengths: Int[Tensor, " episodes"], truncated: Bool[Tensor, " episodes"], limit: int
    ) -> Float[Tensor, " episodes"]:
        longest = limit if self.max_length is None else self.max_length
        cache = round(self.cache * longest) if self.cache < 1 else int(self.cache)
        if longest - cache >= limit:
            raise InputError(
                f"soft overlong: answers end at {limit} tokens, and the punishment would begin only after {longest - cache}",
                hint="raise rollout.max_new_tokens, or lower the shaper's max_length",
            )
        return soft_overlong_penalty(lengths, longest, min(cache, longest))


@choice("shaper", "missing_end")
@dataclass(frozen=True)
class MissingEnd:
    """- penalty for an answer without its stop token: one that a limit cut off."""

    penalty: float = 1.0
    """In units of the reward; more than 0."""
    name = "missing_end"

    def __post_init__(self) -> None:
        if not 0.0 < self.penalty < float("inf"):
            raise ValueError(f"missing end: the penalty must be more than 0 and finite, not {self.penalty}")

    def __call__(
        self, lengths: Int[Tensor, " episodes"], truncated: Bool[Tensor, " episodes"], limit: int
    ) -> Float[Tensor, " episodes"]:
        return missing_end_penalty(truncated, self.penalty)
