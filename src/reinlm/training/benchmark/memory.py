"""How much memory a step takes, estimated from a configuration before any weight is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from reinlm.algorithms import Algorithm
from reinlm.errors import InputError
from reinlm.models.modules import count_parameters
from reinlm.models.token_model import CHUNK_ELEMENTS
from reinlm.training.benchmark.config import BenchConfig
from reinlm.training.benchmark.work import ModelWork

GIB = 2**30
KEPT = 20
"""Values as wide as the model that a layer keeps of a token for the backward pass; measured on Qwen3 shapes, with KEPT_INNER."""
KEPT_INNER = 6
"""Values as wide as the feed-forward layer likewise."""


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes that a step takes, by what they are for.

    Example: 3.2 M parameters in float32:
        MemoryNeeds(weights=12_800_000, gradients=12_800_000, optimizer=25_600_000, reference=12_800_000, critic=0,
                    cache=20_000_000, activations=600_000_000, logits=4_000_000)
    """

    weights: int
    gradients: int
    optimizer: int
    """AdamW's two moments."""
    reference: int
    critic: int
    """Weights, gradients and moments of a critic of its own."""
    cache: int
    """Keys and values of the answers that run at once, and of their prompts."""
    activations: int
    """What a micro-batch keeps for its backward pass."""
    logits: int
    """Of one chunk: the logits, their softmax and their gradient."""

    @property
    def total(self) -> int:
        """Of a step: weights and their kind, and the larger of what sampling and what the update take."""
        fixed = self.weights + self.gradients + self.optimizer + self.reference + self.critic
        return fixed + max(self.cache, self.activations + self.logits)


def memory_needs(model: Any, work: ModelWork, config: BenchConfig, algorithm: Algorithm) -> MemoryNeeds:
    """What a step of a configuration takes.

    Args:
        model: the model, which may be without values (`reinlm.models.loading.empty_model`).
    """
    bytes_each = model.dtype.itemsize
    settings = model.config.get_text_config(decoder=True)
    count, rollout = count_parameters(model), config.rollout
    adapted = hasattr(model, "peft_config")
    frozen, trained = count.total * bytes_each, count.trainable * bytes_each
    running = min(rollout.max_running, rollout.batch_size)
    prompts = -(-running // rollout.group_size)
    tokens = rollout.groups * rollout.prompt_tokens + rollout.batch_size * rollout.max_new_tokens
    micro = min(config.training.micro_batch_tokens, tokens)
    chunk = config.training.logprob_chunk or max(1, CHUNK_ELEMENTS // settings.vocab_size)
    return MemoryNeeds(
        weights=frozen,
        gradients=trained,
        optimizer=2 * trained,
        reference=frozen if algorithm.needs_reference and not adapted else 0,
        critic=4 * trained if algorithm.critic is not None else 0,
        cache=work.cache_bytes * (prompts * rollout.prompt_tokens + running * rollout.max_new_tokens),
        activations=micro * _kept(settings, work, config) * bytes_each,
        logits=3 * 4 * settings.vocab_size * min(chunk, rollout.batch_size * rollout.max_new_tokens),
    )


def _kept(settings: Any, work: ModelWork, config: BenchConfig) -> int:
    """Values that the layers keep of each token."""
    layers, hidden = len(work.windows), int(settings.hidden_size)
    inner = getattr(settings, "intermediate_size", None) or 4 * hidden
    layer = KEPT * max(work.width, hidden) + KEPT_INNER * int(inner)
    return layers * hidden + layer if config.model.gradient_checkpointing else layers * layer


def check_memory(name: str, needs: MemoryNeeds, free: int, device: torch.device) -> None:
    """Raises InputError where a step needs more than is free; it says how much, what for, and what to set."""
    if needs.total <= free:
        return
    parts = ", ".join(f"{part} {size / GIB:,.1f}" for part, size in asdict(needs).items() if size / GIB >= 0.05)
    changes = ["model.lora.rank=16"] if needs.optimizer > needs.weights else []
    if needs.activations + needs.logits > needs.cache:
        changes += ["model.gradient_checkpointing=true", "a smaller training.micro_batch_tokens"]
    else:
        changes += ["a smaller rollout.max_running"]
    raise InputError(
        f"{name} needs about {needs.total / GIB:,.1f} GiB ({parts}), and {free / GIB:,.1f} GiB of {device.type} memory are "
        "free",
        hint=f"set {', '.join(changes)}, or model.dtype=bfloat16, or take a smaller model",
    )
