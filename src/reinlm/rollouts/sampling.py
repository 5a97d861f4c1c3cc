"""From logits to tokens: the distribution that is sampled from, and noise that belongs to a request, not to a batch.

Shapes: R rows (answers in flight), V tokens in the vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from reinlm.objectives.ratios import widest
from reinlm.rollouts.protocol import Request

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
BLOCK = 256
"""Tokens of a block where a large vocabulary is searched in two steps."""
CHUNK = 1 << 23
"""Entries of [rows, V] that are worked on at once: 64 MiB in float64."""


_PER_ROW = ("keys", "temperature", "top_p", "top_k", "greedy")


@dataclass(frozen=True)
class RowSampling:
    """The sampling settings of every row, as tensors of shape [R] on the model's device.

    Greedy rows stand here with temperature 1 and nothing truncated: that is the distribution whose log-probability they
    report. The three flags let a step skip work that no row asks for; they may stay true once such a row has left.
    """

    keys: Int[Tensor, " rows"]
    temperature: Float[Tensor, " rows"]
    top_p: Float[Tensor, " rows"]
    top_k: Int[Tensor, " rows"]
    greedy: Bool[Tensor, " rows"]
    any_greedy: bool
    any_sampled: bool
    any_truncated: bool

    @classmethod
    def of(cls, requests: Sequence[Request], device: torch.device) -> RowSampling:
        """The settings of these requests, a row each."""
        rows = [request.sampling for request in requests]
        greedy = [row.temperature == 0 for row in rows]
        top_p = [1.0 if row.temperature == 0 else row.top_p for row in rows]
        top_k = [0 if row.temperature == 0 else row.top_k for row in rows]
        return cls(
            keys=torch.tensor([noise_key(request.seed, request.id) for request in requests], device=device),
            temperature=torch.tensor([row.temperature or 1.0 for row in rows], device=device),
            top_p=torch.tensor(top_p, device=device),
            top_k=torch.tensor(top_k, device=device),
            greedy=torch.tensor(greedy, device=device),
            any_greedy=any(greedy),
            any_sampled=not all(greedy),
            any_truncated=any(p < 1 for p in top_p) or any(top_k),
        )

    def join(self, more: RowSampling) -> RowSampling:
        """These rows, and then those."""
        tensors = {name: torch.cat([getattr(self, name), getattr(more, name)]) for name in _PER_ROW}
        return replace(
            self,
            **tensors,
            any_greedy=self.any_greedy or more.any_greedy,
            any_sampled=self.any_sampled or more.any_sampled,
            any_truncated=self.any_truncated or more.any_truncated,
        )

    def pick(self, rows: Int[Tensor, " chosen"]) -> RowSampling:
        """Some of the rows, in the order given."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _PER_ROW})

    def split(self, size: int) -> list[RowSampling]:
        """The same settings in stretches of `size` rows."""
        parts = zip(*(getattr(self, name).split(size) for name in _PER_ROW), strict=True)
        return [replace(self, **dict(zip(_PER_ROW, part, strict=True))) for part in parts]


def noise_key(seed: int, request_id: str) -> int:
    """64 bits (signed) out of seed and request id: blake2b, the same on every machine and in every process."""
    digest = hashlib.blake2b(f"{seed}\0{request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def uniform(
    keys: Int[Tensor, " *rows"], positions: Int[Tensor, " *rows"], dtype: torch.dtype | None = None
) -> Float[Tensor, " *rows"]:
    """One uniform number in [0, 1) for every (key, position): splitmix64 of a counter (Steele, Lea, Flood 2014).

    Args:
        keys: [R] int64, from `noise_key`.
        positions: [R] int64, index of the token in its answer, from 0.
        dtype: float64, or float32; None takes float64 where the device has it.

    Returns:
        [R] float64 with 53 bits, or float32 with 24 bits.
    """
    x = keys + (positions + 1) * _GOLDEN  # int64 arithmetic wraps, which is what the generator wants
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    x = x ^ _shift(x, 31)
    wide = dtype or widest(keys.device)
    bits = 53 if wide == torch.float64 else 24
    return _shift(x, 64 - bits).to(wide) * 2.0**-bits


def log_distribution(logits: Float[Tensor, " rows vocabulary"], rows: RowSampling) -> Float[Tensor, " rows vocabulary"]:
    """Log-probabilities of what is sampled from: after temperature, then top-k, then top-p; -inf where cut off.

    Top-k keeps ties with the k-th token; top-p keeps the smallest set whose mass reaches p, the token that crosses it
    included (Holtzman et al., arXiv 1904.09751). Rows without truncation are left exactly as they are.

    Args:
        logits: [R, V], any float type.

    Returns:
        [R, V] float32, each row summing to 1 in probability.
    """
    logprobs = (logits.float() / rows.temperature[:, None]).log_softmax(-1)
    if not rows.any_truncated:
        return logprobs
    ordered, order = logprobs.sort(dim=-1, descending=True)
    last = torch.where(rows.top_k > 0, rows.top_k, logprobs.shape[-1]).clamp(max=logprobs.shape[-1]) - 1
    kept = ordered >= ordered.gather(-1, last[:, None])
    mass = torch.where(kept, ordered, -math.inf).softmax(-1, dtype=widest(logits.device))
    before = mass.cumsum(-1) - mass
    kept &= (before < rows.top_p[:, None]) | (rows.top_p[:, None] >= 1)
    kept = torch.empty_like(kept).scatter_(-1, order, kept)
    truncated = ((rows.top_k > 0) | (rows.top_p < 1))[:, None]
    return torch.where(truncated, logprobs.masked_fill(~kept, -math.inf).log_softmax(-1), logprobs)


def sample(
    logits: Float[Tensor, " rows vocabulary"], rows: RowSampling, positions: Int[Tensor, " rows"], chunk: int = CHUNK
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """One token for every row, and its log-probability under the distribution that it was sampled from.

    Args:
        logits: [R, V].
        positions: [R] int64, index of the token in its answer.
        chunk: entries of [R, V] that are worked on at once; the result does not depend on it.

    Returns:
        tokens [R] int64, logprobs [R] float32.
    """
    size = max(1, chunk // logits.shape[-1])
    if logits.shape[0] <= size:
        return _sample(logits, rows, positions)
    parts = zip(logits.split(size), rows.split(size), positions.split(size), strict=True)
    tokens, logprobs = zip(*(_sample(*part) for part in parts), strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _sample(
    logits: Float[Tensor, " rows vocabulary"], rows: RowSampling, positions: Int[Tensor, " rows"]
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    logprobs = log_distribution(logits, rows)
    if not rows.any_sampled:
        tokens = logits.argmax(-1)
    else:
        tokens = _inverse_cdf(logprobs, uniform(rows.keys, positions))
        if rows.any_greedy:
            tokens = torch.where(rows.greedy, logits.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _inverse_cdf(logprobs: Float[Tensor, " rows vocabulary"], noise: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The first token whose cumulative probability exceeds the noise.

    A large vocabulary is searched in two steps, over blocks of tokens and within the block that is found, so that sums in
    the noise's type run over hundreds of numbers a row.
    """
    probabilities = logprobs.exp()
    if logprobs.shape[-1] <= 2 * BLOCK:
        cumulative = probabilities.to(noise.dtype).cumsum(-1)
        return _search(cumulative, noise[:, None] * cumulative[:, -1:])
    blocks = F.pad(probabilities, (0, -logprobs.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    cumulative = blocks.sum(-1).to(noise.dtype).cumsum(-1)
    target = noise[:, None] * cumulative[:, -1:]
    found = _search(cumulative, target)
    before = F.pad(cumulative, (1, 0)).gather(-1, found[:, None])
    inside = blocks[torch.arange(len(found), device=found.device), found].to(noise.dtype).cumsum(-1)
    return found * BLOCK + _search(inside, target - before)


def _search(cumulative: Float[Tensor, " rows entries"], target: Float[Tensor, " rows 1"]) -> Int[Tensor, " rows"]:
    """The first entry whose cumulative mass exceeds the target, and at most the last one that has mass."""
    total = cumulative[:, -1:].contiguous()
    found = torch.searchsorted(cumulative, target, right=True)
    # Rounding may lift the target to the total itself; the last entry of non-zero mass is where that is reached.
    possible = torch.searchsorted(cumulative, total).clamp(max=cumulative.shape[-1] - 1)
    return torch.minimum(found, possible)[:, 0]


def _shift(x: Int[Tensor, " *rows"], bits: int) -> Int[Tensor, " *rows"]:
    """Logical right shift of int64 (torch's own copies the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
