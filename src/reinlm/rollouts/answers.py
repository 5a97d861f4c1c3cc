"""One answer in flight, and the tokens that a step chose for many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from reinlm.errors import InputError, RunError
from reinlm.rollouts.protocol import Completion, Reason, Request
from reinlm.rollouts.stops import StopStrings, StopTexts

Prompt = tuple[int, ...]


@dataclass(slots=True)
class RunningAnswer:
    """One answer in flight."""

    request: Request
    limit: int
    """Tokens at most: what was asked for, or what the context still holds."""
    bound: Reason
    """Which of the two: "length" or "context"."""
    stops: frozenset[int]
    strings: StopStrings | None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Prompt and answer so far, in tokens."""
        return len(self.request.token_ids) + len(self.tokens)

    def take(self, token: int, logprob: float, version: int) -> Reason | None:
        """Append a token; why the answer ends with it, or None. Raises RunError for a log-probability that is not a number."""
        if logprob != logprob:
            raise RunError(
                f"the model's logits for request {self.request.id!r} are not finite at token {len(self.tokens)} "
                f"(policy version {version})",
                hint="the weights have diverged: go back to a checkpoint and lower the learning rate",
            )
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.stops or (self.strings is not None and self.strings.completed(self.tokens)):
            return "stop"
        return self.bound if len(self.tokens) >= self.limit else None

    def completion(self, reason: Reason) -> Completion:
        """The finished answer."""
        columns = {
            "rollout_logprobs": np.array(self.logprobs, np.float32),
            "version": np.array(self.versions, np.int32),
        }
        return Completion(self.request.id, np.array(self.tokens, np.int32), columns, reason)


def running_answer(request: Request, context: int | None, stops: StopTexts) -> RunningAnswer:
    """The answer to a request, with no token yet; prompt and answer have at most `context` tokens."""
    sampling = request.sampling
    limit: int = sampling.max_new_tokens
    bound: Reason = "length"
    if context is not None and context - len(request.token_ids) < limit:
        limit, bound = context - len(request.token_ids), "context"
    return RunningAnswer(request, limit, bound, frozenset(sampling.stop_token_ids), stops.of(sampling.stop_strings))


def check_prompt(request: Request, context: int | None, vocabulary: int) -> None:
    """Raises InputError for a prompt that is empty, leaves no room in the context or holds ids outside the vocabulary."""
    count = len(request.token_ids)
    if not count:
        raise InputError(f"request {request.id!r} has an empty prompt", hint="a prompt holds at least one token")
    if context is not None and count >= context:
        raise InputError(
            f"request {request.id!r}: a prompt of {count} tokens leaves no room for an answer "
            f"in a context of {context} tokens",
            hint="shorten or leave out the prompt, or raise the context length",
        )
    check_ids(request, "prompt token", request.token_ids, vocabulary)


def check_ids(request: Request, what: str, ids: Sequence[int], vocabulary: int) -> None:
    """Raises InputError for ids outside the vocabulary."""
    wrong = [token for token in ids if not 0 <= token < vocabulary]
    if wrong:
        raise InputError(
            f"request {request.id!r}: {what} {wrong[0]} is outside the model's vocabulary of {vocabulary}",
            hint="does the tokenizer belong to the model?",
        )


class AnswerRows(Protocol):
    """Answers in flight, and the model that writes them."""

    @property
    def live(self) -> int:
        """Answers being written."""

    def known(self, prompt: Prompt) -> bool:
        """Whether a prompt need not be read again."""

    def cost(self, prompts: Sequence[Prompt]) -> int:
        """Tokens, padding included, that reading these prompts takes."""

    def advance(self) -> None:
        """Read the newest token of every row, so that the logits for the next one stand ready."""

    def admit(self, arrivals: Sequence[tuple[Prompt, Sequence[RunningAnswer]]], waiting: bool) -> None:
        """Read the prompts that are not known, and add rows; with `waiting`, more answers to the last prompt will come.
        Between `advance` and `choose`."""

    def choose(self, version: int) -> list[tuple[RunningAnswer, Reason]]:
        """Sample a token for every row; the rows that ended with it."""

    def drop(self, ids: set[str]) -> None:
        """Drop the rows of these requests."""

    def settle(self, queued: bool) -> None:
        """After a step: give back what is not needed."""

    def forget(self) -> None:
        """The weights have changed: prompts that were read before are read anew for answers that come later."""

    def clear(self) -> None:
        """Forget everything."""


def take_tokens(
    rows: Sequence[RunningAnswer | None], tokens: Tensor, logprobs: Tensor, version: int
) -> list[tuple[int, Reason]]:
    """Append a token to every row; the rows that ended with it, and why. Waits for the device once.

    Args:
        rows: None is passed over.
        tokens: [R] int64.
        logprobs: [R] of those tokens.

    Raises:
        RunError: a log-probability is not a number.
    """
    ended: list[tuple[int, Reason]] = []
    for index, (row, token, logprob) in enumerate(zip(rows, tokens.tolist(), logprobs.tolist(), strict=True)):
        if row is not None and (reason := row.take(token, logprob, version)) is not None:
            ended.append((index, reason))
    return ended
