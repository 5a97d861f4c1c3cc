"""Engines and collection: prompts in, rollouts out."""

from reinlm.rollouts.collect import SamplingConfig, check_trainable, collect
from reinlm.rollouts.hf_engine import HFEngine
from reinlm.rollouts.protocol import Capabilities, Completion, Engine, Request, Sampling

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
