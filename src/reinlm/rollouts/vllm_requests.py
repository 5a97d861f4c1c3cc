"""What both engines of vLLM share: requests in its terms, ends of answers, and what it is checked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from reinlm.errors import InputError
from reinlm.models import Policy, score, training_mode
from reinlm.program import install
from reinlm.rollouts.answers import RunningAnswer, check_ids, check_prompt, running_answer
from reinlm.rollouts.protocol import Completion, Request, Sampling
from reinlm.rollouts.sampling import noise_key
from reinlm.rollouts.stops import StopTexts

MIN_VERSION = (0, 32)
"""The first version of vLLM whose interface this is."""
MAX_SEED = (1 << 63) - 1
MIN_TEMPERATURE = 0.01
"""vLLM raises temperatures above 0 to this."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM reserves memory for."""


def prepared(
    request: Request, running: Mapping[str, Any], context: int, vocabulary: int, stops: StopTexts
) -> RunningAnswer:
    """The answer to a request, with no token yet. Raises InputError for one that vLLM cannot answer as asked."""
    if request.id in running:
        raise InputError(f"request {request.id!r} is in flight already", hint="give every request an id of its own")
    temperature = request.sampling.temperature
    if 0 < temperature < MIN_TEMPERATURE:
        raise InputError(
            f"temperature {temperature:g}: vLLM samples at 0 (greedy) or at {MIN_TEMPERATURE} and more",
            hint=f"set the temperature to 0 or at least {MIN_TEMPERATURE}, or rollout.engine=in_process",
        )
    check_prompt(request, context, vocabulary)
    check_ids(request, "stop token", request.sampling.stop_token_ids, vocabulary)
    return running_answer(request, context, stops)


def sampling_params(answer: RunningAnswer) -> dict[str, Any]:
    """Values for `vllm.SamplingParams`. Stop strings are not among them: they are looked for here."""
    request, sampling = answer.request, answer.request.sampling
    return {
        "max_tokens": answer.limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": noise_key(request.seed, request.id) & MAX_SEED,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "detokenize": False,
    }


def advance(answer: RunningAnswer, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> Completion | None:
    """Append tokens up to the one that ends the answer; the finished answer, or None.

    Raises:
        RunError: a log-probability is not a number.
    """
    for token, logprob in zip(tokens, logprobs, strict=True):
        reason = answer.take(token, logprob, version)
        if reason is not None:
            return answer.completion(reason)
    return None


PROBE = 4
"""Tokens of the prompt by which an engine is compared with the trainer, and twice as many of the answer."""
MAX_DIFFERENCE = 0.5
"""Nats that a token's log-probabilities may differ by on average there: bfloat16 is far closer, other weights are not."""


def probe(context: int, vocabulary: int) -> Request:
    """A request whose answer says whether the engine has the trainer's weights."""
    prompt = tuple((7919 * place + 3) % vocabulary for place in range(min(PROBE, context - 1)))
    return Request("reinlm/probe", prompt, Sampling(max_new_tokens=2 * PROBE))


def check_agreement(policy: Policy, asked: Request, answer: Completion) -> None:
    """Raises InputError where the answer to `probe` has other log-probabilities than the trainer's model gives it."""
    tokens = [*asked.token_ids, *answer.token_ids.tolist()]
    with training_mode(policy.model, False), torch.no_grad():
        scored = score(policy.model, [tokens], [range(len(asked.token_ids), len(tokens))], packing="pad").logprobs
    assert scored is not None
    difference = scored.float().cpu().numpy() - answer.columns["rollout_logprobs"]
    apart = float(np.abs(difference).mean())
    if not apart <= MAX_DIFFERENCE:
        raise InputError(
            f"vLLM's log-probabilities are {apart:.2g} away from the trainer's on average: it did not take the weights of "
            f"this {policy.model.config.model_type}, or computes it otherwise",
            hint="set rollout.engine=in_process for this model on this device",
        )


def lora_settings(rank: int) -> dict[str, Any]:
    """Arguments of vLLM for one adapter of this rank."""
    room = next((size for size in RANKS if size >= rank), None)
    if room is None:
        raise InputError(f"model.lora.rank {rank}: vLLM holds adapters of rank {RANKS[-1]} at most")
    return {"enable_lora": True, "max_lora_rank": room, "max_loras": 1}


def check_version(version: str) -> None:
    """Raises InputError for a vLLM that is too old; development builds without a number pass."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (0, 0) < (int(found[1]), int(found[2])) < MIN_VERSION:
        raise InputError(
            f"vLLM {version} is too old: {MIN_VERSION[0]}.{MIN_VERSION[1]} is the oldest that works",
            hint=install("vllm"),
        )


def check_dtype(dtype: torch.dtype) -> None:
    """Raises InputError for a dtype that vLLM does not compute in."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InputError(
            f"vLLM does not compute in {str(dtype).removeprefix('torch.')}",
            hint="set rollout.engine={vllm: {dtype: float32}}, or model.dtype",
        )
