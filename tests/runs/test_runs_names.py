from __future__ import annotations

import re
from pathlib import Path

import pytest

from reinlm.runs.names import CLOCKS, METRICS, describe, is_clock, without_clocks

ROWS = [
    [cell.strip() for cell in line.split(" | ")]
    for line in (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]


def test_every_metric_is_documented_once_and_nothing_else_is() -> None:
    documented = [re.findall("`(.+?)`", row[0])[0] for row in ROWS]
    assert sorted(documented) == sorted(METRICS)


def test_the_documented_units_are_those_of_the_table() -> None:
    documented = {re.findall("`(.+?)`", row[0])[0]: row[1].removesuffix(", *clock*") for row in ROWS}
    assert documented == {name: info.unit for name, info in METRICS.items()}


def test_the_documented_clocks_are_those_that_are_dropped() -> None:
    documented = {re.findall("`(.+?)`", row[0])[0] for row in ROWS if "*clock*" in row[1] or row[0] == "| `time`"}
    assert documented == {name for name in METRICS if is_clock(name)}
    assert documented >= CLOCKS


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("eval/gsm8k/pass@8", "eval/{set}/pass@{k}"),
        ("rewards/math/mean", "rewards/{name}/mean"),
        ("rewards/failed", "rewards/failed"),
    ],
)
def test_a_logged_name_is_described_by_what_it_stands_for(name: str, known: str) -> None:
    assert describe(name) == METRICS[known]


def test_a_metric_of_the_user_has_no_description() -> None:
    assert describe("rewards/math/median") is None


def test_records_without_clocks_keep_all_else() -> None:
    record = {"step": 1, "loss": 0.5, "time": 1.0, "time/own_phase": 2.0, "step_time": 3.0, "tokens_per_second": 4.0}
    assert without_clocks(record | {"samples_per_second": 5.0, "timeout": 6}) == {"step": 1, "loss": 0.5, "timeout": 6}
