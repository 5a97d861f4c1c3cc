"""Earlier names of values, of a function and of a dataclass that the test makes itself."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from reinlm.objectives.earlier import earlier_names


def test_a_function_takes_a_value_by_its_earlier_name() -> None:
    @earlier_names
    def total(rewards: float, *, gamma: float = 1.0, weights: str = "") -> tuple[float, str]:
        """A function whose own `weights` is no earlier name of anything: it has no `aggregation`."""
        return rewards * gamma, weights

    made: Any = total
    with pytest.warns(FutureWarning, match=r"^total: discount is named gamma; say gamma$"):
        assert made(4.0, discount=0.5) == (2.0, "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(4.0, gamma=0.25, weights="w") == (1.0, "w")
    with pytest.raises(TypeError, match=r"^total: discount and gamma are one value, given twice$"):
        made(4.0, discount=0.5, gamma=0.5)
    with pytest.raises(TypeError, match="smoothing"):  # not of this function
        made(4.0, smoothing=0.5)
    assert made.__name__ == "total"


def test_a_dataclass_takes_a_value_by_its_earlier_name_and_gives_it_by_that() -> None:
    @earlier_names
    @dataclass(frozen=True)
    class Trace:
        gae_lambda: float = 0.95

    made: Any = Trace
    with pytest.warns(FutureWarning, match=r"^Trace: smoothing is named gae_lambda; say gae_lambda$"):
        trace = made(smoothing=0.5)
    with pytest.warns(FutureWarning, match=r"^Trace: smoothing is named gae_lambda; say gae_lambda$"):
        assert trace.smoothing == 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (trace, trace.gae_lambda, made().gae_lambda) == (Trace(0.5), 0.5, 0.95)
    with pytest.raises(AttributeError, match=r"^'Trace' object has no attribute 'discount'$"):
        trace.discount  # noqa: B018 - it has no gamma
