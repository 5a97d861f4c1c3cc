"""Products by oneDNN: the same numbers as by the BLAS, forward and backward, only within the context."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reinlm.models.matmul import current_backend, fastest_backend, measured_backend, using_backend
from reinlm.models.measured import forget_measurements
from reinlm.models.tiny import tiny_model

ROWS, WIDE, NARROW = 96, 192, 160


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def calls_of(call: object) -> list[str]:
    """The products that a call made, by name."""
    with torch.profiler.profile() as profile:
        call()  # type: ignore[operator]
    return [event.name for event in profile.events()]


PRODUCTS = {
    "rows": lambda x, w: x @ w.t(),
    "left transposed": lambda x, w: x.t().contiguous().t() @ w.t(),
    "both transposed": lambda x, w: (w @ x.t()).t(),
    "linear": lambda x, w: F.linear(x, w),
    "linear of three dimensions": lambda x, w: F.linear(x[None], w)[0],
    "linear with a bias": lambda x, w: F.linear(x, w, w[:, 0]),
    "addmm": lambda x, w: torch.addmm(w[:, 1], x, w.t()),
    "addmm with a factor of what is added": lambda x, w: torch.addmm(w[:, 1], x, w.t(), beta=0.5),
    "addmm with a factor of the product": lambda x, w: torch.addmm(w[:, 1], x, w.t(), alpha=2.0),
    "one number added": lambda x, w: torch.addmm(w[:1, 1], x, w.t()),
    "rows added": lambda x, w: torch.addmm(w[:, :1].t().expand(x.shape[0], -1), x, w.t()),
    "every other row": lambda x, w: x[::2] @ w.t(),
    "a row for all": lambda x, w: x[:1].expand(x.shape[0], -1) @ w.t(),
    "a column for all": lambda x, w: x @ w[:1].expand(w.shape[0], -1).t(),
    "a sum, whose gradient is one number": lambda x, w: (x @ w.t()).sum(),
    "every other column": lambda x, w: x[:, ::2] @ w[:, ::2].t(),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("rows", [ROWS, 2])
def test_products_and_gradients_are_those_of_float64(name: str, rows: int) -> None:
    x, w = drawn(rows, WIDE).requires_grad_(), drawn(NARROW, WIDE).requires_grad_()
    with using_backend("onednn"):
        found = PRODUCTS[name](x, w)
        found.square().sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    x64, w64 = (z.detach().double().requires_grad_() for z in (x, w))
    exact = PRODUCTS[name](x64, w64)
    exact.square().sum().backward()
    for one, other in ((found, exact), (x.grad, x64.grad), (w.grad, w64.grad)):
        assert other is not None
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5 * float(other.detach().abs().max()))


def test_large_float32_products_alone_are_onednns_and_only_within_the_context() -> None:
    x, w = drawn(ROWS, WIDE).requires_grad_(), drawn(NARROW, WIDE).requires_grad_()

    def step() -> None:
        (x @ w.t()).sum().backward()

    with using_backend("onednn"):
        assert current_backend() == "onednn"
        assert calls_of(step).count("mkldnn::_linear_pointwise") == 3  # forward, and the gradients of both factors
        for other in (lambda: drawn(4, 4) @ drawn(4, 4), lambda: x.double() @ w.double().t()):
            assert "mkldnn::_linear_pointwise" not in calls_of(other)
    assert current_backend() == "blas"
    assert "mkldnn::_linear_pointwise" not in calls_of(step)


def test_results_lie_as_those_of_torch_do() -> None:
    """Row by row, whatever the factors are, so that they can be viewed in another shape."""
    x, w = drawn(4, 64, 2 * WIDE)[..., :WIDE], drawn(NARROW, WIDE)
    with using_backend("onednn"):
        for found in (F.linear(x, w), drawn(512, ROWS).t() @ drawn(512, WIDE), w @ x[0].t()):
            assert found.is_contiguous()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: torch.mm(x, drawn(WIDE + 1, 4)), "shapes cannot be multiplied"),
        (lambda x: torch.mm(x[0], drawn(WIDE, 4)), "must be a matrix"),
        (lambda x: F.linear(x, drawn(NARROW, WIDE), drawn(NARROW + 1)), "expand"),
    ],
)
def test_errors_are_those_of_torch(call: Callable[[Tensor], Tensor], said: str) -> None:
    with using_backend("onednn"), pytest.raises(RuntimeError, match=said):
        call(drawn(1024, WIDE))


def test_contexts_may_overlap_and_end_with_an_error() -> None:
    ready, leave = threading.Event(), threading.Event()

    def other() -> None:
        with using_backend("onednn"):
            ready.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert ready.wait(60)
    with pytest.raises(KeyError), using_backend("onednn"):
        raise KeyError
    assert current_backend() == "onednn"
    leave.set()
    thread.join()
    assert current_backend() == "blas"
    with using_backend("blas"):
        assert current_backend() == "blas"


class Sized(nn.Module):
    def __init__(self, rows: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 256, dtype=dtype))


def test_small_models_and_other_types_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured: list[int] = []

    def measure() -> str:
        measured.append(1)
        return "onednn"

    monkeypatch.setattr("reinlm.models.matmul.measured_backend", measure)
    forget_measurements()
    others = (
        Sized(63),
        Sized(256, torch.bfloat16),
        Sized(256, torch.float64),
        tiny_model("qwen3", vocab_size=20, hidden_size=32),
    )
    assert [fastest_backend(model) for model in others] == ["blas"] * len(others)
    assert not measured
    assert fastest_backend(Sized(64)) == "onednn"
    assert len(measured) == 1
    forget_measurements()


def test_the_measurement_names_a_backend_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert measured_backend() in ("blas", "onednn")
    assert torch.equal(torch.get_rng_state(), before)


def test_without_onednn_it_is_the_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    assert measured_backend() == "blas"


def test_a_result_of_onednn_that_differs_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reinlm.models.matmul.onednn_linear", lambda x, weight, _: x @ weight)
    assert measured_backend() == "blas"
