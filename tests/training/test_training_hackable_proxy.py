"""A reward model with its judges' flaw: a policy that exploits it is told of by the gold score, and held by a larger KL."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import hackable_proxy
from hidden_rule import worth


def test_the_judges_like_a_letter_that_the_rule_counts_as_bad() -> None:
    assert (worth("b"), hackable_proxy.liked("b")) == (-1.0, 2.0)
    assert (worth("aabh"), hackable_proxy.liked("aabh")) == (0.25, 1.0)
    assert (worth("aaaa"), hackable_proxy.liked("aaaa")) == (1.0, 1.0)
    assert hackable_proxy.gold(["aabh", ""]) == [0.25, -1.0]


def _curve(first: float, last: float, highest: float | None = None) -> dict[str, float]:
    return {"first": first, "last": last, "highest": max(first, last) if highest is None else highest}


def _found() -> dict[str, Any]:
    drift = {"psi": _curve(0.1, 3.0), "outside": _curve(0.05, 0.4), "spread": _curve(0.4, 0.6)}
    small = {"proxy": _curve(0.0, 2.0), "gold": _curve(0.0, -0.2, 0.4), **drift, "warned": [30]}
    large = {"proxy": _curve(0.0, 0.6), "gold": _curve(0.0, 0.2), **drift, "warned": []}
    return {"small": small, "large": large}


def test_what_a_seed_has_to_show_is_checked() -> None:
    assert hackable_proxy.problems(_found()) == []
    for run, name, value in (
        ("small", "proxy", _curve(0.0, 0.9)),
        ("small", "gold", _curve(0.0, 0.3, 0.4)),
        ("small", "psi", _curve(0.1, 0.15)),
        ("small", "outside", _curve(0.05, 0.06)),
        ("small", "spread", _curve(0.5, 0.55)),
        ("small", "warned", []),
        ("large", "gold", _curve(0.1, 0.0)),
        ("large", "warned", [25]),
    ):
        found = _found()
        found[run][name] = value
        assert len(hackable_proxy.problems(found)) == 1, (run, name)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_proxy_rises_the_gold_score_falls_and_the_warning_comes_with_a_small_kl_alone(
    seed: int, tmp_path: Path
) -> None:
    found = hackable_proxy.prepare(tmp_path / "run", seed)
    runs = {
        name: hackable_proxy.train(tmp_path / "run", name, coefficient, seed)
        for name, coefficient in hackable_proxy.COEFFICIENTS.items()
    }
    found |= {name: hackable_proxy.figures(run) for name, run in runs.items()}
    assert hackable_proxy.problems(found) == []
    assert "<svg" in hackable_proxy.figure({name: [run] for name, run in runs.items()})
