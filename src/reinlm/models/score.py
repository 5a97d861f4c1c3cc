"""Log-probabilities of chosen tokens, in chunks, and the micro-batches that they are computed in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from reinlm.errors import InputError
from reinlm.models.heads import Split, split_head, supports_packing, unwrap
from reinlm.models.reference import Reference
from reinlm.objectives import full_entropy, full_kl

Packing = Literal["pad", "pack"]
Entropy = bool | Literal["grad"]

CHUNK_ELEMENTS = 2**27
"""Logits of a chunk by default: 512 MiB of float32, 883 tokens of a vocabulary of 152,000."""


@dataclass(frozen=True)
class Scores:
    """What `score` measured at every scored token, sequence after sequence.

    Example: two sequences, of which 2 and 1 tokens are scored:
        Scores(logprobs=tensor([-0.7, -0.1, -2.3]), entropy=None)
    """

    logprobs: Tensor
    """[N] log-probability of each scored token at the sampling temperature; float32, or float64 of a float64 model."""
    entropy: Tensor | None
    """[N] entropy in nats of the distribution that each was drawn from, at the same temperature."""
    likeliest: Tensor | None = None
    """[N] bool: whether each was a token of the highest probability. Measured together with the entropy."""
    full_kl: Tensor | None = None
    """[N] KL(policy ‖ reference) in nats over the whole vocabulary, at the same temperature."""
    values: Tensor | None = None
    """[N] a value head's value of the state in which each token was chosen; float32 or better."""


def score(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    positions: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    entropy: Entropy = False,
    chunk_tokens: int | None = None,
    packing: Packing = "pad",
    reference: Reference | None = None,
    value_head: nn.Module | None = None,
) -> Scores:
    """Log-probabilities of the tokens at `positions`, from one forward pass of the backbone.

        logprob_t = log softmax(logits_{t-1} / temperature)[token_t]        entropy_t = -Σ_v p_v log p_v

    Hidden states are gathered where a token is scored, and the head runs chunk by chunk: the backward pass computes a
    chunk's logits again, so that no [tokens, vocabulary] tensor outlives its chunk. Tokens after the last scored one
    are not run at all. Runs under the caller's autocast; the softmax is float32 (float64 for a float64 model).

    The model's mode is the caller's: RL wants log-probabilities without dropout, so call `eval()`, or, for gradient
    checkpointing, which works in training mode alone, `disable_dropout(model)` and `train()`.

    Args:
        sequences: S lists of token ids of any lengths, without padding.
        positions: for each sequence, which of its tokens are scored: indices from 1 to its length - 1.
        temperature: the sampler's, above 0: a greedy answer has no distribution.
        entropy: True measures it, "grad" also lets gradients through it.
        chunk_tokens: scored tokens per chunk; by default as many as make `CHUNK_ELEMENTS` logits.
        packing: "pad" runs one row a sequence, right-padded (sort by length with `micro_batches`); "pack" runs one row
            with all sequences end to end, which pays with flash attention.
        reference: measures the divergence from it over the whole vocabulary, with a gradient; it has the same tokens.
        value_head: maps hidden states [N, H] to values [N, 1], from the same forward pass.

    Raises:
        InputError: a position outside its sequence, nothing to score, temperature 0, or a model that cannot be packed.
    """
    if not 0.0 < temperature < math.inf:
        raise InputError(
            f"temperature must be above 0 and finite to score with, not {temperature}",
            hint="a greedy answer has no distribution: score it at temperature 1",
        )
    if chunk_tokens is not None and chunk_tokens < 1:
        raise InputError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    split = split_head(model)
    if packing == "pack" and not supports_packing(model):
        raise InputError(f"{type(unwrap(model)).__name__} mixes sequences that share a row", hint="use packing=pad")
    rows = _lay_out(sequences, positions, packing, filler(model))
    device = next(model.parameters()).device
    scored = rows.hidden(split.backbone, device)
    targets = torch.from_numpy(rows.targets).to(device)
    measure = partial(_measure, split, reference, temperature=temperature, entropy=entropy)
    parts = [scored, targets]
    if reference is not None:
        with torch.no_grad(), reference.active() as frozen:
            parts.append(rows.hidden(split_head(frozen).backbone, device))
    if torch.is_grad_enabled():
        measure = partial(checkpoint, measure, use_reentrant=False, preserve_rng_state=model.training)
    size = chunk_tokens or max(1, CHUNK_ELEMENTS // split.vocabulary)
    chunks = [measure(*chunk) for chunk in zip(*(part.split(size) for part in parts), strict=True)]
    logprobs, entropies, likeliest, kls = (None if c[0] is None else torch.cat(c) for c in zip(*chunks, strict=True))
    values = None if value_head is None else _values(value_head, scored)
    assert logprobs is not None
    return Scores(logprobs, entropies, likeliest, kls, values)


def state_values(
    backbone: nn.Module,
    value_head: nn.Module,
    sequences: Sequence[Sequence[int]],
    positions: Sequence[Sequence[int]],
    *,
    fill: int = 0,
    packing: Packing = "pad",
) -> Tensor:
    """[N] values of the states in which the tokens at `positions` were chosen: read from the token before each.

    A position of len(sequence) is the state after the last token. Otherwise as `score`; `fill` is any token for padding.
    Packing is for the caller to know: see `supports_packing`.
    """
    longer = [[*sequence, fill] for sequence in sequences]
    rows = _lay_out(longer, positions, packing, fill)
    return _values(value_head, rows.hidden(backbone, next(backbone.parameters()).device))


def _values(value_head: nn.Module, hidden: Tensor) -> Tensor:
    values = value_head(hidden.to(next(value_head.parameters()).dtype)).squeeze(-1)
    return values if values.dtype == torch.float64 else values.float()


def micro_batches(lengths: Sequence[int], budget_tokens: int, packing: Packing = "pad") -> list[list[int]]:
    """Split whole sequences into micro-batches of at most `budget_tokens` each, the longest first.

    The cost of one is rows · longest where it is padded, and the sum of lengths where it is packed. A sequence longer
    than the budget gets a micro-batch of its own. Every index comes once; ties keep their order.

    Example:
        >>> micro_batches([3, 9, 4, 4], budget_tokens=12)
        [[1], [2, 3, 0]]
    """
    if budget_tokens < 1:
        raise InputError(f"budget_tokens must be at least 1, not {budget_tokens}")
    batches: list[list[int]] = []
    used = 0  # tokens of the last batch: its rows at its first one's length, or their sum
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        cost = lengths[batches[-1][0]] if batches and packing == "pad" else lengths[index]
        if batches and used + cost <= budget_tokens:
            batches[-1].append(index)
            used += cost
        else:
            batches.append([index])
            used = lengths[index]
    return batches


def _measure(
    split: Split,
    reference: Reference | None,
    hidden: Tensor,
    targets: Tensor,
    reference_hidden: Tensor | None = None,
    *,
    temperature: float,
    entropy: Entropy,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """One chunk: hidden states [C, H] and tokens [C] to log-probabilities, entropies, first choices and divergences [C]."""
    logits = split.logits(hidden)
    logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
    chosen = logprobs.gather(-1, targets[:, None]).squeeze(-1)
    divergence = None
    if reference is not None and reference_hidden is not None:
        with torch.no_grad(), reference.active() as frozen:
            other = torch.log_softmax(split_head(frozen).logits(reference_hidden) / temperature, dim=-1)
        divergence = full_kl(logprobs, other)
    if not entropy:
        return chosen, None, None, divergence
    # After `chosen`, so that the backward pass, which runs the chunk again up to the last tensor that it needs, skips
    # an entropy without gradient.
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy == "grad"):
        likeliest = chosen.detach() >= logprobs.detach().amax(-1)
        return chosen, full_entropy(logprobs), likeliest, divergence


@dataclass(frozen=True)
class _Rows:
    inputs: dict[str, np.ndarray]
    scored: np.ndarray  # [N] where, in the flattened rows, stands the token before each scored one
    targets: np.ndarray  # [N]

    def hidden(self, backbone: nn.Module, device: torch.device) -> Tensor:
        """[N, H] the hidden states that the scored tokens were chosen from."""
        inputs = {name: torch.from_numpy(array).to(device) for name, array in self.inputs.items()}
        states: Tensor = backbone(**inputs, use_cache=False)[0]
        return states.flatten(0, 1).index_select(0, torch.from_numpy(self.scored).to(device))


def _lay_out(
    sequences: Sequence[Sequence[int]], positions: Sequence[Sequence[int]], packing: Packing, filler: int
) -> _Rows:
    """Build rows from sequences: each is cut before its last scored token, which no other token needs to see."""
    if len(sequences) != len(positions):
        raise InputError(f"{len(sequences)} sequences need as many lists of positions, not {len(positions)}")
    lengths = np.array([len(s) for s in sequences], dtype=np.int64)
    counts = np.array([len(p) for p in positions], dtype=np.int64)
    if not counts.sum():
        raise InputError("there is no token to score", hint="give at least one position")
    owner = np.repeat(np.arange(len(sequences)), counts)
    position = np.fromiter(chain.from_iterable(positions), np.int64, counts.sum())
    if (wrong := (position < 1) | (position >= lengths[owner])).any():
        at = int(wrong.argmax())
        raise InputError(
            f"sequence {owner[at]} has {lengths[owner[at]]} tokens and cannot be scored at position {position[at]}",
            hint="positions run from 1 (nothing stands before the first token) to length - 1",
        )
    tokens = np.fromiter(chain.from_iterable(sequences), np.int64, lengths.sum())
    start = lengths.cumsum() - lengths
    needed = np.zeros_like(lengths)
    np.maximum.at(needed, owner, position)
    offset = np.arange(len(tokens)) - np.repeat(start, lengths)
    read = offset < np.repeat(needed, lengths)
    targets = tokens[start[owner] + position]
    if packing == "pack":
        inputs = {"input_ids": tokens[read][None], "position_ids": offset[read][None]}
        return _Rows(inputs, (needed.cumsum() - needed)[owner] + position - 1, targets)
    row = (needed > 0).cumsum() - 1
    grid = np.arange(needed.max()) < needed[needed > 0, None]
    ids = np.full(grid.shape, filler, np.int64)
    ids[grid] = tokens[read]
    return _Rows({"input_ids": ids}, row[owner] * grid.shape[1] + position - 1, targets)


def filler(model: nn.Module) -> int:
    """A token for padding. Nothing reads it: rows are padded on the right, and `split_head` saw that none looks ahead.

    So there is no attention mask, and attention runs its fastest kernel. Transformers warns of the pad token where
    there is no mask; any other one does as well.
    """
    return 1 if getattr(unwrap(model).config, "pad_token_id", None) == 0 else 0
