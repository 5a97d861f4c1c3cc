"""What a step has to compute and to read at least: floating-point operations and bytes, counted from shapes.

A matrix of P entries costs 2 P operations for each token that goes forward, 2 P for the gradient of its input and 2 P for its
own gradient, where it is trained. Attention costs 4 · heads · head size for each pair of a token and one that it attends to,
forward, and twice that backward. Norms, activations and the embedding's look-up count nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from reinlm.batches import TokenBatch
from reinlm.models.modules import attention_windows
from reinlm.models.prefix_sharing import prefix_order


@dataclass(frozen=True)
class ModelWork:
    """What one token costs in a decoder.

    Example: one layer of width 8 with a feed-forward of 16, and 10 tokens in the vocabulary:
        ModelWork(body=640, head=80, body_trained=640, head_trained=80, width=8, windows=(None,), weight_bytes=2880,
                  cache_bytes=64)
    """

    body: int
    """Entries of the matrices that every token goes through; of a mixture of experts those of the active ones."""
    head: int
    """Entries of the matrix from the last state to the logits."""
    body_trained: int
    head_trained: int
    width: int
    """Query heads times head size."""
    windows: tuple[int | None, ...]
    """By layer: tokens that a token attends to at most."""
    weight_bytes: int
    """Of `body` and `head`."""
    cache_bytes: int
    """Keys and values of one token, in all layers."""

    def attention(self, first: int, last: int) -> int:
        """Forward operations of attention for the tokens at the positions from `first` up to `last` of a sequence."""
        pairs = sum(int(np.minimum(np.arange(first, last) + 1, window or last).sum()) for window in self.windows)
        return 4 * self.width * pairs

    def attention_of(self, position: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Forward operations of attention for a token at each position."""
        seen = sum(np.minimum(position + 1, window) if window else position + 1 for window in self.windows)
        return np.asarray(4 * self.width * seen)


def model_work(model: Any) -> ModelWork:
    """What a token costs in a Hugging Face decoder, counted from its weights and its configuration."""
    config = model.config.get_text_config(decoder=True)
    head = model.get_output_embeddings().weight
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    share = _active_share(config)
    body = trained = 0.0
    for weight in model.parameters():
        if weight.dim() < 2 or id(weight) in tables or weight is head:
            continue
        entries = weight.numel() * (share if weight.dim() == 3 else 1.0)
        body += entries
        trained += entries if weight.requires_grad else 0.0
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = config.num_hidden_layers
    bytes_each = head.element_size()
    return ModelWork(
        body=round(body),
        head=head.numel(),
        body_trained=round(trained),
        head_trained=head.numel() if head.requires_grad else 0,
        width=heads * size,
        windows=attention_windows(config) or (None,) * layers,
        weight_bytes=(round(body) + head.numel()) * bytes_each,
        cache_bytes=2 * layers * (getattr(config, "num_key_value_heads", None) or heads) * size * bytes_each,
    )


def _active_share(config: Any) -> float:
    """The part of the experts that a token goes through."""
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    return config.num_experts_per_tok / experts if experts else 1.0


# ---------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class TrainingWork:
    """One pass of forward and backward over a batch.

    Example: 9 tokens read, 6 of them to predict a scored token:
        TrainingWork(tokens=9, scored=6, forward=14_000, backward=28_000)
    """

    tokens: int
    """Tokens that go through the body, what sequences share at their beginning once."""
    scored: int
    forward: int
    """Operations."""
    backward: int

    @property
    def flops(self) -> int:
        """Operations of both."""
        return self.forward + self.backward


def training_work(work: ModelWork, batch: TokenBatch) -> TrainingWork:
    """The least that a pass over a batch computes: each sequence is read up to its last scored token, a shared beginning once."""
    needed = torch.zeros(batch.sequences, dtype=torch.long)
    needed.scatter_reduce_(0, batch.layout.index("sequence"), batch.positions, "amax")
    ids, starts = batch.token_ids.numpy(), batch.starts.tolist()
    read = [ids[start : start + size] for start, size in zip(starts, needed.tolist(), strict=True) if size]
    tokens = attention = 0
    for number, shared in prefix_order(read):
        tokens += len(read[number]) - shared
        attention += work.attention(shared, len(read[number]))
    scored = batch.tokens
    forward = 2 * (work.body * tokens + work.head * scored) + attention
    own = 2 * (work.body_trained * tokens + work.head_trained * scored)
    return TrainingWork(tokens, scored, forward, forward + attention + own)


# ---------------------------------------------------------------------------------------------------- sampling


@dataclass(frozen=True)
class SampledGroup:
    """A prompt and the lengths of its answers, in tokens.

    Example:
        SampledGroup(prompt=64, answers=(12, 64, 30))
    """

    prompt: int
    answers: tuple[int, ...]


def sampling_seconds(
    work: ModelWork, groups: Sequence[SampledGroup], *, slots: int, flops: float, bandwidth: float
) -> float:
    """The least seconds that sampling these answers takes: of each step the longer of computing and reading.

    One pass reads the prompts, each once. Then a step gives every running answer its next token, and reads the weights and
    the keys and values of running answers and of their prompts, a prompt's once. An answer waits while `slots` others run.

    Args:
        flops: operations a second. bandwidth: bytes a second.
    """
    prompts = [group.prompt for group in groups]
    computed = 2 * (work.body * sum(prompts) + work.head * len(prompts)) + sum(work.attention(0, p) for p in prompts)
    seconds = max(computed / flops, work.weight_bytes / bandwidth)
    computed, cached, running = _by_step(work, groups, slots)
    matrices = 2 * (work.body + work.head) * running
    read = work.weight_bytes + work.cache_bytes * cached
    return seconds + float(np.maximum((computed + matrices) / flops, read / bandwidth).sum())


def _by_step(work: ModelWork, groups: Sequence[SampledGroup], slots: int) -> tuple[Any, Any, Any]:
    """By step: operations of attention, tokens whose keys and values are read, and answers that run."""
    lengths = [answer - 1 for group in groups for answer in group.answers]  # the last token is not read again
    begins = _begins(lengths, slots)
    steps = max((begin + length for begin, length in zip(begins, lengths, strict=True)), default=0)
    attention, cached, running = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    number = 0
    for group in groups:
        of_group = np.zeros(steps, bool)
        for _ in group.answers:
            part = slice(begins[number], begins[number] + lengths[number])
            own = np.arange(lengths[number])
            attention[part] += work.attention_of(group.prompt + own)
            cached[part] += own + 1
            running[part] += 1
            of_group[part] = True
            number += 1
        cached += group.prompt * of_group
    return attention, cached, running


def _begins(lengths: Iterable[int], slots: int) -> list[int]:
    """The step in which each answer begins: at once while a slot is free, else when the next one becomes free."""
    free = [0] * slots
    begins = []
    for length in lengths:
        begin = heapq.heappop(free)
        begins.append(begin)
        heapq.heappush(free, begin + length)
    return begins
