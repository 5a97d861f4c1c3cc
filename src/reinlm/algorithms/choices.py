"""From what a recipe says to the choices themselves; strings stop here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

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
        return replace(base, **chosen)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"algorithm {base.name}: {error}") from error


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm as a recipe would say it, every choice spelled out; for configuration files."""
    names = {build: name for options in CHOICES.values() for name, build in options.items()}

    def spell(choice: Any) -> Any:
        if is_dataclass(choice) and not isinstance(choice, type):
            name = names.get(type(choice), type(choice).__name__)
            return {name: asdict(choice)}
        return getattr(choice, "__name__", repr(choice))

    tree: dict[str, Any] = {"base": algorithm.name}
    for kind in CHOICES:
        value = getattr(algorithm, kind)
        tree[kind] = [spell(item) for item in value] if kind in LISTS else spell(value)
    tree["kl"] = asdict(algorithm.kl) if algorithm.kl else None
    return tree


def _choice(kind: str, value: Any, base: Algorithm) -> Any:
    if kind == "name":
        return str(value)
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
        for key in value:
            if key not in KL.__dataclass_fields__:
                raise unknown("key of kl", key, KL.__dataclass_fields__)
        return replace(base or KL(), **value)
    raise InputError(f"kl: {value!r} is no KL choice", hint="null for none, or {estimator: k3, coefficient: 0.04}")


def _build(kind: str, spec: Any) -> Any:
    """A choice from an instance, a name, or {name: one value | list of values | mapping of values}."""
    options = CHOICES[kind]
    if isinstance(spec, str):
        name, given = spec, None
    elif isinstance(spec, Mapping) and len(spec) == 1:
        name, given = next(iter(spec.items()))
    elif callable(spec):
        return spec
    else:
        raise InputError(
            f"{kind}: cannot read {spec!r}", hint=f"a name, or {{name: values}}; names: {', '.join(options)}"
        )
    if name not in options:
        raise unknown(kind, str(name), options)
    build = options[name]
    if given is None:
        return build()
    if isinstance(given, Mapping):
        known = [field.name for field in fields(build)] if is_dataclass(build) else []
        for key in given:
            if key not in known:
                raise unknown(f"value of {name}", key, known)
        return build(**given)
    return build(*(given if isinstance(given, list | tuple) else [given]))
