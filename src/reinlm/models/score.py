"""Log-probabilities of chosen tokens of a Hugging Face model, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import nn

from reinlm.batches import TokenBatch
from reinlm.models.packed import Packing
from reinlm.models.token_model import Entropy, Outputs, TokenModel, Want


def score(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    positions: Sequence[Sequence[int]],
    *,
    temperature: float = 1.0,
    entropy: Entropy = False,
    chunk_tokens: int | None = None,
    packing: Packing | Literal["auto"] = "pad",
) -> Outputs:
    """`TokenModel` on sequences as lists: log-probabilities, and where asked for entropy, of the tokens at `positions`.

    The model keeps its mode: call `eval()` for log-probabilities without dropout.

    Args:
        sequences: S lists of token ids of any lengths, without padding.
        positions: for each sequence, which of its tokens are scored: indices from 1 to its length - 1.
        temperature: the sampler's, above 0: a greedy answer has no distribution.
        entropy, chunk_tokens, packing: as in `Want` and `TokenModel`.

    Raises:
        InputError: a position outside its sequence, nothing to score, temperature 0, or a model that cannot be packed.
    """
    batch = TokenBatch.of(sequences, positions)
    if temperature != 1.0:
        batch = replace(batch, temperature=torch.full((batch.sequences,), temperature, dtype=torch.float64))
    scorer = TokenModel(model, packing=packing, chunk_tokens=chunk_tokens)
    outputs: Outputs = scorer(batch, Want(entropy=entropy))
    return outputs
