"""What the rollout tests share: sizes, ragged prompts, and running an engine dry."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel

from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Completion, Request, Sampling

VOCABULARY = 300
PAD, EOS = 0, 1
CONTEXT = 48

ModelMaker = Callable[..., PreTrainedModel]

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
