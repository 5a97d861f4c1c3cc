"""What an engine is: a stream of requests in, finished completions out.

A server, a thread or a cluster can stand behind it; the in-process engine of `hf_engine.py` is the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reinlm.records import End

MIN_TEMPERATURE = 1e-4
"""Logits divided by less overflow float32 long before they differ from greedy."""


@dataclass(frozen=True)
class Sampling:
    """How to sample an answer. Temperature 0 is greedy.

    Log-probabilities are those of the distribution that is sampled from: after temperature, top-k and top-p. Greedy
    answers report the log-probability at temperature 1.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    stop_token_ids: tuple[int, ...] = ()
    """An answer ends after any of them; the stop token is part of the answer."""
    stop_strings: tuple[str, ...] = ()
    """An answer ends after the token that completes any of them; the string stays in the answer."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if self.temperature != 0 and not MIN_TEMPERATURE <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or at least {MIN_TEMPERATURE}, not {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or more, not {self.top_k}")
        if "" in self.stop_strings:
            raise ValueError("a stop string cannot be empty: every answer would end at its first token")


@dataclass(frozen=True)
class Request:
    """One answer asked for. The noise of its k-th token depends on (seed, id, k) alone.

    Example:
        Request(id="3/0/12/7", token_ids=(5, 6, 7), sampling=Sampling(max_new_tokens=8), seed=0)
    """

    id: str
    """Unique among the requests in flight. Part of the noise: the same id and seed sample the same answer."""
    token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """One finished answer."""

    id: str
    token_ids: tuple[int, ...]
    """The sampled tokens, the stop token included; without the prompt."""
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Policy version of each token."""
    end: End


@dataclass(frozen=True)
class Capabilities:
    """What an engine can report or do."""

    logprobs: bool = True
    routing: bool = False
    kept_sets: bool = False
    in_flight_update: bool = False


class Engine(Protocol):
    """A stream of answers."""

    @property
    def capabilities(self) -> Capabilities: ...

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests. Raises InputError for one that cannot fit the context or whose id is in flight."""

    def step(self) -> Sequence[Completion]:
        """Advance by one token or so; what finished. Empty when nothing did, or nothing is in flight."""

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet returned."""

    def abort(self, ids: Iterable[str]) -> None:
        """Drop these requests; unknown ids are ignored."""

    def update(self, weights: Any, version: int) -> None:
        """Take new weights (None where they are shared with the trainer) and stamp later tokens with `version`."""

    def sleep(self) -> None:
        """Give memory back while the trainer works."""

    def wake(self) -> None:
        """Be ready to sample again."""
