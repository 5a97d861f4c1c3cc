"""vLLM in the trainer's process: it samples, the trainer hands it new weights in memory."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from reinlm.errors import InputError, RunError, unknown
from reinlm.models import Policy
from reinlm.program import install
from reinlm.rollouts.answers import RunningAnswer
from reinlm.rollouts.driver import Driver
from reinlm.rollouts.protocol import Capabilities, Completion, Request
from reinlm.rollouts.stops import StopTexts
from reinlm.rollouts.vllm_requests import (
    advance,
    check_agreement,
    check_dtype,
    check_version,
    lora_settings,
    prepared,
    probe,
    sampling_params,
)
from reinlm.rollouts.vllm_worker import EXTENSION, adapter_of, base_weights

OURS = frozenset({
    "model", "dtype", "max_model_len", "max_num_seqs", "seed", "load_format", "skip_tokenizer_init", "logprobs_mode",
    "worker_extension_cls", "enable_prefix_caching", "enable_lora", "max_lora_rank", "max_loras", "enforce_eager",
    "gpu_memory_utilization", "enable_sleep_mode", "generation_config", "runner", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size",
})  # fmt: skip
"""Arguments of vLLM that this engine sets itself."""


class VllmEngine:
    """vLLM's engine, advanced a step at a time in this process; implements `reinlm.rollouts.protocol.Engine`.

    Weights are taken from `policy.model` by `update`, in memory and under the names of a checkpoint, and the prefix cache is
    emptied. A model of peft gives its base once and its adapter at each update. Ends of answers are found here, so that
    they are those of `HFEngine`.

    Args:
        dtype: what vLLM computes in; the weights are cast to it.
        max_running: answers written at the same time.
        gpu_memory_utilization: share of the device's memory (on the CPU: of main memory) for weights and cache.
        enforce_eager: neither CUDA graphs nor `torch.compile`.
        enable_sleep_mode: `sleep` gives weights and cache back. Without effect where vLLM has no sleep mode, as on the CPU.
        engine_args: further arguments of `vllm.EngineArgs`.

    Raises:
        InputError: vLLM is missing or too old; a dtype that it lacks; an unknown engine argument, or one that is set here.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        dtype: torch.dtype,
        max_running: int = 256,
        gpu_memory_utilization: float = 0.3,
        enforce_eager: bool = False,
        enable_sleep_mode: bool = True,
        engine_args: Mapping[str, Any] | None = None,
    ) -> None:
        check_version(_import_vllm().__version__)
        check_dtype(dtype)
        self._policy = policy
        adapter = adapter_of(policy.model)
        self._folder = tempfile.TemporaryDirectory(prefix="reinlm-vllm-")
        settings: dict[str, Any] = {
            "model": _model_folder(policy, self._folder.name),
            "runner": "generate",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "load_format": "dummy",
            "dtype": str(dtype).removeprefix("torch."),
            "max_model_len": policy.context_length,
            "max_num_seqs": max_running,
            "seed": 0,
            "logprobs_mode": "processed_logprobs",
            "worker_extension_cls": EXTENSION,
            "enable_prefix_caching": True,
            "gpu_memory_utilization": gpu_memory_utilization,
            "enforce_eager": enforce_eager,
            "enable_sleep_mode": enable_sleep_mode and _can_sleep(),
            "disable_log_stats": True,
        }
        if adapter is not None:
            settings |= lora_settings(adapter.rank)
        with _outside_as_before():
            self._llm = _llm_engine({**settings, **_checked(engine_args or {})})
        self._context: int = self._llm.model_config.max_model_len
        self._vocabulary: int = policy.model.config.get_text_config(decoder=True).vocab_size
        self._sleeps = bool(settings["enable_sleep_mode"])
        self._stops = StopTexts(policy.tokenizer)
        self._running: dict[str, RunningAnswer] = {}
        self._version = 0
        self._has_base = self._has_newest = self._agrees = False
        self._lora: Any = None
        self._driver = Driver(self)

    @property
    def capabilities(self) -> Capabilities:
        """Log-probabilities and versions, the context, and whether it can sleep."""
        return Capabilities(context_length=self._context, sleeps=self._sleeps)

    async def generate(self, request: Request) -> Completion:
        """One answer, as `reinlm.rollouts.protocol.Generator` says; one driver advances all that are awaited."""
        return await self._driver.generate(request)

    @property
    def in_flight(self) -> int:
        """Requests submitted and not yet returned."""
        return len(self._running)

    def submit(self, requests: Iterable[Request]) -> None:
        """Queue requests. Raises InputError for one that cannot be answered, or whose id is in flight."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        if not self._has_newest:
            self.update(None, self._version)
        for request in requests:
            answer = prepared(request, self._running, self._context, self._vocabulary, self._stops)
            settings = SamplingParams(**sampling_params(answer), output_kind=RequestOutputKind.DELTA)
            prompt = tokens_input(list(request.token_ids))
            self._llm.add_request(request.id, prompt, settings, lora_request=self._lora)
            self._running[request.id] = answer

    def step(self) -> Sequence[Completion]:
        """Advance every answer by a token; those that ended."""
        done: list[Completion] = []
        cut: list[str] = []
        try:
            for output in self._llm.step():
                answer = self._running.get(output.request_id)
                if answer is None:
                    continue
                (part,) = output.outputs
                values = [entry[token].logprob for entry, token in zip(part.logprobs, part.token_ids, strict=True)]
                completion = advance(answer, part.token_ids, values, self._version)
                if completion is not None:
                    del self._running[output.request_id]
                    done.append(completion)
                    if not output.finished:
                        cut.append(output.request_id)
                elif output.finished:
                    raise RunError(f"vLLM ended request {output.request_id!r} by itself: {part.finish_reason}")
            self._llm.abort_request(cut)
        except BaseException:
            with contextlib.suppress(Exception):  # an engine that is broken cannot abort either
                self.abort(list(self._running))
            self._running.clear()
            raise
        return done

    def abort(self, ids: Iterable[str]) -> None:
        """Drop these requests; unknown ids are ignored."""
        gone = [name for name in ids if self._running.pop(name, None) is not None]
        if gone:
            self._llm.abort_request(gone)

    def update(self, weights: Any, version: int) -> None:
        """Take the weights of the policy's model as they are (`weights`, a state dict, is loaded into it first), and stamp
        later tokens with `version`. Raises RunError while answers are being written."""
        if self._running:
            raise RunError(f"vLLM cannot take new weights while it writes {len(self._running)} answers")
        model: Any = self._policy.model
        if weights is not None:
            model.load_state_dict(weights)
        adapter = adapter_of(model)
        if adapter is None or not self._has_base:
            self._llm.collective_rpc("reinlm_load", args=(base_weights(model).items(),))
            self._has_base = True
        if adapter is not None:
            self._take_adapter(adapter)
        if not self._llm.reset_prefix_cache():
            raise RunError("vLLM did not empty its prefix cache, which holds keys and values of the weights before")
        self._version, self._has_newest = version, True
        if not self._agrees:
            self._agrees = True
            asked = probe(self._context, self._vocabulary)
            self.submit([asked])
            while self._running:
                for completion in self.step():
                    check_agreement(self._policy, asked, completion)

    def sleep(self) -> None:
        """Give weights and cache back, where vLLM can. Raises RunError while answers are being written."""
        if self._running:
            raise RunError(f"the engine cannot sleep with {len(self._running)} answers being written")
        if self._sleeps and not self._llm.is_sleeping():
            self._llm.sleep(level=2)  # the trainer has the weights
            self._has_base = self._has_newest = False

    def wake(self) -> None:
        """Be ready to sample again; after `sleep` the weights are taken anew."""
        if self._sleeps and self._llm.is_sleeping():
            self._llm.wake_up()

    def _take_adapter(self, adapter: Any) -> None:
        from vllm.lora.request import LoRARequest

        number = 1 if self._lora is None else self._lora.lora_int_id + 1
        path = f"reinlm-{number}"
        self._llm.collective_rpc("reinlm_adapter", args=(path, adapter.config, adapter.weights))
        if self._lora is not None:
            self._llm.remove_lora(self._lora.lora_int_id)
        self._lora = LoRARequest(path, number, path)
        self._llm.add_lora(self._lora)


# ------------------------------------------------------------------------------------------ starting vLLM


def _import_vllm() -> Any:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    missing = InputError("engine vllm: vLLM is not installed", hint=install("vllm"))
    try:
        import vllm
    except ImportError as error:
        if error.name == "vllm":
            raise missing from error
        raise InputError(f"engine vllm: vLLM cannot be imported: {error}", hint=install("vllm")) from error
    if vllm.__file__ is None:  # a folder of that name
        raise missing
    return vllm


def _llm_engine(settings: Mapping[str, Any]) -> Any:
    """vLLM's engine in this process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        return LLMEngine.from_engine_args(EngineArgs(**settings))
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _checked(engine_args: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of vLLM that a user adds. Raises InputError for one that vLLM lacks, or that is set here."""
    from vllm.engine.arg_utils import EngineArgs

    names = {field.name for field in fields(EngineArgs)}
    for name in engine_args:
        if name in OURS:
            raise InputError(f"engine vllm: engine_args.{name} is set by reinlm and cannot be given")
        if name not in names:
            raise unknown("engine vllm: argument in engine_args", name, names - OURS)
    return engine_args


def _can_sleep() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_sleep_mode_available())


def _model_folder(policy: Policy, folder: str) -> str:
    """A folder with the model's configuration, without weights; for a model that comes with code, the one it is from."""
    model: Any = policy.model.get_base_model() if hasattr(policy.model, "get_base_model") else policy.model  # type: ignore[operator]
    if getattr(model.config, "auto_map", None):
        return str(model.config._name_or_path)
    config = type(model.config).from_dict(model.config.to_dict())
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    return folder


@contextlib.contextmanager
def _outside_as_before() -> Iterator[None]:
    """vLLM seeds every generator and takes `torch.set_num_threads` away as it starts; both are as before afterwards."""
    python, numpy, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
