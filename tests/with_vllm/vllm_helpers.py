"""What the tests with a real vLLM share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from reinlm.models import Policy, character_tokenizer, load_policy, tiny_model
from reinlm.rollouts import Completion, Engine, HFEngine, Request

CACHE = 1 << 28
"""Bytes of vLLM's key-value cache."""
ALPHABET = "0123456789+= \nabcdefghijklmnopqrstuvwxyz"


def tiny_policy(family: Any = "qwen3", *, tie: bool = True, seed: int = 0, context: int = 256) -> Policy:
    """A model whose heads are as wide as vLLM's attention on the CPU takes; peaked enough that greedy answers have no ties."""
    tokenizer = character_tokenizer(ALPHABET)
    shape: dict[str, Any] = {"hidden_size": 64, "layers": 2, "heads": 2, "context": context, "init_std": 0.4}
    return load_policy((tiny_model(family, vocab_size=len(tokenizer), tie=tie, seed=seed, **shape), tokenizer))


def answers(engine: Engine, requests: Iterable[Request]) -> list[Completion]:
    """All of them at once."""

    async def together() -> list[Completion]:
        return list(await asyncio.gather(*(engine.generate(request) for request in requests)))

    return asyncio.run(together())


def in_process(policy: Policy) -> HFEngine:
    """The engine that the answers are compared with."""
    return HFEngine(policy.model, policy.tokenizer, pad_id=policy.pad_id, context_length=policy.context_length)


def assert_same(found: Sequence[Completion], expected: Sequence[Completion], tolerance: float = 1e-4) -> None:
    """Tokens, reasons and versions are equal, log-probabilities to float32's rounding."""
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist(), one.id
        assert (one.id, one.reason) == (other.id, other.reason)
        assert one.columns["version"].tolist() == other.columns["version"].tolist()
        torch.testing.assert_close(
            torch.from_numpy(one.columns["rollout_logprobs"]),
            torch.from_numpy(other.columns["rollout_logprobs"]),
            atol=tolerance,
            rtol=tolerance,
        )


def moved(policy: Policy, by: float = 0.1, seed: int = 1) -> None:
    """Change the weights that are trained, in place, as an optimizer does."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(by * torch.randn(weight.shape, generator=noise))
