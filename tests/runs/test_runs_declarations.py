from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reinlm.errors import InputError
from reinlm.metrics import LIBRARY
from reinlm.runs import MetricsLog
from reinlm.runs.declarations import (
    METRICS,
    Metric,
    declare_metrics,
    find_metric,
    is_library_name,
    read_metrics_info,
    without_clocks,
)

OWN = Metric("mine/drift/{name}", "nats", "divergence from the first answers", healthy="low", healthy_range=(None, 1.0))


@pytest.fixture
def own() -> Iterator[Metric]:
    """A user's metric, declared for one test."""
    declare_metrics(OWN)
    yield OWN
    del METRICS[OWN.name]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("eval/gsm8k/pass@8", "eval/{set}/pass@{k}"),
        ("rewards/math/mean", "rewards/{name}/mean"),
        ("rewards/failed", "rewards/failed"),
        ("rewards/shaping/mean", "rewards/shaping/mean"),
    ],
)
def test_a_logged_name_is_described_by_what_it_stands_for(name: str, known: str) -> None:
    assert find_metric(name) == METRICS[known]


def test_a_metric_that_no_one_declared_has_no_description() -> None:
    assert find_metric("rewards/math/median") is None


def test_records_without_clocks_keep_all_else() -> None:
    record = {"step": 1, "loss": 0.5, "time": 1.0, "time/own_phase": 2.0, "step_time": 3.0, "tokens_per_second": 4.0}
    assert without_clocks(record | {"samples_per_second": 5.0, "timeout": 6}) == {"step": 1, "loss": 0.5, "timeout": 6}


def test_a_users_metric_is_known_by_every_name_that_it_stands_for_and_is_none_of_the_library(own: Metric) -> None:
    assert find_metric("mine/drift/math") == own
    assert [is_library_name(name) for name in ("mine/drift/math", "rewards/math/mean")] == [False, True]
    assert own not in LIBRARY


def test_what_is_declared_twice_differently_or_in_no_section_is_refused(own: Metric) -> None:
    assert declare_metrics(own) == (own,)  # a file that is imported twice
    with pytest.raises(InputError, match="'reward' is declared twice: as 'mean weighted reward of the samples'"):
        declare_metrics(Metric("reward", "points", "mine"))
    with pytest.raises(InputError, match="unknown section 'bound'"):
        declare_metrics(Metric("mine/other", "points", "mine"), section="bound")  # type: ignore[arg-type]
    assert "mine/other" not in METRICS


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"unit": ""}, "metric 'mine/x': unit must be a text, not ''"),
        ({"meaning": None}, "metric 'mine/x': meaning must be a text, not None"),
        ({"name": "mine/{a}/{a}"}, "redefinition of group name"),
        ({"healthy_range": (2.0, 1.0)}, r"healthy_range must be \(lowest, highest\), not \(2.0, 1.0\)"),
        ({"healthy_range": (None, None)}, "healthy_range must be"),
        ({"healthy_range": 0.5}, "healthy_range must be"),
        ({"healthy_range": (0.0, "1")}, "healthy_range must be"),
    ],
)
def test_a_declaration_that_says_nothing_is_refused_by_name(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Metric(**({"name": "mine/x", "unit": "points", "meaning": "mine"} | values))


def test_a_folder_carries_the_declarations_of_what_it_logged_and_of_nothing_else(tmp_path: Path, own: Metric) -> None:
    log = MetricsLog(tmp_path)
    log.append(0, {"loss": 1.0, "mine/unknown": 2.0})
    assert set(read_metrics_info(tmp_path)) == {"loss", "time"}
    log.append(1, {"mine/drift/a": 1.0, "mine/drift/b": 1.0, "eval/x/accuracy": 0.5})
    known = {name: METRICS[name] for name in ("loss", "time", own.name, "eval/{set}/accuracy")}
    assert read_metrics_info(tmp_path) == known
    assert json.loads((tmp_path / "metrics_info.json").read_text())[own.name]["healthy_range"] == [None, 1.0]


def test_a_resumed_run_keeps_declarations_that_its_process_does_not_know(tmp_path: Path, own: Metric) -> None:
    MetricsLog(tmp_path).append(0, {"mine/drift/a": 1.0})
    del METRICS[own.name]
    MetricsLog(tmp_path, after_step=0).append(1, {"kl": 0.5})
    assert set(read_metrics_info(tmp_path)) == {own.name, "kl", "time"}
    MetricsLog(tmp_path).append(0, {"kl": 0.5})
    assert set(read_metrics_info(tmp_path)) == {"kl", "time"}
    METRICS[own.name] = own


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"loss": {}}', '{"loss": {"unit": "nats", "meaning": "x", "healthy_range": 3}}', '{"loss": 1}']
)
def test_damaged_declarations_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "metrics_info.json").write_text(text)
    with pytest.raises(InputError, match=r"metrics_info\.json: holds no declarations of metrics"):
        read_metrics_info(tmp_path)
