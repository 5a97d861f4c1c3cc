"""The Python files beside the recipes, which are in no package: imported by their place."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).parents[2] / "recipes"


def recipe_files(folder: str) -> Callable[[str], Any]:
    """What imports a file of `recipes/FOLDER` by its name without `.py`."""

    def load(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(f"{folder}_{name}", RECIPES / folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load
