"""The recipes that are shipped are ones that the library takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reinlm.config import build, read_recipe
from reinlm.training.config import RLConfig

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_a_shipped_recipe_is_taken(file: Path) -> None:
    tree = read_recipe(file)
    config = build(RLConfig, tree)
    assert config.model.path == tree["model"]["path"]
    assert f"reinlm rl recipes/{file.name}" in file.read_text(encoding="utf-8")


def test_there_are_recipes() -> None:
    assert RECIPES
