"""Earlier names are taken with a warning that says the new one."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import reinlm
from reinlm import objectives

NAMES = [
    ("reinlm.algorithms", "describe", "reinlm.composition.algorithm_spec"),
    ("reinlm.algorithms.ladder", "page", "reinlm.algorithms.ladder.algorithms_page"),
    ("reinlm.algorithms.ladder", "told", "reinlm.algorithms.ladder.algorithm_details"),
    ("reinlm.composition", "describe", "reinlm.composition.algorithm_spec"),
    *(
        ("reinlm.algorithms", name, f"reinlm.composition.{name}")
        for name in ("choices", "compatibility", "composition", "document", "filters", "measure", "shapers")
    ),
    ("reinlm.environments", "arithmetic", "reinlm.data.arithmetic"),
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


REMOVED = [
    ("reinlm.records", "Prompt", "reinlm.records.Task"),
    ("reinlm.records", "TrainBatch", "reinlm.batches.TokenBatch"),
    ("reinlm.records", "train_batch", "reinlm.batches.token_batch"),
    ("reinlm.data", "PromptOrder", "reinlm.data.RowOrder"),
    ("reinlm.data", "load_prompts", "reinlm.data.load_tasks"),
    ("reinlm.rollouts", "collect", "reinlm.rollouts.sample_groups"),
]


@pytest.mark.parametrize(
    ("module", "name", "instead"), REMOVED, ids=[f"{module}.{name}" for module, name, _ in REMOVED]
)
def test_a_name_without_an_equivalent_says_what_to_use(module: str, name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"^{module}.{name} is removed: use {instead}"):
        exec(f"from {module} import {name}", {})  # the statement that a user writes
    place, _, now = instead.rpartition(".")
    assert hasattr(importlib.import_module(place), now)


STEPS = (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor([False, True]), torch.tensor([False, False]))
"""Rewards, values of the successors, terminated, truncated."""
LAYOUT = objectives.Layout.from_lengths([2])
BOTH = {"discount": 0.5, "smoothing": 0.25}
CALLS: list[tuple[str, tuple[Any, ...], dict[str, float]]] = [
    ("td_errors", (1.0, 2.0, 3.0, False), {"discount": 0.5}),
    ("gae", (STEPS[0], STEPS[1], *STEPS[1:]), BOTH),
    ("lambda_returns", STEPS, BOTH),
    ("n_step_returns", STEPS, {"discount": 0.5, "n": 2}),
    ("vtrace", (STEPS[0], *STEPS[:2], *STEPS[1:]), BOTH),
    ("discounted_returns", (STEPS[0], LAYOUT), {"discount": 0.5}),
    ("Returns", (), {"discount": 0.5}),
    ("GAE", (), {**BOTH, "critic_smoothing": 0.75}),
    ("NStep", (3,), {"discount": 0.5}),
    ("VTrace", (), BOTH),
]


@pytest.mark.parametrize(("name", "arguments", "values"), CALLS, ids=[name for name, _, _ in CALLS])
def test_an_earlier_keyword_is_taken_and_the_new_one_said(
    name: str, arguments: tuple[Any, ...], values: dict[str, float]
) -> None:
    made = getattr(objectives, name)
    news = {"discount": "gamma", "smoothing": "gae_lambda", "critic_smoothing": "critic_lambda"}
    with pytest.warns(FutureWarning) as warned:
        found = made(*arguments, **values)
    said = {f"{name}: {old} is named {news[old]}; say {news[old]}" for old in values if old in news}
    assert {str(warning.message) for warning in warned} == said
    assert {warning.filename for warning in warned} == {__file__}  # the line of the caller
    expected = made(*arguments, **{news.get(old, old): value for old, value in values.items()})
    if isinstance(made, type):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected)


def test_a_value_by_both_names_is_refused_and_an_earlier_field_is_read() -> None:
    with pytest.raises(TypeError, match=r"^GAE: smoothing and gae_lambda are one value, given twice$"):
        objectives.GAE(smoothing=0.5, gae_lambda=0.5)  # type: ignore[call-arg]
    with pytest.warns(FutureWarning, match=r"^GAE: smoothing is named gae_lambda; say gae_lambda$") as said:
        assert objectives.GAE(gae_lambda=0.5).smoothing == 0.5  # type: ignore[attr-defined]
    assert [warning.filename for warning in said] == [__file__]
    with pytest.raises(AttributeError, match=r"^'GAE' object has no attribute 'lamp'$"):
        objectives.GAE().lamp  # type: ignore[attr-defined]  # noqa: B018
    with pytest.warns(FutureWarning, match="adaptive_smoothing is named adaptive_lambda; say adaptive_lambda$"):
        assert objectives.adaptive_smoothing is objectives.adaptive_lambda  # type: ignore[attr-defined]
