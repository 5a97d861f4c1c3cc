"""The examples in docstrings that begin with >>> give what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import reinlm

MODULES = sorted(m.name for m in pkgutil.walk_packages(reinlm.__path__, "reinlm.") if not m.name.endswith("__main__"))


def examples(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("module", [module for module in MODULES if examples(module)])
def test_the_examples_of_a_module_hold(module: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in examples(module):
        assert runner.run(test).failed == 0, test.name


def test_there_are_examples() -> None:
    assert sum(len(examples(module)) for module in MODULES) >= 8
