"""What the rollout tests share: sizes, ragged prompts, and running an engine dry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Capabilities, Completion, Request, Sampling

VOCABULARY = 300
PAD, EOS = 0, 1
CONTEXT = 48

ModelMaker = Callable[..., Any]

RAGGED = [(5, 6, 7), (8,), (9, 10, 11, 12, 13, 14, 15), (20, 21), (30, 31, 32, 33, 34), (40, 41, 42, 43)]


def requests(
    sampling: Sampling, prompts: list[tuple[int, ...]] = RAGGED, samples: int = 1, seed: int = 0
) -> list[Request]:
    """`samples` requests a prompt, named "prompt/sample"."""
    return [Request(f"{i}/{k}", prompt, sampling, seed) for i, prompt in enumerate(prompts) for k in range(samples)]


def drain(engine: HFEngine) -> dict[str, Completion]:
    """Step until nothing is in flight."""
    done: dict[str, Completion] = {}
    while engine.in_flight:
        for completion in engine.step():
            assert completion.id not in done
            done[completion.id] = completion
    return done


def run(engine: HFEngine, asked: list[Request]) -> dict[str, Completion]:
    """Submit and drain."""
    engine.submit(asked)
    return drain(engine)


def ids(completion: Completion) -> tuple[int, ...]:
    """The sampled tokens as plain numbers."""
    return tuple(completion.token_ids.tolist())


def logprobs(completion: Completion) -> list[float]:
    """The sampler's log-probabilities as plain numbers."""
    return [float(value) for value in completion.columns["rollout_logprobs"]]


LINES = (
    "{% for m in messages %}{{ m.role[0] }}:"
    "{% if m.role == 'assistant' %}{{ m.content[:1] if short else m.content }}<eos>{% else %}{{ m.content }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
"""A chat template: a message is its role's first letter, a colon, its content, and a line break, or EOS for an
assistant's. With `short` it cuts answers to a letter once they are read again, so that nothing can be extended."""


class ScriptedEngine:
    """Answers by the request's name: text, ended by EOS unless the script gives another reason."""

    def __init__(self, tokenizer: Any, script: Mapping[str, str | tuple[str, Any]], context: int | None = None) -> None:
        self.tokenizer = tokenizer
        self.script = script
        self.asked: list[Request] = []
        self.capabilities = Capabilities(context_length=context)

    async def generate(self, request: Request) -> Completion:
        self.asked.append(request)
        answer = self.script[request.id]
        reason: Any
        text, reason = answer if isinstance(answer, tuple) else (answer, "stop")
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] + ([EOS] if reason == "stop" else [])
        numbers = np.arange(1, len(ids) + 1)
        return Completion(request.id, ids, {"rollout_logprobs": -numbers / 8, "version": numbers * 0 + 3}, reason)


def full_logprobs(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...], temperature: float) -> list[float]:
    """Log-probabilities of the answer by one forward over the whole sequence, without cache or padding."""
    ids = torch.tensor([prompt + answer])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    table = (logits.double() / temperature).log_softmax(-1)
    return table[torch.arange(len(answer)), torch.tensor(answer)].tolist()
