from __future__ import annotations

import re
from pathlib import Path

import pytest

from reinlm.runs.names import CLOCKS, METRICS, SECTIONS, describe, is_clock, without_clocks
from reinlm.runs.names.page import page

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_is_what_is_written_from_the_declarations() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "reinlm metrics --page > docs/metrics.md"


def test_every_metric_is_declared_once() -> None:
    declared = [info.name for section in SECTIONS for info in section.metrics]
    assert sorted(declared) == sorted(set(declared))


def test_a_row_of_the_page_has_five_cells_whatever_a_declaration_holds() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(METRICS)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


@pytest.mark.parametrize("info", METRICS.values(), ids=list(METRICS))
def test_a_declaration_stands_by_itself(info) -> None:
    assert info.unit
    assert info.meaning
    assert not re.search(
        r"\b(as above|as there|the same,|highest of them|lowest of them|those episodes|such difference)\b",
        " ".join((info.meaning, info.healthy, info.bad)),
    )
    if info.healthy_range is not None:
        low, high = info.healthy_range
        assert (low, high) != (None, None)
        assert low is None or high is None or low <= high
        assert info.healthy


def test_what_depends_on_the_clock_is_marked_on_the_page() -> None:
    marked = {re.findall("`(.+?)`", line)[0] for line in page().splitlines() if ", *clock* |" in line}
    assert marked == {name for name in METRICS if is_clock(name)}
    assert marked >= CLOCKS


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
    assert describe(name) == METRICS[known]


def test_a_metric_of_the_user_has_no_description() -> None:
    assert describe("rewards/math/median") is None


def test_records_without_clocks_keep_all_else() -> None:
    record = {"step": 1, "loss": 0.5, "time": 1.0, "time/own_phase": 2.0, "step_time": 3.0, "tokens_per_second": 4.0}
    assert without_clocks(record | {"samples_per_second": 5.0, "timeout": 6}) == {"step": 1, "loss": 0.5, "timeout": 6}
