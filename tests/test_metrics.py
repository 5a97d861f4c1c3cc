"""What the packages declare, taken together, and the page that is written from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reinlm.training.metrics
from reinlm.metrics import LIBRARY, METRICS, SECTIONS, Metric, find_metric, is_clock, metrics_page
from reinlm.runs.declarations import CLOCKS

ROOT = Path(__file__).parents[1]


def test_the_page_is_what_is_written_from_the_declarations() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert written == metrics_page(), "reinlm metrics --page > docs/metrics.md"


def test_every_metric_is_declared_once_and_has_a_place_on_the_page() -> None:
    declared = sorted(metric.name for metric in LIBRARY)
    assert declared == sorted(metric.name for metric in METRICS.values() if metric.section != "own")
    assert sorted(re.findall(r"^\| `(.+?)` \|", metrics_page(), flags=re.MULTILINE)) == declared
    assert {metric.section for metric in LIBRARY} == set(SECTIONS)


@pytest.mark.parametrize("path", sorted((ROOT / "tests/same_numbers/recorded").glob("*.json")), ids=lambda p: p.stem)
def test_every_metric_of_the_recorded_runs_is_declared(path: Path) -> None:
    logged = {name for record in json.loads(path.read_text()) for name in record} - {"step"}
    assert len(logged) > 5
    assert [name for name in sorted(logged) if find_metric(name) is None] == []


@pytest.mark.parametrize(
    ("module", "declares"),
    [
        ("reinlm.training.sessions", set(SECTIONS) - {"control"}),  # what `reinlm.sft` and `reinlm.rl` import
        ("reinlm.classical.run", {"control", "critic"}),
    ],
)
def test_a_process_that_trains_knows_the_metrics_that_it_may_log(module: str, declares: set[str]) -> None:
    code = f"import {module}\nfrom reinlm.runs import METRICS\nprint(*METRICS, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    own_to_training = {metric.name for metric in reinlm.training.metrics.METRICS} if "control" in declares else set()
    wanted = {metric.name for metric in LIBRARY if metric.section in declares} - own_to_training
    assert sorted(wanted - set(done.stdout.split("\n"))) == []


def test_a_row_of_the_page_has_five_cells_whatever_a_declaration_holds() -> None:
    rows = [line for line in metrics_page().splitlines() if line.startswith("| `")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


@pytest.mark.parametrize("metric", LIBRARY, ids=[metric.name for metric in LIBRARY])
def test_a_declaration_stands_by_itself(metric: Metric) -> None:
    assert not re.search(
        r"\b(as above|as there|the same,|highest of them|lowest of them|those episodes|such difference)\b",
        " ".join((metric.meaning, metric.healthy, metric.bad)),
    )
    assert metric.healthy or metric.healthy_range is None


def test_what_depends_on_the_clock_is_marked_on_the_page() -> None:
    marked = {re.findall("`(.+?)`", line)[0] for line in metrics_page().splitlines() if ", *clock* |" in line}
    assert marked == {metric.name for metric in LIBRARY if is_clock(metric.name)}
    assert marked >= CLOCKS
