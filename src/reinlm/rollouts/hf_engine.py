"""The in-process engine: samples from a Hugging Face model whose weights the trainer shares."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reinlm.errors import InputError, RunError
from reinlm.models.modules import training_mode
from reinlm.rollouts.batch import Arrival, Batch, RunningAnswer
from reinlm.rollouts.cache import Part, RowCache, assemble, check_supported
from reinlm.rollouts.driver import Driver
from reinlm.rollouts.protocol import Capabilities, Completion, Reason, Request
from reinlm.rollouts.stops import StopStrings, TokenText

_LENGTH: Reason = "length"
_CONTEXT: Reason = "context"


@dataclass(frozen=True)
class _Prefilled:
    """A prompt that is read, kept while samples of it still wait for room."""

    prompt: tuple[int, ...]
    cache: RowCache
    logits: Tensor


class HFEngine:
    """Continuous batching over a causal language model; implements `reinlm.rollouts.protocol.Engine`.

    Requests with the same prompt share one reading of it, whenever they are admitted. A row leaves the batch when its
    answer ends, and waiting requests take the room. Every step runs without gradient and in evaluation mode, and leaves
    the model in the mode that it found. After `update` in mid-flight, running answers keep the keys and values of the
    older weights, and each token is stamped with the version that chose it.

    A step that raises or is interrupted drops everything in flight, so the engine is never left half-advanced.

    Args:
        model: a Hugging Face decoder (or a PEFT model around one) with full or sliding-window attention.
        tokenizer: decodes answers for stop strings.
        pad_id: the token that fills the left of shorter prompts; any id of the vocabulary, for it is never attended to.
        context_length: prompt and answer together never exceed it; by default what the model's configuration says.
        max_batch: answers written at the same time.
        prefill_tokens: prompt tokens, padding included, that one step reads at most (one prompt always goes).
        autocast_dtype: run the model under autocast to this type.

    `generate` serves coroutines; below it stands a synchronous core, `submit` and `step`, which serves callers without an
    event loop. A caller uses one or the other.

    Example:
        engine = HFEngine(model, tokenizer, pad_id=0)
        engine.submit([Request(id="a", token_ids=(5, 6, 7), sampling=Sampling(max_new_tokens=8))])
        while engine.in_flight:
            for completion in engine.step():
                print(completion.token_ids)
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        *,
        pad_id: int,
        context_length: int | None = None,
        max_batch: int = 256,
        prefill_tokens: int = 16384,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        for name, value in (
            ("max_batch", max_batch),
            ("prefill_tokens", prefill_tokens),
            ("context_length", context_length),
        ):
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        check_supported(model.config)
        config: Any = model.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
        self._model = model
        self._device = next(model.parameters()).device
        self._vocabulary: int = config.vocab_size
        limit = getattr(config, "max_position_embeddings", None)
        self._context = context_length or limit
        if context_length is not None and limit is not None and context_length > limit:
            raise InputError(f"context_length {context_length} exceeds the model's {limit} positions")
        self._pad_id = pad_id
        self._max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._autocast_dtype = autocast_dtype
        inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        takes = inspect.signature(inner.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._text = TokenText(tokenizer)
        self._strings: dict[tuple[str, ...], StopStrings] = {}
        self._version = 0
        self._asleep = False
        self._queue: dict[tuple[int, ...], deque[RunningAnswer]] = {}
        self._ids: set[str] = set()
        self._kept: _Prefilled | None = None
        self._batch = Batch(self._device, self._context)
        self._driver = Driver(self)

    @property
    def capabilities(self) -> Capabilities:
        """Log-probabilities and versions, the context, and updates while answers are being written."""
        return Capabilities(context_length=self._context, in_flight_update=True)

    async def generate(self, request: Request) -> Completion:
        """One answer, as `reinlm.rollouts.protocol.Generator` says; one driver advances all that are awaited."""
        return await self._driver.generate(request)

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._ids)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests: all of them, or none where one is wrong.

        Raises:
            InputError: a prompt that is empty, leaves no room in the context or holds ids outside the vocabulary; a
                stop token outside the vocabulary; an id that is in flight.
        """
        requests = list(requests)
        new: set[str] = set()
        prompts: set[tuple[int, ...]] = set()
        for request in requests:
            if request.id in self._ids or request.id in new:
                raise InputError(
                    f"request {request.id!r} is in flight already", hint="give every request an id of its own"
                )
            new.add(request.id)
            if request.token_ids not in self._queue and request.token_ids not in prompts:
                self._check_prompt(request)
                prompts.add(request.token_ids)
            self._check_ids(request, "stop token", request.sampling.stop_token_ids)
        for request in requests:
            self._queue.setdefault(request.token_ids, deque()).append(self._row(request))
        self._ids |= new

    def step(self) -> Sequence[Completion]:
        """Admit what there is room for, advance every answer by one token, and return those that ended.

        Raises:
            RunError: the engine is asleep, or the model's logits are not finite.
        """
        if self._asleep:
            raise RunError("the engine is asleep", hint="call wake() before step()")
        if not self._ids:
            return []
        try:
            with self._inference():
                if self._batch.live:
                    self._batch.advance(self._forward)
                arrivals = self._admit()
                if arrivals:
                    self._batch.extend(arrivals)
                ended = self._batch.choose(self._version)
                self._tidy()
        except BaseException:
            self._reset()
            raise
        completions = [row.completion(reason) for row, reason in ended]
        self._ids.difference_update(completion.id for completion in completions)
        return completions

    def abort(self, ids: Iterable[str]) -> None:
        """Drop these requests; unknown ids are ignored."""
        gone = self._ids & set(ids)
        if not gone:
            return
        self._ids -= gone
        for prompt, waiting in list(self._queue.items()):
            self._queue[prompt] = deque(row for row in waiting if row.request.id not in gone)
            if not self._queue[prompt]:
                del self._queue[prompt]
        self._batch.drop(gone)
        with torch.no_grad():
            self._tidy()

    def update(self, weights: Any, version: int) -> None:
        """Stamp later tokens with `version`; load `weights`, a state dict, unless they are shared (None)."""
        if weights is not None:
            self._model.load_state_dict(weights)
        self._version = version
        self._kept = None  # read by older weights

    def sleep(self) -> None:
        """Give the caches back. Raises RunError while answers are being written: they would be lost."""
        if self._batch.live:
            raise RunError(
                f"the engine cannot sleep with {self._batch.live} answers being written",
                hint="step until in_flight is 0, or abort them",
            )
        self._asleep = True
        self._kept = None
        self._batch.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Be ready to sample again."""
        self._asleep = False

    def _reset(self) -> None:
        self._queue.clear()
        self._ids.clear()
        self._kept = None
        self._batch.clear()

    def _row(self, request: Request) -> RunningAnswer:
        sampling = request.sampling
        limit, bound = sampling.max_new_tokens, _LENGTH
        if self._context is not None and self._context - len(request.token_ids) < limit:
            limit, bound = self._context - len(request.token_ids), _CONTEXT
        strings = None
        if sampling.stop_strings:
            strings = self._strings.setdefault(sampling.stop_strings, StopStrings(sampling.stop_strings, self._text))
        return RunningAnswer(request, limit, bound, frozenset(sampling.stop_token_ids), strings)

    def _check_prompt(self, request: Request) -> None:
        count = len(request.token_ids)
        if not count:
            raise InputError(f"request {request.id!r} has an empty prompt", hint="a prompt holds at least one token")
        if self._context is not None and count >= self._context:
            raise InputError(
                f"request {request.id!r}: a prompt of {count} tokens leaves no room for an answer "
                f"in a context of {self._context} tokens",
                hint="shorten or leave out the prompt, or raise the context length",
            )
        self._check_ids(request, "prompt token", request.token_ids)

    def _check_ids(self, request: Request, what: str, ids: Sequence[int]) -> None:
        wrong = [token for token in ids if not 0 <= token < self._vocabulary]
        if wrong:
            raise InputError(
                f"request {request.id!r}: {what} {wrong[0]} is outside the model's vocabulary of {self._vocabulary}",
                hint="does the tokenizer belong to the model?",
            )

    def _admit(self) -> list[Arrival]:
        """Take waiting rows, all samples of a prompt before the next prompt, and read the prompts that are new."""
        room = self._max_batch - self._batch.live
        queued = sum(len(waiting) for waiting in self._queue.values())
        # Joining copies the whole cache, so a full batch waits until an eighth of it is free.
        if not queued or room < min(queued, max(1, self._max_batch // 8)):
            return []
        arrivals = []
        fresh: list[tuple[int, ...]] = []
        rows: list[RunningAnswer] = []
        lines: list[int] = []
        longest = 0
        for prompt in list(self._queue):
            if not room:
                break
            kept = self._kept
            if kept is not None and kept.prompt == prompt:
                taken = self._take(prompt, room)
                arrivals.append(Arrival(taken, [0] * len(taken), kept.cache, kept.logits))
            else:
                longest = max(longest, len(prompt))
                if fresh and (len(fresh) + 1) * longest > self._prefill_tokens:
                    break
                taken = self._take(prompt, room)
                rows += taken
                lines += [len(fresh)] * len(taken)
                fresh.append(prompt)
            room -= len(taken)
        if fresh:
            cache, logits = self._prefill(fresh)
            arrivals.append(Arrival(rows, lines, cache, logits))
        return arrivals

    def _take(self, prompt: tuple[int, ...], room: int) -> list[RunningAnswer]:
        waiting = self._queue[prompt]
        taken = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if not waiting:
            del self._queue[prompt]
        return taken

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[RowCache, Tensor]:
        """Read prompts in one batch, padded on the left; their cache and the logits of the first answer token."""
        longest = max(len(prompt) for prompt in prompts)
        pads = [longest - len(prompt) for prompt in prompts]
        ids = [[self._pad_id] * pad + list(prompt) for pad, prompt in zip(pads, prompts, strict=True)]
        columns = torch.arange(longest, device=self._device)
        positions = columns - torch.tensor(pads, device=self._device)[:, None]
        mask = (positions >= 0).long() if any(pads) else None
        cache = RowCache()
        logits = self._forward(torch.tensor(ids, device=self._device), positions.clamp(min=0), mask, cache)
        if prompts[-1] in self._queue:  # room ran out between its samples
            line = torch.tensor([len(prompts) - 1], device=self._device)
            self._kept = _Prefilled(prompts[-1], assemble([Part(cache, line, pads[-1])]), logits[-1:])
        else:
            self._kept = None
        return cache, logits

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: RowCache) -> Tensor:
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **self._last_only,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _tidy(self) -> None:
        """Remove inactive rows where they are a quarter of the batch and nothing waits that would replace them anyway."""
        if not self._queue:
            self._kept = None  # what comes later is read anew, whatever was asked for before
        inactive = len(self._batch) - self._batch.live
        if not self._batch.live:
            self._batch.clear()
        elif not self._queue and 4 * inactive >= len(self._batch):
            self._batch.compact()

    @contextlib.contextmanager
    def _inference(self) -> Iterator[None]:
        """No gradient; autocast if asked; evaluation mode, so that neither dropout nor checkpointing interferes."""
        autocast = torch.autocast(self._device.type, self._autocast_dtype, enabled=self._autocast_dtype is not None)
        with training_mode(self._model, False), torch.no_grad(), autocast:
            yield
