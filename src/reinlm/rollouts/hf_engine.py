"""The in-process engine: samples from a Hugging Face model whose weights the trainer shares."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from reinlm.errors import InputError, RunError
from reinlm.models.decoder import row_forward
from reinlm.models.heads import split_head
from reinlm.models.modules import training_mode
from reinlm.models.threads import threads_for_sampling, using_threads
from reinlm.rollouts.answers import AnswerRows, Prompt, RunningAnswer, check_ids, check_prompt, running_answer
from reinlm.rollouts.cache import RowCache, check_supported
from reinlm.rollouts.driver import Driver
from reinlm.rollouts.padded_rows import PaddedRows
from reinlm.rollouts.protocol import Capabilities, Completion, Request
from reinlm.rollouts.slots import Slots
from reinlm.rollouts.stops import StopTexts


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
        self._threads = threads_for_sampling(model)
        self._max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._autocast_dtype = autocast_dtype
        inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
        takes = inspect.signature(inner.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._stops = StopTexts(tokenizer)
        self._version = 0
        self._asleep = False
        self._queue: dict[Prompt, deque[RunningAnswer]] = {}
        self._ids: set[str] = set()
        self._rows: AnswerRows = self._make_rows(pad_id)
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
        prompts: set[Prompt] = set()
        for request in requests:
            if request.id in self._ids or request.id in new:
                raise InputError(
                    f"request {request.id!r} is in flight already", hint="give every request an id of its own"
                )
            new.add(request.id)
            if request.token_ids not in self._queue and request.token_ids not in prompts:
                check_prompt(request, self._context, self._vocabulary)
                prompts.add(request.token_ids)
            check_ids(request, "stop token", request.sampling.stop_token_ids, self._vocabulary)
        for request in requests:
            answer = running_answer(request, self._context, self._stops)
            self._queue.setdefault(request.token_ids, deque()).append(answer)
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
                if self._rows.live:
                    self._rows.advance()
                arrivals = self._arrivals()
                if arrivals:
                    self._rows.admit(arrivals, waiting=arrivals[-1][0] in self._queue)
                ended = self._rows.choose(self._version)
                self._rows.settle(bool(self._queue))
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
        with self._without_gradient():  # as the cache was made
            self._rows.drop(gone)
            self._rows.settle(bool(self._queue))

    def update(self, weights: Any, version: int) -> None:
        """Stamp later tokens with `version`; load `weights`, a state dict, unless they are shared (None)."""
        if weights is not None:
            self._model.load_state_dict(weights)
        self._version = version
        self._rows.forget()

    def sleep(self) -> None:
        """Give the caches back. Raises RunError while answers are being written: they would be lost."""
        if self._rows.live:
            raise RunError(
                f"the engine cannot sleep with {self._rows.live} answers being written",
                hint="step until in_flight is 0, or abort them",
            )
        self._asleep = True
        self._rows.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Be ready to sample again."""
        self._asleep = False

    def _reset(self) -> None:
        self._queue.clear()
        self._ids.clear()
        self._rows.clear()

    def _make_rows(self, pad_id: int) -> AnswerRows:
        try:
            forward = row_forward(self._model)
        except InputError:  # its logits are not a head's on a backbone's states: it can be sampled from, not trained
            forward = None
        if forward is None:
            return PaddedRows(self._forward, self._device, self._context, pad_id)
        return Slots(forward, split_head(self._model).logits, self._device)

    def _arrivals(self) -> list[tuple[Prompt, list[RunningAnswer]]]:
        """Waiting rows that there is room for, all samples of a prompt before the next prompt."""
        room = self._max_batch - self._rows.live
        queued = len(self._ids) - self._rows.live
        # Reading a prompt alone costs nearly what reading several does, so a full batch waits until an eighth of it is free.
        if not queued or room < min(queued, max(1, self._max_batch // 8)):
            return []
        arrivals: list[tuple[Prompt, list[RunningAnswer]]] = []
        fresh: list[Prompt] = []
        for prompt in list(islice(self._queue, room)):  # each has an answer at least
            if not room:
                break
            if not self._rows.known(prompt):
                if fresh and self._rows.cost([*fresh, prompt]) > self._prefill_tokens:
                    break
                fresh.append(prompt)
            taken = self._take(prompt, room)
            arrivals.append((prompt, taken))
            room -= len(taken)
        return arrivals

    def _take(self, prompt: Prompt, room: int) -> list[RunningAnswer]:
        waiting = self._queue[prompt]
        taken = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if not waiting:
            del self._queue[prompt]
        return taken

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

    def _without_gradient(self) -> contextlib.AbstractContextManager[None]:
        """Inference mode, which takes less time for each operation; not for a sharded model, whose gathered weights are
        allocated in the first pass and trained on later."""
        sharded = hasattr(next(self._model.parameters()), "full_tensor")
        return torch.no_grad() if sharded else torch.inference_mode()

    @contextlib.contextmanager
    def _inference(self) -> Iterator[None]:
        """No gradient; autocast if asked; evaluation mode, so that neither dropout nor checkpointing interferes."""
        kind, dtype = self._device.type, self._autocast_dtype
        autocast: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if dtype is not None or torch.is_autocast_enabled(kind):  # also to turn off what the caller turned on
            autocast = torch.autocast(kind, dtype, enabled=dtype is not None)
        with using_threads(self._threads), training_mode(self._model, False), self._without_gradient(), autocast:
            yield
