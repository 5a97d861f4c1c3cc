"""The figures of a benchmark, by name: what each is, and in which unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Figure(NamedTuple):
    """One figure.

    Example:
        Figure("tokens/s", "Sampled tokens over the time of sampling.")
    """

    unit: str
    meaning: str


FIGURES: Mapping[str, Figure] = {
    "rollout/tokens_per_second": Figure("tokens/s", "Sampled tokens over `time/rollout`."),
    "training/tokens_per_second": Figure(
        "tokens/s", "Sampled tokens that are trained on over `time/update`: forward, backward and optimizer, in every pass."
    ),
    "step/tokens_per_second": Figure("tokens/s", "Sampled tokens over `time/step`."),
    "rollout/roofline": Figure(
        "share",
        "The least seconds that the samples take, over `time/rollout`: of each step of sampling the longer of its operations "
        "at the matrix-product peak and of its weights, keys and values at the bandwidth.",
    ),
    "training/roofline": Figure(
        "share", "Operations that the update needs, over `time/update`, as a share of the matrix-product peak."
    ),
    "time/rollout": Figure("s", "Sampling of all answers."),
    "time/reward": Figure("s", "Waiting for rewards after it."),
    "time/score": Figure("s", "Old and reference log-probabilities, values and advantages."),
    "time/update": Figure("s", "Forward, backward and optimizer, in every pass over the answers."),
    "time/step": Figure("s", "The whole step."),
    "rollout/tokens": Figure("tokens", "Sampled tokens of a step."),
    "training/tokens": Figure(
        "tokens", "Tokens that one pass of the update has to read: of every answer all but its last one, each prompt once."
    ),
    "training/flops": Figure("operations", "What the update needs: twice the entries of the matrices for every token "
                             "forward, four times backward, the head where a token is scored, and attention."),
    "memory/peak": Figure("bytes", "At most over the steps: of the process on the CPU, of tensors on a GPU."),
    "memory/held": Figure("bytes", "Of that, what was held before the model was loaded: Python and torch on the CPU."),
    "memory/needed": Figure(
        "bytes", "Estimate: weights, gradients, AdamW's moments, reference, critic, and the larger of cache and activations."
    ),
}  # fmt: skip
