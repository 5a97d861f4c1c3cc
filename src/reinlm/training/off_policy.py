"""The algorithm of a run, with a correction where its samples are those of earlier weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from reinlm.algorithms import Algorithm, resolve
from reinlm.errors import InputError
from reinlm.objectives import NoAdvantage, Truncated
from reinlm.training.config import RLConfig

CORRECTION = Truncated()
"""Of answers that earlier weights sampled, where the algorithm has none."""


def run_algorithm(config: RLConfig, composed: Algorithm | None = None) -> Algorithm:
    """The algorithm that a run is to have: `composed`, or what the configuration names.

    A run that samples ahead of training (`rollout.async_level`) corrects for the policy's older weights: an algorithm without
    corrections gets `truncated`, unless its ratio is against the sampler or its advantage weighs by the ratio to it.

    Raises:
        InputError: what is sampled ahead cannot be corrected for, or corrections are switched off.
    """
    algorithm = composed or resolve(config.algorithm)
    if config.rollout.async_level == 0 or algorithm.corrections:
        return algorithm
    if isinstance(algorithm.advantage, NoAdvantage):
        raise InputError(
            f"rollout.async_level {config.rollout.async_level} samples from older weights, and no correction weighs what "
            f"{algorithm.name} learns from: corrections are of the advantage, which is none",
            hint="set rollout.async_level=0; a teacher can be followed by samples too: algorithm.advantage=teacher_log_ratio "
            "algorithm.kl=null",
        )
    if algorithm.ratio.against == "rollout" or "importance" in algorithm.advantage.needs:
        return algorithm
    given = config.algorithm if composed is None else None
    spelled_out = isinstance(given, Mapping) and {"advantage", "ratio", "gate", "aggregation", "kl"} <= given.keys()
    if (
        isinstance(given, Mapping) and "corrections" in given and not spelled_out
    ):  # as a config.yaml spells out all choices
        raise InputError(
            f"rollout.async_level {config.rollout.async_level} samples from older weights, and algorithm.corrections is empty",
            hint="leave algorithm.corrections out for truncated, name one, or measure the ratio against the sampler: "
            "algorithm.ratio={token: {against: rollout}}",
        )
    return replace(algorithm, corrections=(CORRECTION,))
