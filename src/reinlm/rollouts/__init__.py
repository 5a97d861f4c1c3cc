"""Engines and collection: prompts in, rollouts out. The engine, which needs torch, is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reinlm.rollouts.collect import SamplingConfig, check_trainable, collect
from reinlm.rollouts.protocol import Capabilities, Completion, Engine, Request, Sampling

if TYPE_CHECKING:
    from reinlm.rollouts.hf_engine import HFEngine

__all__ = [
    "Capabilities",
    "Completion",
    "Engine",
    "HFEngine",
    "Request",
    "Sampling",
    "SamplingConfig",
    "check_trainable",
    "collect",
]


def __getattr__(name: str) -> Any:
    if name != "HFEngine":
        raise AttributeError(f"module 'reinlm.rollouts' has no attribute {name!r}")
    return importlib.import_module("reinlm.rollouts.hf_engine").HFEngine
