"""Lines on the values that were given."""

from __future__ import annotations

from reinlm.training.in_force import given_lines


def test_a_folder_given_in_python_has_no_line_of_its_own() -> None:
    tree = {"run": {"output": "runs/x"}, "seed": 3}
    assert given_lines({("run", "output"): "Python"}, tree) == []
    assert given_lines({("run", "output"): "Python", ("seed",): "Python"}, tree) == ["Python: seed=3"]
