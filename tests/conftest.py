"""Shapes are checked at run time: what signatures say of tensors, which type checkers cannot see, holds in every test."""

from __future__ import annotations

import builtins
import importlib
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import coverage
import jaxtyping
import pytest
import torch
from hypothesis import settings

import shape_checks

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # tests need no network: a name that is nowhere is refused without retries

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)  # processes that tests start are not measured: it slows their start

CHECK_SHAPES = "MUTANT_UNDER_TEST" not in os.environ  # mutation tests ask whether the tests notice, not the annotations
SHAPES = ("Float", "Int", "Bool", "Shaped")

if CHECK_SHAPES:
    for _name in SHAPES:  # the package imports them for type checkers alone
        setattr(builtins, _name, getattr(jaxtyping, _name))
    with shape_checks.install("reinlm"):
        import reinlm

        for _module in pkgutil.walk_packages(reinlm.__path__, "reinlm."):
            if not _module.name.endswith("__main__"):
                importlib.import_module(_module.name)

torch.set_num_threads(1)
os.fsync = lambda fd: None  # no test cuts the power, and files are made by the thousand
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
EXAMPLES = 30 if CHECK_SHAPES else 10
settings.register_profile("reinlm", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES)
settings.load_profile("reinlm")


@pytest.fixture(autouse=True)
def registers() -> Iterator[None]:
    """Registers of parts, the import path and the working directory as they were before the test, which may change them."""
    here = os.getcwd()
    from reinlm.importable import IMPORTED
    from reinlm.loop.trackers import registry
    from reinlm.objectives import CHOICES
    from reinlm.parts import PARTS
    from reinlm.records import COLUMNS
    from reinlm.runs import METRICS
    from reinlm.schedules import SCHEDULES

    ladder = sys.modules["reinlm.algorithms.ladder"]
    tables: list[dict[str, Any]] = [*PARTS.values(), *CHOICES.values(), SCHEDULES, COLUMNS, registry._KINDS, METRICS]
    tables += [ladder.ALGORITHMS, ladder.CARDS]
    before, path = [dict(table) for table in tables], list(sys.path)
    yield
    os.chdir(here)
    sys.path[:] = path
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)
    for name in [name for name in sys.modules if name.startswith(IMPORTED)]:
        del sys.modules[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Coverage is measured in tests that are not marked `no_cover`."""
    measured = coverage.Coverage.current()
    if measured is None or item.get_closest_marker("no_cover") is None:
        return (yield)
    measured.stop()
    try:
        return (yield)
    finally:
        measured.start()  # which sets it again
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names without addresses: processes that share the tests must agree on them."""
    return re.sub(r" at 0x[0-9a-f]+", "", val) if isinstance(val, str) and " at 0x" in val else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where one failure ends a run, as for a mutant, the numbers worked out by hand come before the drawn ones."""
    if not CHECK_SHAPES:
        items.sort(key=lambda item: item.get_closest_marker("hypothesis") is not None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the test of the documentation ran, and what it lists instead (tests/docs/test_docs_executed.py)."""
    ran = {"commands": 0, "snippets": 0, "recipes": 0}
    listed: list[str] = []
    for report in terminalreporter.getreports("passed"):
        for name, counts in report.user_properties:
            for what, number in counts.items() if name == "documentation" else ():
                if what in ran:
                    ran[what] += number
                elif what not in listed:
                    listed.append(what)
    if any(ran.values()):
        numbers = ", ".join(f"{number} {what}" for what, number in ran.items())
        terminalreporter.write_line(f"documentation: {numbers} were run; {len(listed)} others are listed:")
        for line in listed:
            terminalreporter.write_line(f"  {line}")
