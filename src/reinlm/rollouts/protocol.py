"""The engine protocol: an engine turns requests into completions, many at once.

It may be a client of a server or a cluster; the in-process engine of `hf_engine.py` is the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from reinlm.records import COLUMNS, Array, SamplingSettings, same_bits

MIN_TEMPERATURE = 1e-4
"""Logits divided by less overflow float32 long before they differ from greedy."""

Reason = Literal["stop", "length", "context"]
"""Why a turn ended: a stop token or string; `max_new_tokens`; the model's context is full."""


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

    @property
    def settings(self) -> SamplingSettings:
        """What a segment keeps of it: the distribution, without what ends an answer."""
        return SamplingSettings(self.temperature, self.top_p, self.top_k, self.max_new_tokens)


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
    """One finished answer.

    Raises ValueError or TypeError for a column of another length, one that is not declared, or one whose values are of
    another kind than the declared type's, such as fractions for integers.

    Example:
        Completion(id="3/0/12/7", token_ids=np.array([9, 1], np.int32), reason="stop",
                   columns={"rollout_logprobs": np.array([-0.7, -0.1], np.float32), "version": np.array([4, 4], np.int32)})
    """

    id: str
    token_ids: Array
    """[n] int32: the sampled tokens, the stop token included; without the prompt."""
    columns: Mapping[str, Array]
    """Per-token columns by their declared names, [n, …]: `rollout_logprobs`, `version`, and what else the engine offers."""
    reason: Reason

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", _cast("token_ids", self.token_ids, np.int32))
        if self.token_ids.ndim != 1:
            raise ValueError(f"token_ids has shape {self.token_ids.shape}, not [n]")
        columns = {name: self._checked(name, values) for name, values in self.columns.items()}
        object.__setattr__(self, "columns", columns)

    def _checked(self, name: str, values: Any) -> Array:
        if name not in COLUMNS:
            raise ValueError(
                f"no per-token column {name!r} is declared; declared are {', '.join(COLUMNS)} "
                "(reinlm.records.declare_column adds one)"
            )
        column = _cast(name, values, COLUMNS[name].dtype)
        if column.shape[:1] != self.token_ids.shape:
            raise ValueError(f"the column {name!r} has shape {column.shape} for {len(self.token_ids)} tokens")
        return column

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Completion):
            return NotImplemented
        return (
            (self.id, self.reason, self.columns.keys()) == (other.id, other.reason, other.columns.keys())
            and np.array_equal(self.token_ids, other.token_ids)
            and all(same_bits(values, other.columns[name]) for name, values in self.columns.items())
        )

    __hash__ = None  # type: ignore[assignment]  # it holds arrays


def _cast(name: str, values: Any, dtype: Any) -> Array:
    """The values as the type that was declared; TypeError where that would change their kind, such as fractions to integers."""
    given = np.asarray(values)
    if given.size and not np.can_cast(given.dtype, dtype, casting="same_kind"):
        raise TypeError(f"{name} has values of type {given.dtype}, not {np.dtype(dtype)}")
    return given.astype(dtype, copy=False)


@dataclass(frozen=True)
class Capabilities:
    """What an engine can report or do."""

    columns: tuple[str, ...] = ("rollout_logprobs", "version")
    """The per-token columns of its completions."""
    context_length: int | None = None
    """Prompt and answer together have at most so many tokens; None where there is no limit."""
    in_flight_update: bool = False
    """Weights may change while answers are being written."""
    sleeps: bool = False
    """It is put to sleep while the trainer works, and woken before it samples."""


class Generator(Protocol):
    """The part of an engine that an episode needs."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def generate(self, request: Request) -> Completion:
        """One answer; any number may be awaited at the same time. Cancelling it aborts the request.

        Raises:
            InputError: a request that cannot fit the context or whose id is in flight.
            RunError: the engine cannot go on.
        """


class Engine(Generator, Protocol):
    """Samples answers from weights that it shares with the trainer, or is sent."""

    def abort(self, ids: Iterable[str]) -> None:
        """Drop these requests; unknown ids are ignored."""

    def update(self, weights: Any, version: int) -> None:
        """Take new weights (None where they are shared with the trainer) and stamp later tokens with `version`."""

    def sleep(self) -> None:
        """Give memory back while the trainer works."""

    def wake(self) -> None:
        """Be ready to sample again."""
