"""How many threads a run computes with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from reinlm.models.measured import forget_measurements
from reinlm.models.threads import (
    MIN_SPEEDUP,
    gain_of_threads,
    largest_matrix,
    threads_for,
    threads_for_sampling,
    using_threads,
)

SMALL, MIDDLE, BIG = (nn.Linear(256, rows) for rows in (255, 256, 2048))


@pytest.fixture(autouse=True)
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch has three threads, the environment says nothing, and the machine was not measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_measurements()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    with using_threads(3):
        yield
    forget_measurements()


@pytest.mark.parametrize(("gain", "expected"), [(MIN_SPEEDUP + 0.1, 3), (MIN_SPEEDUP - 0.1, 1), (0.1, 1)])
def test_several_threads_are_taken_where_they_are_faster(
    gain: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def measured(count: int) -> float:
        asked.append(count)
        return gain

    monkeypatch.setattr("reinlm.models.threads.gain_of_threads", measured)
    assert threads_for(MIDDLE) == expected
    assert asked == [3]
    gain = 4.0 - gain  # a machine is measured once
    forget_measurements()
    assert threads_for(MIDDLE) == expected
    assert threads_for(SMALL) == 1
    with using_threads(1):
        assert threads_for(BIG) == 1
    assert asked == [3]  # where one thread is enough, or all there is, nothing is tried


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_the_environment_decides_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    monkeypatch.setattr("reinlm.models.threads.gain_of_threads", lambda _: 0.0)
    assert threads_for(SMALL) == threads_for(BIG) == 3
    assert threads_for_sampling(SMALL) is None


def test_sampling_takes_one_thread_up_to_larger_models() -> None:
    assert [threads_for_sampling(model) for model in (SMALL, MIDDLE, BIG)] == [1, 1, None]
    assert [largest_matrix(model) for model in (SMALL, BIG)] == [256 * 255, 256 * 2048]
    assert largest_matrix(nn.Linear(4096, 4096, device="meta")) == 0
    assert threads_for_sampling(nn.Linear(4, 4, device="meta")) is None


def test_the_trial_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_rng_state()
    assert gain_of_threads(2) > 0.0
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 3


def test_the_number_is_as_before_also_after_an_error() -> None:
    with pytest.raises(KeyError), using_threads(2):
        raise KeyError
    with using_threads(None):
        assert torch.get_num_threads() == 3
