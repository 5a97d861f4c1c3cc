"""Named algorithms, one file each: compositions of the choices in `reinlm.objectives` with the defaults of their papers."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from reinlm.algorithms.cards import Card
from reinlm.algorithms.ladder import ALGORITHMS, CARDS, algorithm_name, ladder
from reinlm.algorithms.preference import (
    PREFERENCE_CARDS,
    PREFERENCES,
    is_preference,
    merge_preference_specs,
    of_judgements,
    preference_algorithm,
    preference_algorithm_spec,
    preference_name,
    resolve_preference,
)
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
    compose,
    merge_changes,
    spell_changes,
)
from reinlm.composition import algorithm_spec as spec_of
from reinlm.composition.preference import PreferenceAlgorithm
from reinlm.errors import InputError
from reinlm.renamed import renamed


def algorithm(name: str, /, **changes: Any) -> Algorithm:
    """A named algorithm, with any of its choices changed.

    A change is a choice object or its value in recipe syntax: `gate=Clip(0.2, 0.3)`, `gate={"clip": [0.2, 0.3]}`,
    `ratio="sequence"`, `aggregation="token_mean"`, `kl=None`, `kl={"coefficient": 0.01}`, `kl=0.01`, `kl="k3"`, and
    `name="mine"` to rename it. A given value changes that value and nothing beside it: `gate={"clip": {"high": 0.3}}` keeps
    the clip's `low`, and another kind than the one that is there comes with its own defaults (`reinlm.composition.changes`).

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


def algorithm_spec(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm as a mapping in recipe syntax with every choice explicit; `resolve` builds an equal one from it.

    A choice that no file holds under a name stands there as a placeholder. An algorithm that is not registered is spelled
    out as changes of grpo.
    """
    if (algorithm.base or algorithm.name) not in ALGORITHMS:
        algorithm = replace(algorithm, base="grpo")
    return spec_of(algorithm, ALGORITHMS[algorithm.base or algorithm.name]())


def merge_specs(old: Any, new: Any, default: str) -> Any:
    """The algorithm that a recipe names, after a change of it: what `old` and then `new` say, in recipe syntax.

    Args:
        old, new: a name, or a mapping of changes, with `base` or without.
        default: the base of a mapping without one.

    Example:
        >>> merge_specs("dapo", {"kl": {"coefficient": 0.1}}, "grpo")
        {'base': 'dapo', 'kl': {'coefficient': 0.1}}
    """
    if not all(isinstance(spec, str | Mapping) for spec in (old, new)):
        return new
    before, after = ({"base": spec} if isinstance(spec, str) else dict(spec) for spec in (old, new))
    base = before.pop("base", default)
    named = after.pop("base", base)
    if not (isinstance(base, str) and isinstance(named, str)):
        return new
    base = algorithm_name(base)
    if algorithm_name(named) != base:
        return new
    changes = merge_changes(ALGORITHMS[base](), before, after)
    if not changes:
        return base
    spelled = any(isinstance(spec, str) or "base" in spec for spec in (old, new))
    return ({"base": base} if spelled else {}) | changes


for _module in pkgutil.iter_modules(__path__):  # importing the file of an algorithm registers it
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ALGORITHMS",
    "CARDS",
    "PREFERENCES",
    "PREFERENCE_CARDS",
    "Algorithm",
    "AlgorithmState",
    "Card",
    "GroupFilter",
    "MissingEnd",
    "MixedOutcomes",
    "Objective",
    "PreferenceAlgorithm",
    "Shaper",
    "SoftOverlong",
    "Updates",
    "algorithm",
    "algorithm_name",
    "algorithm_spec",
    "is_preference",
    "ladder",
    "merge_preference_specs",
    "merge_specs",
    "of_judgements",
    "preference_algorithm",
    "preference_algorithm_spec",
    "preference_name",
    "resolve",
    "resolve_preference",
    "spell_changes",
]

renamed(
    __name__,
    {"describe": "reinlm.composition:algorithm_spec"}
    | {
        name: f"reinlm.composition.{name}"
        for name in ("choices", "compatibility", "composition", "document", "filters", "measure", "shapers")
    },
)
