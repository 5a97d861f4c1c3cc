"""How many threads of a CPU compute a run: one for small models, and where more gain nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import torch
from torch import nn

from reinlm.models.measured import measured_once

MIN_MATRIX = 2**16
"""Numbers of a model's largest matrix below which one thread is enough."""
MIN_MATRIX_OF_SAMPLING = 2**19
"""The same where tokens are sampled: products of some dozens of rows, thousands of times."""
MIN_SPEEDUP = 1.3
"""How many times as fast several threads have to be to be taken."""
_SIDE, _SECONDS = 512, 0.02


def largest_matrix(model: nn.Module) -> int:
    """Numbers of the largest matrix of a model's weights; 0 where none is on a CPU."""
    sizes = (weight.numel() for weight in model.parameters() if weight.dim() >= 2 and weight.device.type == "cpu")
    return max(sizes, default=0)


def threads_for(model: nn.Module) -> int:
    """The threads to train a model with: those that torch has, or one where several were not faster.

    Measured once on a machine, see `reinlm.models.measured`. `OMP_NUM_THREADS` or `MKL_NUM_THREADS` in the environment
    decides alone.
    """
    most = torch.get_num_threads()
    if most == 1 or _are_given():
        return most
    if largest_matrix(model) < MIN_MATRIX:
        return 1
    found: int = measured_once("threads", (1, most), measured_threads)
    return found


def measured_threads() -> int:
    """Measure what is faster: one thread, or those that torch has."""
    most = torch.get_num_threads()
    return most if gain_of_threads(most) >= MIN_SPEEDUP else 1


def threads_for_sampling(model: nn.Module) -> int | None:
    """The threads to sample with from a model, or None for those that torch has, as where the environment names a number."""
    small = largest_matrix(model) < MIN_MATRIX_OF_SAMPLING
    return 1 if small and next(model.parameters()).device.type == "cpu" and not _are_given() else None


def _are_given() -> bool:
    return bool({"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys())


@torch.no_grad()
def gain_of_threads(count: int) -> float:
    """How many times as fast as one thread `count` are at products at this moment: below 1 where the cores are in use."""
    left, right = torch.ones(2, _SIDE, _SIDE)
    speeds: list[float] = []
    for threads in (1, count):
        with using_threads(threads):
            left @ right
            started, made = time.perf_counter(), 0
            while time.perf_counter() - started < _SECONDS:
                left @ right
                made += 1
            speeds.append(made / (time.perf_counter() - started))
    return speeds[1] / speeds[0]


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Let torch compute with so many threads within the context; None changes nothing."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
