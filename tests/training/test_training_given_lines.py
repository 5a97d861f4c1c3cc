"""Lines on the values that were given."""

from __future__ import annotations

from reinlm.training.in_force import given_lines


def test_a_folder_given_in_python_has_no_line_of_its_own() -> None:
    tree = {"run": {"output": "runs/x"}, "seed": 3}
    assert given_lines({("run", "output"): "Python"}, tree) == []
    assert given_lines({("run", "output"): "Python", ("seed",): "Python"}, tree) == ["Python: seed=3"]


def test_what_an_algorithm_implies_was_not_given_at_the_command_line() -> None:
    """The config.yaml of a resumed run names the algorithm beside each of its choices."""
    tree = {"algorithm": {"base": "grpo", "overlong": "keep", "aggregation": "token_mean"}}
    sources: dict[tuple[str, ...], str] = {
        ("algorithm", "overlong"): "grpo",
        ("algorithm", "aggregation"): "algorithm.aggregation=token_mean",
    }
    assert given_lines(sources, tree) == ["command line: algorithm.aggregation=token_mean"]
