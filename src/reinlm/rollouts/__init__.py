"""Engines, episodes and sources: tasks in, scored groups out. The engine, which needs torch, is imported when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reinlm.renamed import renamed
from reinlm.rollouts.admission import Wave
from reinlm.rollouts.config import EpisodeConfig, EvalRolloutConfig, RolloutConfig, SamplingConfig, check_trainable
from reinlm.rollouts.engines import build_engine
from reinlm.rollouts.episode import Limits, run_episode
from reinlm.rollouts.event_loop import EventLoop
from reinlm.rollouts.groups import Episodes, Sampled, run_group, sample_groups
from reinlm.rollouts.protocol import Capabilities, Completion, Engine, Request, Sampling
from reinlm.rollouts.source import Collected, Source

if TYPE_CHECKING:
    from reinlm.rollouts.hf_engine import HFEngine

__all__ = [
    "Capabilities",
    "Collected",
    "Completion",
    "Engine",
    "EpisodeConfig",
    "Episodes",
    "EvalRolloutConfig",
    "EventLoop",
    "HFEngine",
    "Limits",
    "Request",
    "RolloutConfig",
    "Sampled",
    "Sampling",
    "SamplingConfig",
    "Source",
    "Wave",
    "build_engine",
    "check_trainable",
    "run_episode",
    "run_group",
    "sample_groups",
]


def __getattr__(name: str) -> Any:
    if name != "HFEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("reinlm.rollouts.hf_engine").HFEngine


renamed(__name__, {}, {"collect": "reinlm.rollouts.sample_groups"})
