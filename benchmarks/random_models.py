"""Models of random weights in the Qwen3 shape, and prompts for them, that benchmarks share."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain, count, islice

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True)
class Row:
    """A model and the batch of a step: `answers` in groups of `group`, to prompts of `prompt` tokens."""

    name: str
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    inner: int = 768
    vocabulary: int = 64
    prompt: int = 16
    answer: int = 128
    """Tokens of an answer at most."""
    answers: int = 64
    group: int = 8
    micro_batch: int = 16
    """Answers in one of TRL's micro-batches: of 64, 16 and 8 the fastest."""


RAGGED = Row("ragged")


ROWS = (
    RAGGED,
    Row("short", answer=32, micro_batch=64),
    Row("wide", hidden=512, layers=8, heads=8, kv_heads=4, inner=1536, vocabulary=8192, prompt=64, answer=64),
    Row("long_prompts", prompt=256, answer=64),
)


def random_model(row: Row, seed: int) -> PreTrainedModel:
    """Weights from the seed, embedding and head tied."""
    config = Qwen3Config(
        hidden_size=row.hidden,
        num_hidden_layers=row.layers,
        num_attention_heads=row.heads,
        num_key_value_heads=row.kv_heads,
        head_dim=64,
        intermediate_size=row.inner,
        vocab_size=row.vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=1,
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(config).eval()


def alphabet(row: Row) -> str:
    """A character for each token but padding and EOS: those of ASCII from the digits on, then ideographs and others."""
    codes = chain(range(ord("0"), 127), range(0x4E00, 0xD800), count(0x10000))
    return "".join(map(chr, islice(codes, row.vocabulary - 2)))


def random_prompts(row: Row, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return ["".join(drawn.choices(alphabet(row), k=row.prompt)) for _ in range(row.answers // row.group)]
