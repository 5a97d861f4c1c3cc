"""Float32 matrix products on a CPU by oneDNN, where that is faster than the BLAS that PyTorch calls.

PyTorch's BLAS takes half of what some processors can do in float32 (MKL without its AVX-512 path on AMD's), while its
oneDNN, which PyTorch keeps for half precision and convolutions, takes all of it. `using_backend` hands torch's products to
oneDNN for as long as it lasts, forward and backward; which of the two is faster is measured once on each machine.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reinlm.runs.files import write_json

MatmulBackend = Literal["blas", "onednn"]
SMALL = 2**19
"""Multiplications of a product below which a call of oneDNN costs more than it saves."""
FEW = 12
"""Rows of a product below which oneDNN is no faster."""
LARGE = 2**14
"""Numbers of a model's largest matrix below which its products are too small to gain."""
FASTER = 1.25
"""How many times as fast oneDNN has to be to be taken."""
_SIDE = 512
"""Rows and columns of the product that is measured."""


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
    """x [..., K] times weight [N, K] plus bias [N], by oneDNN, without gradient; `then` is a function such as "swish"."""
    given = None if bias is None else bias.contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, _dense(weight), given, then, [], "")
    return found


def onednn_linear_with(x: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None, operation: str) -> Tensor:
    """As `onednn_linear`, then "add" or "mul" of `other`, which has the result's shape."""
    given = None if bias is None else bias.contiguous()
    found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, _dense(weight), given, operation)
    return found


def _dense(weight: Tensor) -> Tensor:
    """The matrix itself where it or its transpose lies without gaps, else a copy: oneDNN takes no others."""
    return weight if weight.is_contiguous() or weight.t().is_contiguous() else weight.contiguous()


# ---------------------------------------------------------------------------------------------------- within a context

_lock = threading.Lock()
_users = 0
_library: Any = None


def in_force() -> MatmulBackend:
    """What computes float32 products of a CPU at this moment."""
    return "onednn" if _users else "blas"


@contextlib.contextmanager
def using_backend(backend: MatmulBackend) -> Iterator[None]:
    """Compute torch's float32 matrix products on the CPU by `backend`, in all threads of the process."""
    if backend == "blas":
        yield
        return
    global _users, _library
    with _lock:
        _users += 1
        if _users == 1:
            _library = _overriding()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _library._destroy()
                _library = None


def _overriding() -> Any:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library.impl("mm", _mm, "CPU", allow_override=True)
        library.impl("addmm", _addmm, "CPU", allow_override=True)
    return library


def _taken(left: Tensor, right: Tensor) -> bool:
    wide = left.dtype is torch.float32 and right.dtype is torch.float32
    return wide and left.shape[0] * left.shape[1] * right.shape[1] >= SMALL


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if not _taken(left, right):
        return torch.mm(left, right, out=left.new_empty(0))
    if left.is_contiguous() or (right.numel() > left.numel() and not right.t().is_contiguous()):
        return onednn_linear(left, right.t(), None)
    return onednn_linear(right.t(), left, None).t()  # what oneDNN has to copy is then the smaller factor


def _addmm(added: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if added.dim() == 1 and beta == 1 and alpha == 1 and added.dtype is torch.float32 and _taken(left, right):
        return onednn_linear(left, right.t(), added)
    return torch.addmm(added, left, right, beta=beta, alpha=alpha, out=left.new_empty(0))


# ---------------------------------------------------------------------------------------------------- which is faster


def has_onednn() -> bool:
    """Whether this PyTorch has the operators of oneDNN that are used here."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()


def fastest_backend(model: nn.Module) -> MatmulBackend:
    """The faster of both for a model: oneDNN for large float32 matrices on a CPU where it was measured to be faster.

    What was measured is kept for the machine, in `measured.json` of the user's cache folder for reinlm, so that two runs of
    one seed compute with the same.
    """
    large = (weight for weight in model.parameters() if weight.dim() == 2 and weight.numel() >= LARGE)
    if not any(weight.device.type == "cpu" and weight.dtype is torch.float32 for weight in large):
        return "blas"
    return _of_machine(_machine())


@functools.cache
def _of_machine(machine: str) -> MatmulBackend:
    file = cache_folder() / "measured.json"
    known = _read(file)
    found = known.get(machine, {}).get("matmul")
    if found not in ("blas", "onednn"):
        found = measured_backend()
        known[machine] = {**known.get(machine, {}), "matmul": found}
        with contextlib.suppress(OSError):  # a home that cannot be written is measured anew by each process
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, known)
    return found  # type: ignore[no-any-return]


def cache_folder() -> Path:
    """Where measurements of this machine are kept: `reinlm` in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reinlm"


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(value, dict) for value in found.values()) else {}


def _machine() -> str:
    """The processor, the number of threads and the version of torch, which decide what is faster."""
    lines = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    told = dict(line.replace("\t", "").split(":", 1) for line in reversed(lines) if ":" in line)
    model = " ".join(told[name].strip() for name in ("vendor_id", "cpu family", "model", "model name") if name in told)
    return f"{model or platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


@torch.no_grad()
def measured_backend() -> MatmulBackend:
    """Measure both on a product of 512 rows; "blas" where this PyTorch cannot compute it by oneDNN."""
    if not has_onednn():
        return "blas"
    left, right = torch.randn(2, _SIDE, _SIDE, generator=torch.Generator().manual_seed(0))
    if not torch.allclose(onednn_linear(left, right, None), left @ right.t(), rtol=1e-3, atol=1e-3):
        return "blas"
    times: tuple[list[float], list[float]] = [], []
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.mm(left, right.t(), out=left.new_empty(0)),
        lambda: onednn_linear(left, right, None),
    )
    for _ in range(9):
        for kept, call in zip(times, calls, strict=True):
            started = time.perf_counter()
            call()
            kept.append(time.perf_counter() - started)
    return "onednn" if min(times[0]) > FASTER * min(times[1]) else "blas"
