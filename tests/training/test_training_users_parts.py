"""A part of a user's own that gives nonsense, or whose configuration does not fit, is named in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import reinlm
from reinlm.config import Config
from reinlm.objectives import CHOICES, choice
from reinlm.parts import PARTS, part
from reinlm.schedules import SCHEDULES, schedule
from tiny_runs import run_rl


@pytest.fixture(autouse=True)
def parts() -> Iterator[None]:
    """Parts that give what cannot be used, under names of this file."""

    @part("optimizer", "broken_number")
    class Number(Config):
        def build(self, groups: Any, config: Any) -> Any:
            return 3

    @part("optimizer", "broken_arguments")
    class Arguments(Config):
        def build(self, groups: Any) -> Any:
            return torch.optim.SGD(groups)

    @schedule("broken_text")
    def text(done: float) -> Any:
        return "half"

    @schedule("broken_infinite")
    def infinite(done: float) -> float:
        return float("inf")

    @choice("term", "broken_term")
    @dataclass(frozen=True)
    class BrokenTerm:
        gives: str = "number"

        def __call__(self, logprobs: Any, signals: Any, distribution: Any) -> Any:
            if self.gives == "error":
                return 1 / 0
            return 3 if self.gives == "number" else logprobs[:1].reshape(1, 1)

    yield
    for name in ("broken_number", "broken_arguments"):
        del PARTS["optimizer"][name]
    del SCHEDULES["broken_text"], SCHEDULES["broken_infinite"], CHOICES["term"]["broken_term"]


def term(**values: Any) -> dict[str, Any]:
    return {"algorithm": {"terms": [{"broken_term": values}]}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"optimizer": {"name": "broken_number"}}, "optimizer 'broken_number': build gave int"),
        ({"optimizer": {"name": "broken_arguments"}}, "optimizer 'broken_arguments' cannot be made: TypeError"),
        ({"optimizer": {"name": "broken_number", "options": {"x": 1}}}, "optimizer broken_number: unknown key 'x'"),
        ({"optimizer": {"name": "sgd", "schedule": "broken_text"}}, "schedule 'broken_text' fails at 0: ValueError"),
        ({"optimizer": {"name": "sgd", "schedule": "broken_infinite"}}, "schedule 'broken_infinite' gives inf at 0"),
        (term(), "loss term BrokenTerm returned int, not a tensor"),
        (term(gives="shape"), r"loss term BrokenTerm returned torch.float64 of shape \(1, 1\) for \d+ tokens"),
        (term(gives="error"), "loss term BrokenTerm failed: ZeroDivisionError: division by zero"),
        (term(gives=3), r"broken_term\.gives"),
    ],
)
def test_a_part_that_cannot_be_used_is_named(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    if "optimizer" in changes:
        changes["optimizer"] = {"max_grad_norm": 1.0, **changes["optimizer"]}
    with pytest.raises(reinlm.InputError, match=told):
        run_rl(tmp_path / "run", **changes)
