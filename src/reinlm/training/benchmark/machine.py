"""What the machine can do, measured on the spot: matrix products a second, bytes a second; and its memory."""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from reinlm.models.matmul import has_onednn, using_backend

LARGEST = 16384
"""Rows and columns of the largest matrix product."""
LONG = 0.02
"""Seconds of a matrix product after which no larger one is tried."""
REPEATS = 4


@dataclass(frozen=True)
class Machine:
    """What one device can do.

    Example:
        Machine(device="cpu", name="x86_64", threads=2, flops={"float32": 1.6e11, "bfloat16": 6.1e11}, bandwidth=1.1e10)
    """

    device: str
    name: str
    threads: int
    flops: dict[str, float]
    """By dtype: operations a second of the fastest square matrix product."""
    bandwidth: float
    """Bytes read and written a second by a copy."""


def measure_machine(device: torch.device, dtypes: Sequence[torch.dtype]) -> Machine:
    """Measure a device, with torch's number of threads as it is; once in a process."""
    return _measure(device, tuple(dict.fromkeys(dtypes)), torch.get_num_threads())


@functools.cache
def _measure(device: torch.device, dtypes: tuple[torch.dtype, ...], threads: int) -> Machine:
    import platform

    cuda = device.type == "cuda"
    return Machine(
        device=device.type,
        name=torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
        threads=threads,
        flops={str(dtype).removeprefix("torch."): peak_flops(device, dtype) for dtype in dtypes},
        bandwidth=copy_bandwidth(device),
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the fastest square matrix product, by whatever of this PyTorch computes it."""
    found = matmul_flops(device, dtype)
    if device.type != "cpu" or dtype != torch.float32 or not has_onednn():
        return found
    with using_backend("onednn"):
        return max(found, matmul_flops(device, dtype))


@torch.no_grad()
def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the fastest square matrix product, from 256 rows upwards as far as time and memory allow."""
    best, size = 0.0, 256
    while True:
        left, right = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
        seconds = _fastest(lambda left=left, right=right: left @ right, device)  # type: ignore[misc]
        best = max(best, 2 * size**3 / seconds)
        size *= 2
        if seconds > LONG or size > LARGEST or 12 * size**2 > free_memory(device) // 4:
            return best


@torch.no_grad()
def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written a second where a tensor far larger than the caches is copied."""
    size = min(1 << (30 if device.type == "cuda" else 27), free_memory(device) // 8)
    source = torch.ones(max(size // 4, 1), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    seconds = []
    for _ in range(REPEATS + 1):
        synchronize(device)
        started = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def synchronize(device: torch.device) -> None:
    """Wait until the device has computed what it was given."""
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()


# ---------------------------------------------------------------------------------------------------- memory


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken: of a GPU its own memory, else main memory, within the limit of the control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [_available(), _left_in_group()]
    return min((size for size in found if size is not None), default=sys.maxsize)


def _available() -> int | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _left_in_group() -> int | None:
    limit, used = (next(iter(_lines(f"/sys/fs/cgroup/memory.{name}")), "max").strip() for name in ("max", "current"))
    if "max" in (limit, used):
        return None
    cached = sum(int(line.split()[1]) for line in _lines("/sys/fs/cgroup/memory.stat") if line.startswith("file "))
    return max(int(limit) - int(used) + cached, 0)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def forget_peak(device: torch.device) -> None:
    """Begin a new measurement of `peak_memory`, where the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def peak_memory(device: torch.device) -> int:
    """Bytes at most since `forget_peak`: of a GPU what tensors took, else what the whole process took of main memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return _of_process("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def memory_held(device: torch.device) -> int:
    """Bytes that `peak_memory` counts as it is: those of a GPU's tensors, or of the process (0 where the system does not say)."""
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else _of_process("VmRSS")


def _of_process(name: str) -> int:
    return next((int(line.split()[1]) * 1024 for line in _lines("/proc/self/status") if line.startswith(f"{name}:")), 0)
