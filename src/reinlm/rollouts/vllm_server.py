"""Client of a vLLM server (`reinlm vllm-serve`): answers by HTTP, weights sent to it in memory through the same address."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import torch

from reinlm.errors import InputError, RunError
from reinlm.models import Policy
from reinlm.program import command_line
from reinlm.rollouts.answers import RunningAnswer
from reinlm.rollouts.protocol import Capabilities, Completion, Request
from reinlm.rollouts.stops import StopTexts
from reinlm.rollouts.vllm_requests import (
    advance,
    check_agreement,
    check_version,
    prepared,
    probe,
    sampling_params,
)
from reinlm.rollouts.vllm_worker import adapter_of, base_weights, model_shape, packed

GENERATE = "/inference/v1/generate"
"""vLLM's endpoint for token ids in and out."""
CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a connection."""
RELEASE_TIMEOUT = 30.0
"""Seconds to wait until requests that were cancelled have left."""


class VllmServerEngine:
    """Samples from a vLLM server that serves this run alone; implements `reinlm.rollouts.protocol.Engine`.

    `update` sends the model's weights, or its adapter once the base was sent, cast to what the server computes in, and
    names them; an answer of weights by another name is an error. The key in the environment variable VLLM_API_KEY goes
    with every call.

    Args:
        url: such as http://localhost:8000.
        max_running: requests that the server has at once.
        timeout: seconds for one answer, and for each call that sends weights.
        startup_timeout: seconds to wait for a server that does not answer yet.

    Raises:
        InputError: no server at this address, one that was started otherwise, or one of another model.
    """

    def __init__(
        self, policy: Policy, *, url: str, max_running: int = 256, timeout: float = 600.0, startup_timeout: float = 0.0
    ) -> None:
        self._policy = policy
        self._url = url.rstrip("/")
        self._max_running = max_running
        key = os.environ.get("VLLM_API_KEY")
        self._options: dict[str, Any] = {
            "base_url": self._url,
            "timeout": httpx.Timeout(timeout, connect=CONNECT_TIMEOUT, pool=None),
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "trust_env": False,
        }
        self._http = httpx.Client(**self._options)
        self._vocabulary: int = policy.model.config.get_text_config(decoder=True).vocab_size
        self._stops = StopTexts(policy.tokenizer)
        check_version(self._started(startup_timeout))
        told = self._describe()
        self._context: int = told["context_length"]
        self._dtype: torch.dtype = getattr(torch, told["dtype"])
        self._calls: dict[str, asyncio.Task[Completion]] = {}
        self._async: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient, asyncio.Semaphore] | None = None
        self._run = uuid.uuid4().hex[:12]
        self._version = self._pushed = 0
        self._adapter: str | None = None
        self._has_base = False

    @property
    def capabilities(self) -> Capabilities:
        """Log-probabilities and versions, and the server's context."""
        return Capabilities(context_length=self._context)

    async def generate(self, request: Request) -> Completion:
        """One answer. Cancelling the call aborts the request on the server.

        Raises:
            InputError: as `reinlm.rollouts.protocol.Generator` says, and for what the server refuses.
            RunError: the server is gone, or has other weights.
        """
        if not self._pushed:
            self.update(None, self._version)
        answer = prepared(request, self._calls, self._context, self._vocabulary, self._stops)
        call = asyncio.create_task(self._answered(answer))
        self._calls[request.id] = call
        try:
            return await call
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        finally:
            call.cancel()
            del self._calls[request.id]

    def abort(self, ids: Iterable[str]) -> None:
        """Cancel these requests; unknown ids are ignored. Who waits for one gets a CancelledError."""
        for name in ids:
            if name in self._calls:
                self._calls[name].cancel()

    def update(self, weights: Any, version: int) -> None:
        """Send the weights of the policy's model as they are (`weights`, a state dict, is loaded into it first), and stamp
        later tokens with `version`. Raises RunError while answers are being written."""
        if self._calls:
            raise RunError(f"a vLLM server cannot take new weights while it writes {len(self._calls)} answers")
        model: Any = self._policy.model
        if weights is not None:
            model.load_state_dict(weights)
        adapter = adapter_of(model)
        first = not self._pushed
        try:
            self._rpc("reinlm_forget")
            if adapter is None or not self._has_base:
                for piece in packed(base_weights(model), self._dtype):
                    self._rpc("reinlm_append", piece)
                self._rpc("reinlm_load")
                self._has_base = True
            if adapter is not None:
                for piece in packed(adapter.weights, self._dtype):
                    self._rpc("reinlm_append", piece)
                self._take_adapter(f"reinlm-{self._run}-{self._pushed + 1}", dict(adapter.config))
            self._empty_cache()
            self._pushed += 1
            self._post("/update_weight_version", {"new_version": self._label})
        except httpx.HTTPError as error:
            raise self._lost(error) from error
        self._version = version
        if first:
            asked = probe(self._context, self._vocabulary)
            answer = prepared(asked, {}, self._context, self._vocabulary, self._stops)
            check_agreement(self._policy, asked, self._whole(answer, self._post(GENERATE, self._body(answer))))

    def sleep(self) -> None:
        """Nothing: a server has memory of its own."""

    def wake(self) -> None:
        """Nothing, as `sleep`."""

    # ------------------------------------------------------------------------------------------ answers

    async def _answered(self, answer: RunningAnswer) -> Completion:
        client, room = self._client()
        async with room:
            if answer.strings is None:
                response = await client.post(GENERATE, json=self._body(answer))
                return self._whole(answer, self._read(response))
            body = self._body(answer) | {"stream": True}
            async with client.stream("POST", GENERATE, json=body) as response:
                if response.is_error:
                    await response.aread()
                    self._read(response)
                async for choice in _choices(response):
                    found = self._taken(answer, choice)
                    if found is not None:
                        return found
        raise RunError(f"the vLLM server at {self._url} ended the answer to {answer.request.id!r} by itself")

    def _client(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        """The client of the running event loop; connections belong to one."""
        loop = asyncio.get_running_loop()
        if self._async is None or self._async[0] is not loop:
            limits = httpx.Limits(max_connections=None)
            client = httpx.AsyncClient(limits=limits, **self._options)
            self._async = (loop, client, asyncio.Semaphore(self._max_running))
        return self._async[1:]

    def _body(self, answer: RunningAnswer) -> dict[str, Any]:
        named = {} if self._adapter is None else {"model": self._adapter}
        return {"token_ids": answer.request.token_ids, "sampling_params": sampling_params(answer), **named}

    def _whole(self, answer: RunningAnswer, told: Any) -> Completion:
        choice = told["choices"][0]
        found = self._taken(answer, choice)
        spans = {span["version"] for span in choice.get("weight_versions") or []}
        if spans - {self._label}:
            raise RunError(
                f"the vLLM server at {self._url} answered with other weights than this run sent",
                hint="it was restarted, or another run uses it: give each run a server of its own, and resume this one",
            )
        if found is None:
            raise RunError(f"the vLLM server at {self._url} ended the answer to {answer.request.id!r} by itself")
        return found

    def _taken(self, answer: RunningAnswer, choice: Any) -> Completion | None:
        tokens = choice["token_ids"] or []
        values = [entry["logprob"] for entry in choice["logprobs"]["content"]] if tokens else []
        return advance(answer, tokens, values, self._version)

    # ------------------------------------------------------------------------------------------ the server

    @property
    def _label(self) -> str:
        """The name of the weights that the server has."""
        return f"{self._run}-{self._pushed}"

    def _take_adapter(self, name: str, config: dict[str, Any]) -> None:
        self._rpc("reinlm_adapter", name, json.dumps(config))
        if self._adapter is not None:
            self._post("/v1/unload_lora_adapter", {"lora_name": self._adapter})
        self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": name})
        self._adapter = name

    def _empty_cache(self) -> None:
        """Drop keys and values of the weights before; requests that were cancelled a moment ago may hold some for a while."""
        end = time.monotonic() + RELEASE_TIMEOUT
        while not self._post("/reset_prefix_cache")["success"]:
            if time.monotonic() >= end:
                raise RunError(
                    f"the vLLM server at {self._url} does not empty its prefix cache: it writes answers for somebody else",
                    hint="give each run a server of its own",
                )
            time.sleep(0.05)

    def _started(self, patience: float) -> str:
        """vLLM's version, once the server answers."""
        end = time.monotonic() + patience
        while True:
            try:
                return str(self._post("/version", method="GET")["version"])
            except httpx.HTTPError as error:
                if time.monotonic() >= end:
                    start = command_line("vllm-serve", "MODEL")
                    hint = f"start one: {start}; or wait longer for it: rollout.engine.vllm_server.startup_timeout"
                    raise InputError(f"no vLLM server at {self._url}: {_first(error)}", hint=hint) from error
            time.sleep(0.5)

    def _describe(self) -> dict[str, Any]:
        """What the server says of itself, checked."""
        started = f"start it with {command_line('vllm-serve', 'MODEL')}"
        try:
            told: dict[str, Any] = self._rpc("reinlm_describe")[0]
            probed = self._http.post(GENERATE, json={})
        except InputError as error:
            raise InputError(f"the vLLM server at {self._url} takes no weights", hint=started) from error
        if probed.status_code in (403, 404):
            raise InputError(f"the vLLM server at {self._url} does not take token ids", hint=started)
        if told["logprobs_mode"] != "processed_logprobs":
            raise InputError(
                f"the vLLM server at {self._url} gives {told['logprobs_mode']}, not processed_logprobs", hint=started
            )
        own = model_shape(self._policy.model.config)
        for name, value in told["shape"].items():
            if None not in (value, own[name]) and value != own[name]:
                raise InputError(
                    f"the vLLM server at {self._url} serves another model: {name} {value}, not {own[name]}",
                    hint="start it with the model that is trained: model.path",
                )
        adapter = adapter_of(self._policy.model)
        if adapter is not None and adapter.rank > (told["max_lora_rank"] or 0):
            raise InputError(
                f"the vLLM server at {self._url} takes no adapter of rank {adapter.rank}",
                hint=f"{started} --lora-rank {adapter.rank}",
            )
        return told

    def _rpc(self, method: str, *arguments: str) -> list[Any]:
        told: list[Any] = self._post("/collective_rpc", {"method": method, "args": arguments})["results"]
        return told

    def _post(self, path: str, body: Any = None, *, method: str = "POST") -> Any:
        return self._read(self._http.request(method, path, json=body))

    def _read(self, response: httpx.Response) -> Any:
        """The JSON of a response. Raises InputError for what the server refuses, RunError where it failed."""
        if response.is_success:
            try:
                return response.json()
            except ValueError:
                return None
        text = f"the vLLM server at {self._url} answered {response.status_code} to {response.request.url.path}: {_told(response)}"
        raise InputError(text) if response.is_client_error else RunError(text, hint="its own output says more")

    def _lost(self, error: httpx.HTTPError) -> RunError:
        return RunError(
            f"the vLLM server at {self._url} does not answer any more: {_first(error)}",
            hint="restart it, then give the command of the run again with --resume",
        )


async def _choices(response: httpx.Response) -> AsyncIterator[Any]:
    """The parts of an answer that comes as server-sent events."""
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            told = json.loads(line.removeprefix("data: "))
            if "error" in told:
                raise RunError(f"the vLLM server failed: {told['error'].get('message', told['error'])}")
            for choice in told.get("choices", ()):
                yield choice


def _told(response: httpx.Response) -> str:
    """What a refusal says, in one line."""
    try:
        told = response.json()
        text = told["error"]["message"] if "error" in told else told["detail"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:300]


def _first(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
