"""Lines on the values that were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reinlm
from reinlm.recipe import Settings
from reinlm.sources import read_sources
from reinlm.training.in_force import given_lines
from tiny_runs import ROWS, SETTINGS, graded, tiny


def test_a_folder_given_in_python_has_no_line_of_its_own() -> None:
    tree = {"run": {"output": "runs/x"}, "seed": 3}
    assert given_lines({("run", "output"): "Python"}, tree) == []
    assert given_lines({("run", "output"): "Python", ("seed",): "Python"}, tree) == ["Python: seed=3"]


def test_a_file_that_stands_for_a_section_is_named_alone() -> None:
    tree = {"evaluation": {"data": {"new": {"path": "n.jsonl", "split": None, "limit": 5}}}}
    sources = {("evaluation", "data", "new"): "new=n.jsonl", ("evaluation", "data", "new", "limit"): "limit=5"}
    assert (
        given_lines(sources, tree)[0] == "command line: evaluation.data.new.path=n.jsonl, evaluation.data.new.limit=5"
    )


def test_what_a_resumed_run_keeps_is_of_its_config_and_not_typed() -> None:
    sources = {("model", "path"): "--model", ("seed",): "seed=3", ("training", "steps"): "--steps"}
    tree = {"model": {"path": "m"}, "seed": 3, "training": {"steps": 9}}
    before = Settings({**tree, "training": {"steps": 8}}, {**sources, ("seed",): "seed=2"})
    assert given_lines(sources, tree, before) == [
        "config.yaml of the run: model.path=m",
        "command line: seed=3, training.steps=9",
    ]


def test_choices_that_an_algorithm_brought_along_were_given_nowhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither by a run that is resumed, nor by its config.yaml as a recipe."""
    folder = tmp_path / "run"
    given: dict[str, Any] = {**SETTINGS, "algorithm": {"base": "grpo", "gate": {"clip": {"low": 0.1}}}}
    shared: dict[str, Any] = {"reward": {"functions": graded, "time_limit": None}, "output": folder}
    given |= {"run": {}, "training": {"steps": 1}}
    reinlm.rl(tiny(), ROWS, **shared, **given)
    capfd.readouterr()
    resumed: dict[str, Any] = {**shared, "resume": True}
    cases: list[tuple[int, dict[str, Any]]] = [(2, {}), (3, {"recipe": folder / "config.yaml"})]
    for steps, more in cases:
        reinlm.rl(tiny(), ROWS, **{**resumed, **more}, training={"steps": steps})
        said = "".join(capfd.readouterr())
        assert "command line" not in said
        assert "algorithm.advantage" not in said
        sources = read_sources((folder / "config.yaml").read_text(encoding="utf-8"))
        assert sources["algorithm", "gate", "clip", "low"] == ("recipe config.yaml" if more else "Python")
        assert sources["algorithm", "gate", "clip", "high"] == "grpo"


def test_what_an_algorithm_implies_was_not_given_at_the_command_line() -> None:
    """The config.yaml of a resumed run names the algorithm beside each of its choices."""
    tree = {"algorithm": {"base": "grpo", "overlong": "keep", "aggregation": "token_mean"}}
    sources: dict[tuple[str, ...], str] = {
        ("algorithm", "overlong"): "grpo",
        ("algorithm", "aggregation"): "algorithm.aggregation=token_mean",
    }
    assert given_lines(sources, tree) == ["command line: algorithm.aggregation=token_mean"]
