"""Engines by name: the values of `rollout.engine` in a recipe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import Field

from reinlm.config import MAX_SECONDS, Config
from reinlm.errors import ReinlmError, RunError, error_line, file_of
from reinlm.parts import builder, name_of_part, part, read_part
from reinlm.rollouts.checked_engine import CheckedEngine
from reinlm.rollouts.protocol import Engine

if TYPE_CHECKING:
    import torch

    from reinlm.models import Policy


class EngineConfig(Protocol):
    """The interface of an engine's configuration class."""

    def build(self, policy: Policy, *, autocast: torch.dtype | None, max_running: int) -> Engine:
        """The engine for the policy, computing in `autocast` (None: the type of the weights)."""


@part("engine", "in_process")
class InProcessConfig(Config):
    """The policy's own weights, in the trainer's process (`HFEngine`)."""

    def build(self, policy: Policy, *, autocast: torch.dtype | None = None, max_running: int = 256) -> Engine:
        from reinlm.rollouts.hf_engine import HFEngine

        return HFEngine(
            policy.model,
            policy.tokenizer,
            pad_id=policy.pad_id,
            context_length=policy.context_length,
            max_batch=max_running,
            autocast_dtype=autocast,
        )


@part("engine", "vllm")
class VllmConfig(Config):
    """vLLM in the trainer's process (`VllmEngine`), which takes the weights in memory after each update."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """What vLLM computes in. "auto": what the trainer computes in."""
    gpu_memory_utilization: float = Field(0.3, gt=0.0, le=1.0)
    """Share of the device's memory for weights and key-value cache; on the CPU, of main memory."""
    enforce_eager: bool = False
    """Neither CUDA graphs nor torch.compile: a quick start, slower sampling."""
    enable_sleep_mode: bool = True
    """Give weights and cache back while the trainer works. Without effect where vLLM has no sleep mode, as on the CPU."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's EngineArgs, such as {kv_cache_memory_bytes: 1000000000}."""

    def build(self, policy: Policy, *, autocast: torch.dtype | None = None, max_running: int = 256) -> Engine:
        import torch

        from reinlm.rollouts.vllm_engine import VllmEngine

        return VllmEngine(
            policy,
            dtype=(autocast or policy.model.dtype) if self.dtype == "auto" else getattr(torch, self.dtype),
            max_running=max_running,
            gpu_memory_utilization=self.gpu_memory_utilization,
            enforce_eager=self.enforce_eager,
            enable_sleep_mode=self.enable_sleep_mode,
            engine_args=self.engine_args,
        )


@part("engine", "vllm_server")
class VllmServerConfig(Config):
    """A vLLM server that `reinlm vllm-serve` started (`VllmServerEngine`); weights are sent to it after each update."""

    url: str = Field("http://localhost:8000", pattern=r"^https?://")
    """Where it listens."""
    timeout: float = Field(600.0, gt=0, le=MAX_SECONDS)
    """Seconds for one answer, and for each call that sends weights."""
    startup_timeout: float = Field(0.0, ge=0, le=MAX_SECONDS)
    """Seconds to wait for a server that does not answer yet."""

    def build(self, policy: Policy, *, autocast: torch.dtype | None = None, max_running: int = 256) -> Engine:
        from reinlm.rollouts.vllm_server import VllmServerEngine

        return VllmServerEngine(
            policy,
            url=self.url,
            max_running=max_running,
            timeout=self.timeout,
            startup_timeout=self.startup_timeout,
        )


@contextlib.contextmanager
def ready_to_sample(engine: Engine, version: int) -> Iterator[None]:
    """The engine awake and with the newest weights of the trainer; asleep afterwards where it asks for that."""
    sleeps = engine.capabilities.sleeps
    if sleeps:
        engine.wake()
    try:
        engine.update(None, version)
        yield
    except BaseException:
        if sleeps:
            with contextlib.suppress(Exception):  # what went wrong before says more
                engine.sleep()
        raise
    if sleeps:
        engine.sleep()


def build_engine(spec: Any, policy: Policy, *, autocast: torch.dtype | None = None, max_running: int = 256) -> Engine:
    """The engine that a recipe names; one of a user's own behind a `CheckedEngine`.

    Raises:
        InputError: an unknown name, or what is built is no engine.
        RunError: building it raised.
    """
    config = read_part("engine", spec)
    build = builder("engine", config)
    if type(config) is InProcessConfig:
        return config.build(policy, autocast=autocast, max_running=max_running)
    name = name_of_part("engine", config)
    try:
        engine = build(policy, autocast=autocast, max_running=max_running)
    except ReinlmError:
        raise
    except Exception as error:
        raise RunError(f"engine {name}: build raised {error_line(error, file_of(build))}") from error
    vocabulary: int = policy.model.config.get_text_config(decoder=True).vocab_size
    return CheckedEngine(engine, name, vocabulary)
