"""Float32 matrix products on a CPU by oneDNN, where that is faster than the BLAS that PyTorch calls.

PyTorch's BLAS takes half of what some processors can do in float32 (MKL without its AVX-512 path on AMD's), while its
oneDNN, which PyTorch keeps for half precision and convolutions, takes all of it. `using_backend` hands torch's products to
oneDNN for as long as it lasts, forward and backward; which of the two is faster is measured once on each machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from reinlm.models.measured import measured_once

MatmulBackend = Literal["blas", "onednn"]
MIN_PRODUCT = 2**19
"""Multiplications of a product below which a call of oneDNN costs more than it saves."""
MIN_ROWS = 12
"""Rows of a product below which oneDNN is no faster."""
MIN_MATRIX = 2**14
"""Numbers of a model's largest matrix below which its products are too small to gain."""
MIN_SPEEDUP = 1.25
"""How many times as fast oneDNN has to be to be taken."""
_PACKED_ROWS = 32
"""Rows that the layout of a packed weight is chosen for."""
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


def packed(weight: Tensor) -> Tensor:
    """A copy of a weight [N, K] for `onednn_linear` that lies as oneDNN reads it, which products with few rows gain from."""
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS)
    return found


def _dense(weight: Tensor) -> Tensor:
    """The matrix itself where it or its transpose lies without gaps, or is packed, else a copy: oneDNN takes no others."""
    if weight.is_mkldnn:
        return weight
    return weight if weight.is_contiguous() or weight.t().is_contiguous() else weight.contiguous()


# ---------------------------------------------------------------------------------------------------- within a context

_lock = threading.Lock()
_users = 0
_library: Any = None


def current_backend() -> MatmulBackend:
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
    if left.dtype is not torch.float32 or right.dtype is not torch.float32 or left.dim() != 2 or right.dim() != 2:
        return False
    return left.shape[1] == right.shape[0] and left.shape[0] * left.shape[1] * right.shape[1] >= MIN_PRODUCT


def _mm(left: Tensor, right: Tensor) -> Tensor:
    if not _taken(left, right):
        return torch.mm(left, right, out=left.new_empty(0))
    if left.is_contiguous() or (right.numel() > left.numel() and not right.t().is_contiguous()):
        return onednn_linear(left, right.t(), None)
    return onednn_linear(right.t(), left, None).t().contiguous()  # what oneDNN copies is then the smaller factor


def _addmm(added: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    plain = added.dim() == 1 and added.dtype is torch.float32 and beta == 1 and alpha == 1
    if plain and _taken(left, right) and added.shape[0] == right.shape[1]:
        return onednn_linear(left, right.t(), added)
    return torch.addmm(added, left, right, beta=beta, alpha=alpha, out=left.new_empty(0))


# ---------------------------------------------------------------------------------------------------- which is faster


def has_onednn() -> bool:
    """Whether this PyTorch has the operators of oneDNN that are used here."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 by instructions of its own (AVX-512, AMX, those of ARM)."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def fastest_backend(model: nn.Module) -> MatmulBackend:
    """The faster of both for a model: oneDNN for large float32 matrices on a CPU where it was measured to be faster.

    Measured once on a machine, see `reinlm.models.measured`.
    """
    large = (weight for weight in model.parameters() if weight.dim() == 2 and weight.numel() >= MIN_MATRIX)
    if not any(weight.device.type == "cpu" and weight.dtype is torch.float32 for weight in large):
        return "blas"
    found: MatmulBackend = measured_once("matmul", get_args(MatmulBackend), measured_backend)
    return found


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
    return "onednn" if min(times[0]) > MIN_SPEEDUP * min(times[1]) else "blas"
