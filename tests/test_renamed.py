"""Earlier names are taken with a warning that says the new one."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import reinlm

NAMES = [
    ("reinlm.algorithms", "describe", "reinlm.composition.algorithm_spec"),
    ("reinlm.algorithms.ladder", "page", "reinlm.algorithms.ladder.algorithms_page"),
    ("reinlm.algorithms.ladder", "told", "reinlm.algorithms.ladder.algorithm_details"),
    ("reinlm.composition", "describe", "reinlm.composition.algorithm_spec"),
    ("reinlm.loop", "StepResult", "reinlm.loop.StepReport"),
    ("reinlm.metrics", "describe", "reinlm.runs.declarations.find_metric"),
    ("reinlm.metrics", "page", "reinlm.metrics.metrics_page"),
    ("reinlm.models", "Scores", "reinlm.models.Outputs"),
    ("reinlm.parts", "spell_part", "reinlm.parts.part_spec"),
    ("reinlm.records", "outcome", "reinlm.records.total"),
    ("reinlm.runs", "Interrupted", "reinlm.loop.Interrupted"),
    ("reinlm.runs", "Loop", "reinlm.loop.Loop"),
    ("reinlm.runs", "LoopSettings", "reinlm.loop.LoopSettings"),
    ("reinlm.runs", "RunResult", "reinlm.loop.RunResult"),
    ("reinlm.runs", "Task", "reinlm.loop.Run"),
    ("reinlm.runs.declarations", "describe", "reinlm.runs.declarations.find_metric"),
    ("reinlm.runs.names", "METRICS", "reinlm.runs.declarations.METRICS"),
    ("reinlm.runs.names", "MetricInfo", "reinlm.runs.declarations.Metric"),
    ("reinlm.runs.names", "describe", "reinlm.runs.declarations.find_metric"),
    ("reinlm.runs.names", "without_clocks", "reinlm.runs.declarations.without_clocks"),
]


@pytest.mark.parametrize(("module", "name", "new"), NAMES, ids=[f"{module}.{name}" for module, name, _ in NAMES])
def test_an_earlier_name_is_taken_and_the_new_one_said(module: str, name: str, new: str) -> None:
    place, _, now = new.rpartition(".")
    with pytest.warns(FutureWarning, match=f"{module}.{name} is named {new}"):
        found: Any = getattr(importlib.import_module(module), name)
    assert found is getattr(importlib.import_module(place), now)


@pytest.mark.parametrize("module", ["reinlm.loop", "reinlm.models", "reinlm.records", "reinlm.runs"])
def test_a_name_that_never_was_is_no_attribute(module: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'lamp'"):
        importlib.import_module(module).lamp  # noqa: B018


def test_an_earlier_attribute_is_taken_and_the_new_one_said() -> None:
    grpo = reinlm.algorithm("grpo")
    with pytest.warns(FutureWarning, match=r"Algorithm\.ties is named active_kl"):
        assert getattr(grpo, "ties") == grpo.active_kl  # noqa: B009 - the type checker does not know it
    with pytest.warns(FutureWarning, match=r"Algorithm\.charge is named adjust_rewards"):
        assert getattr(grpo, "charge") == grpo.adjust_rewards  # noqa: B009
