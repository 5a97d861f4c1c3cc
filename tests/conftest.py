"""Shapes are checked at run time: the annotations of the mathematics, which only type checkers read otherwise, hold here."""

from __future__ import annotations

import os
import signal
import typing
from collections.abc import MutableSequence

import beartype  # noqa: F401  what must not see TYPE_CHECKING as true is imported before
import jaxtyping
import pytest
import torch
from hypothesis import settings

CHECK_SHAPES = "MUTANT_UNDER_TEST" not in os.environ  # mutation tests ask whether the tests notice, not the annotations

CHECKER = (
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"  # an int is a float, as for type checkers
)

if CHECK_SHAPES:
    typing.TYPE_CHECKING = True
    try:
        with jaxtyping.install_import_hook("reinlm.objectives", CHECKER):
            import reinlm.objectives  # noqa: F401
    finally:
        typing.TYPE_CHECKING = False

torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
EXAMPLES = 30 if CHECK_SHAPES else 10
settings.register_profile("reinlm", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES)
settings.load_profile("reinlm")


def pytest_collection_modifyitems(items: MutableSequence[pytest.Item]) -> None:
    """Where one failure ends a run, as for a mutant, the numbers worked out by hand come before the drawn ones."""
    if not CHECK_SHAPES:
        items.sort(key=lambda item: item.get_closest_marker("hypothesis") is not None)
