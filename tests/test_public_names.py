"""The names of `reinlm`: what `__all__` lists, what editors see, and what the lazy imports find are the same."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import reinlm


def test_every_public_name_is_imported_lazily_and_known_to_type_checkers() -> None:
    tree = ast.parse(Path(reinlm.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in ast.walk(guarded)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == reinlm._WHERE
    assert sorted(reinlm.__all__) == sorted(["__version__", *seen])
    for name, module in reinlm._WHERE.items():
        assert getattr(reinlm, name) is getattr(importlib.import_module(module), name)
