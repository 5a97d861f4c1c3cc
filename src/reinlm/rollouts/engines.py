"""Engines by name: the values of `rollout.engine` in a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from reinlm.config import Config
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
