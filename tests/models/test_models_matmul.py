"""Products by oneDNN: the same numbers as by the BLAS, forward and backward, only within the context."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reinlm.models import matmul
from reinlm.models.matmul import cache_folder, fastest_backend, in_force, measured_backend, using_backend
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
    "addmm with factors": lambda x, w: torch.addmm(w[:, 1], x, w.t(), beta=0.5, alpha=2.0),
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
        assert in_force() == "onednn"
        assert calls_of(step).count("mkldnn::_linear_pointwise") == 3  # forward, and the gradients of both factors
        for other in (lambda: drawn(4, 4) @ drawn(4, 4), lambda: x.double() @ w.double().t()):
            assert "mkldnn::_linear_pointwise" not in calls_of(other)
    assert in_force() == "blas"
    assert "mkldnn::_linear_pointwise" not in calls_of(step)


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
    assert in_force() == "onednn"
    leave.set()
    thread.join()
    assert in_force() == "blas"
    with using_backend("blas"):
        assert in_force() == "blas"


class Sized(nn.Module):
    def __init__(self, rows: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 256, dtype=dtype))


def machine(monkeypatch: pytest.MonkeyPatch, folder: Path, found: str) -> list[int]:
    """A machine of which nothing is known, and how often it is measured, each time with this result."""
    measured: list[int] = []

    def measure() -> str:
        measured.append(1)
        return found

    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr("reinlm.models.matmul.measured_backend", measure)
    matmul._of_machine.cache_clear()
    return measured


@pytest.fixture(autouse=True)
def forget() -> None:
    matmul._of_machine.cache_clear()


@pytest.mark.parametrize("found", ["onednn", "blas"])
def test_a_machine_is_measured_once(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = machine(monkeypatch, tmp_path, found)
    for _ in range(3):
        matmul._of_machine.cache_clear()  # as in another process
        assert fastest_backend(Sized(256)) == found
    assert len(measured) == 1
    (kept,) = json.loads((cache_folder() / "measured.json").read_text()).values()
    assert kept == {"matmul": found}


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 3}', "{", '{"a": {"matmul": "fast"}}'])
def test_a_broken_file_of_measurements_is_written_anew(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, tmp_path, "onednn")
    cache_folder().mkdir(parents=True)
    (cache_folder() / "measured.json").write_text(text)
    assert fastest_backend(Sized(256)) == "onednn"
    assert {"matmul": "onednn"} in json.loads((cache_folder() / "measured.json").read_text()).values()


def test_a_cache_folder_that_cannot_be_made_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    machine(monkeypatch, tmp_path / "file", "onednn")
    assert fastest_backend(Sized(256)) == "onednn"


def test_small_models_and_other_types_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = machine(monkeypatch, tmp_path, "onednn")
    others = (
        Sized(63),
        Sized(256, torch.bfloat16),
        Sized(256, torch.float64),
        tiny_model("qwen3", vocab_size=20, hidden_size=32),
    )
    assert [fastest_backend(model) for model in others] == ["blas"] * len(others)
    assert not measured


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
