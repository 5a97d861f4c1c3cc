"""Named algorithms, one file each: compositions of the choices in `reinlm.objectives` with the defaults of their papers."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from reinlm.algorithms.ladder import ALGORITHMS, CARDS, Card, algorithm_name, ladder
from reinlm.composition import (
    Algorithm,
    AlgorithmState,
    GroupFilter,
    MissingEnd,
    MixedOutcomes,
    Objective,
    Shaper,
    SoftOverlong,
    Updates,
    algorithm_spec,
    compose,
)
from reinlm.errors import InputError
from reinlm.renamed import renamed


def algorithm(name: str, /, **changes: Any) -> Algorithm:
    """A named algorithm, with any of its choices replaced.

    A change is a choice object or its value in recipe syntax: `gate=Clip(0.2, 0.3)`, `gate={"clip": [0.2, 0.3]}`,
    `ratio="sequence"`, `weights="token_mean"`, `kl=None`, `kl={"coefficient": 0.01}`, and `name="mine"` to rename it.

    Case, hyphens and underscores in the name make no difference.

    Raises InputError (a ValueError) for an unknown name, an unknown choice, or changes that contradict one another.

    Example:
        >>> algorithm("grpo", kl=None, gate={"clip": [0.2, 0.28]}).gate
        Clip(low=0.2, high=0.28, dual=None)
    """
    return compose(ALGORITHMS[algorithm_name(name)](), changes)


def resolve(spec: str | Mapping[str, Any] | Algorithm) -> Algorithm:
    """The algorithm that a recipe names: `dapo`, or `{base: grpo, kl: null, gate: {clip: [0.2, 0.28]}}`."""
    if isinstance(spec, Algorithm):
        return spec
    if isinstance(spec, str):
        return algorithm(spec)
    if not isinstance(spec, Mapping):
        raise InputError(f"algorithm: cannot read {spec!r}", hint="a name, or {base: grpo, …}")
    changes = dict(spec)
    base = changes.pop("base", None)
    if not isinstance(base, str):
        raise InputError(
            "algorithm: a mapping needs 'base', the algorithm that it changes", hint="algorithm: {base: grpo, …}"
        )
    return algorithm(base, **changes)


for _module in pkgutil.iter_modules(__path__):  # importing the file of an algorithm registers it
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ALGORITHMS",
    "CARDS",
    "Algorithm",
    "AlgorithmState",
    "Card",
    "GroupFilter",
    "MissingEnd",
    "MixedOutcomes",
    "Objective",
    "Shaper",
    "SoftOverlong",
    "Updates",
    "algorithm",
    "algorithm_name",
    "algorithm_spec",
    "ladder",
    "resolve",
]

renamed(
    __name__,
    {"describe": "reinlm.composition:algorithm_spec"}
    | {
        name: f"reinlm.composition.{name}"
        for name in ("choices", "compatibility", "composition", "document", "filters", "measure", "shapers")
    },
)
