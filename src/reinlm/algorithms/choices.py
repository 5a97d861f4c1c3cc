"""From what a recipe says to the choices themselves; strings stop here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from reinlm.algorithms.algorithm import Algorithm
from reinlm.algorithms.filters import MixedOutcomes
from reinlm.algorithms.shapers import SoftOverlong
from reinlm.errors import InputError, unknown
from reinlm.objectives import (
    KL,
    Clip,
    ConstantBudget,
    GroupCenter,
    GroupStandardize,
    SequenceRatio,
    TokenRatio,
    prompt_mean,
    sequence_mean,
    sequence_sum,
    token_mean,
)

AGGREGATIONS = {f.__name__: f for f in (token_mean, sequence_mean, prompt_mean, sequence_sum)}

CHOICES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "advantage": {"group_standardize": GroupStandardize, "group_center": GroupCenter},
    "ratio": {"token": TokenRatio, "sequence": SequenceRatio},
    "gate": {"clip": Clip},
    "weights": {**{name: (lambda f=f: f) for name, f in AGGREGATIONS.items()}, "constant_budget": ConstantBudget},
    "shapers": {"soft_overlong": SoftOverlong},
    "filters": {"mixed_outcomes": MixedOutcomes},
}
"""kind -> name in a recipe -> what builds the choice. A new choice is one line here."""

LISTS = ("shapers", "filters")


def compose(base: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    """`base` with some of its choices replaced; see `reinlm.algorithms.algorithm`."""
    allowed = [*CHOICES, "kl", "name"]
    for key in changes:
        if key not in allowed:
            raise unknown(f"choice of {base.name}", key, allowed)
    try:
        chosen = {key: _choice(key, value, base) for key, value in changes.items()}
        origin = base.base or base.name
        renamed = chosen.get("name", base.name) != origin
        return replace(base, **chosen, base=origin if renamed else "")
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"algorithm {base.name}: {error}") from error


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm as a recipe would say it, every choice spelled out; for configuration files.

    `reinlm.algorithms.resolve` rebuilds from it what a named algorithm and named choices made; a choice from outside
    the library is named by its class alone.
    """
    names = {build: name for options in CHOICES.values() for name, build in options.items()}

    def spell(choice: Any) -> Any:
        if is_dataclass(choice) and not isinstance(choice, type):
            name = names.get(type(choice), type(choice).__name__)
            return {name: asdict(choice)}
        return getattr(choice, "__name__", repr(choice))

    tree: dict[str, Any] = {"base": algorithm.base or algorithm.name}
    if algorithm.base:
        tree["name"] = algorithm.name
    for kind in CHOICES:
        value = getattr(algorithm, kind)
        tree[kind] = [spell(item) for item in value] if kind in LISTS else spell(value)
    tree["kl"] = asdict(algorithm.kl) if algorithm.kl else None
    return tree


def _choice(kind: str, value: Any, base: Algorithm) -> Any:
    if kind == "name":
        if not isinstance(value, str) or not value:
            raise InputError(f"name: {value!r} is no name for an algorithm", hint="a text such as my_grpo")
        return value
    if kind == "kl":
        return _kl(value, base.kl)
    if kind in LISTS:
        items = [] if value is None else value if isinstance(value, list | tuple) else [value]
        return tuple(_build(kind, item) for item in items)
    return _build(kind, value)


def _kl(value: Any, base: KL | None) -> KL | None:
    if value is None or isinstance(value, KL):
        return value
    if isinstance(value, Mapping):
        return replace(base or KL(), **_values("kl", KL, value))
    raise InputError(f"kl: {value!r} is no KL choice", hint="null for none, or {estimator: k3, coefficient: 0.04}")


def _build(kind: str, spec: Any) -> Any:
    """A choice from an instance, a name, or {name: one value | list of values | mapping of values}."""
    options = CHOICES[kind]
    if isinstance(spec, str):
        name, given = spec, None
    elif isinstance(spec, Mapping) and len(spec) == 1:
        name, given = next(iter(spec.items()))
    elif callable(spec) and not isinstance(spec, type) and _kind(spec) in {kind, None}:
        return spec
    else:
        raise InputError(
            f"{kind}: cannot read {spec!r}", hint=f"a name, or {{name: values}}; names: {', '.join(options)}"
        )
    if name not in options:
        raise unknown(kind, str(name), options)
    return options[name](**_values(name, options[name], given))


def _kind(choice: Any) -> str | None:
    """Which kind of choice an instance is, or None for one from outside the library."""
    if choice in AGGREGATIONS.values():
        return "weights"
    return next((kind for kind, options in CHOICES.items() if type(choice) in options.values()), None)


def _values(name: str, build: Any, given: Any) -> dict[str, Any]:
    """The values of a choice by field, from one value, a list of values or a mapping; each of the field's type."""
    members = fields(build) if is_dataclass(build) else ()
    known = {field.name: get_type_hints(build)[field.name] for field in members}
    if not isinstance(given, Mapping):
        values = [] if given is None else given if isinstance(given, list | tuple) else [given]
        if len(values) > len(known):
            raise InputError(f"{name} takes {len(known)} values, not {len(values)}: {given!r}", hint=", ".join(known))
        given = dict(zip(known, values, strict=False))
    for field in members:
        if field.default is MISSING and field.name not in given:
            raise InputError(f"{name} needs a value for {field.name!r}", hint=f"{{{name}: value}}")
    for key, value in given.items():
        if key not in known:
            raise unknown(f"value of {name}", str(key), known)
        try:
            TypeAdapter(known[key]).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise InputError(f"{name}.{key}: {message[0].lower()}{message[1:]} (given: {value!r})") from error
    return dict(given)
