"""From prompts to rollouts: ask an engine for groups of answers and keep what only the sampler knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field, field_validator

from reinlm.config import Config
from reinlm.errors import InputError, RunError
from reinlm.records import Message, Prompt, Rollout, RolloutGroup, Segment
from reinlm.rollouts.protocol import MIN_TEMPERATURE, Completion, Engine, Request, Sampling


class SamplingConfig(Config):
    """How a recipe asks for answers to be sampled."""

    max_new_tokens: int = Field(256, ge=1)
    """Tokens of an answer at most; one that reaches it counts as truncated."""
    temperature: float = Field(1.0, ge=0.0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Sample from the smallest set of tokens with this mass; 1 is off."""
    top_k: int = Field(0, ge=0)
    """Sample from this many of the likeliest tokens; 0 is off."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer beside the model's own."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end an answer; they stay in it."""

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, temperature: float) -> float:
        if 0 < temperature < MIN_TEMPERATURE:
            raise ValueError(f"must be 0 (greedy) or at least {MIN_TEMPERATURE}")
        return temperature

    @field_validator("stop_strings")
    @classmethod
    def _not_empty(cls, strings: tuple[str, ...]) -> tuple[str, ...]:
        if "" in strings:
            raise ValueError("a stop string cannot be empty: every answer would end at its first token")
        return strings

    def sampling(self, stops: Sequence[int]) -> Sampling:
        """These settings for an engine, with `stops`, the model's own stop tokens, in front."""
        return Sampling(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop_token_ids=tuple(dict.fromkeys((*stops, *self.stop_token_ids))),
            stop_strings=self.stop_strings,
        )


def check_trainable(sampling: Sampling | SamplingConfig) -> None:
    """Refuse settings whose samples cannot be trained on.

    Raises:
        InputError: temperature 0 (a greedy answer has no probability to raise), or top-p / top-k (the trainer's
            log-probabilities are over the whole vocabulary, the sampler's over the tokens that were left standing, so
            their ratio would be wrong even before the first update).
    """
    if sampling.temperature == 0:
        raise InputError(
            "temperature 0 cannot be trained on: greedy answers to a prompt are all the same and were not sampled",
            hint="set temperature=1.0; evaluation may be greedy",
        )
    for name, value, off in (("top_p", sampling.top_p, 1.0), ("top_k", sampling.top_k, 0)):
        if value != off:
            raise InputError(
                f"{name}={value} cannot be trained on: the trainer's log-probabilities are over the whole vocabulary, "
                "the sampler's over the tokens that the truncation kept",
                hint=f"set {name}={off} for training; evaluation may truncate",
            )


def collect(
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    group_size: int,
    sampling: Sampling,
    seed: int,
    tag: str,
    tokenizer: Any,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[RolloutGroup]:
    """Sample `group_size` answers to every prompt.

    The noise depends on (seed, tag, prompt id, index of the sample) alone: not on the other prompts, their order or the
    engine's batch.

    Args:
        engine: with nothing in flight.
        tag: what the samples are for, such as "train/12": the same seed and tag give the same answers.
        tokenizer: turns answers into text, without special tokens and without the stop token.
        on_progress: called with (answers finished, answers asked for) whenever some finished.

    Returns:
        One group for each prompt, in the order of `prompts`.

    Raises:
        InputError: two prompts of the same id, or what the engine refuses.
        RunError: the engine has other requests in flight.
    """
    if engine.in_flight:
        raise RunError(f"the engine has {engine.in_flight} other requests in flight", hint="step or abort them first")
    names = [[f"{tag}/{prompt.id}/{sample}" for sample in range(group_size)] for prompt in prompts]
    _check(prompts, group_size)
    done: dict[str, Completion] = {}
    total = len(prompts) * group_size
    try:
        groups = zip(prompts, names, strict=True)
        engine.submit([Request(name, prompt.token_ids, sampling, seed) for prompt, ids in groups for name in ids])
        while len(done) < total:
            finished = engine.step()
            done.update((completion.id, completion) for completion in finished)
            if finished and on_progress is not None:
                on_progress(len(done), total)
    except BaseException:
        engine.abort([name for ids in names for name in ids])
        raise
    stops = frozenset(sampling.stop_token_ids)
    return [
        RolloutGroup(prompt, tuple(_rollout(prompt, done[name], stops, tokenizer) for name in ids))
        for prompt, ids in zip(prompts, names, strict=True)
    ]


def _check(prompts: Sequence[Prompt], group_size: int) -> None:
    if group_size < 1:
        raise InputError(f"group_size must be at least 1, not {group_size}")
    twice = [name for name, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise InputError(
            f"prompt {twice[0]!r} stands twice among the prompts to sample",
            hint="the same prompt would get the same answers; raise group_size instead",
        )


def _rollout(prompt: Prompt, answer: Completion, stops: frozenset[int], tokenizer: Any) -> Rollout:
    segment = Segment(
        token_ids=prompt.token_ids + answer.token_ids,
        chosen=(False,) * len(prompt.token_ids) + (True,) * len(answer.token_ids),
        rollout_logprobs=answer.logprobs,
        versions=answer.versions,
        end=answer.end,
    )
    ids = answer.token_ids[:-1] if answer.token_ids[-1] in stops else answer.token_ids
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    completion: str | tuple[Message, ...] = text
    if not isinstance(prompt.content, str):
        completion = ({"role": "assistant", "content": text},)
    return Rollout(prompt, (segment,), completion)
