"""Convert between the values in a recipe and choice objects, in both directions."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from reinlm.aliases import alias_hint
from reinlm.composition import filters, shapers  # noqa: F401  they register their choices
from reinlm.composition.algorithm import OVERLONG, Algorithm
from reinlm.errors import InputError, unknown
from reinlm.objectives import CHOICES, KL
from reinlm.objectives.earlier import EARLIER

LISTS = {
    "corrections": "correction",
    "terms": "term",
    "constraints": "constraint",
    "shapers": "shaper",
    "filters": "filter",
}
"""Fields of `Algorithm` that hold a tuple of choices, and the kind of these."""
OPTIONAL = ("sequence_mask", "selection", "entropy", "critic")
"""Fields that may be null."""
FIELDS = ("advantage", "ratio", "gate", "weights", "kl", *LISTS, *OPTIONAL, "overlong", "name")
"""Fields of `Algorithm` that a recipe may set."""


def compose(base: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    """`base` with some of its choices replaced; see `reinlm.algorithm`."""
    for key in changes:
        if key not in FIELDS:
            error = unknown(f"choice of {base.name}", key, FIELDS)
            raise InputError(error.message, hint=alias_hint(["algorithm", key]) or error.hint)
    try:
        chosen = {key: _choice(key, value, base) for key, value in changes.items()}
        origin = base.base or base.name
        renamed = chosen.get("name", base.name) != origin
        return replace(base, **chosen, base=origin if renamed else "")
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"algorithm {base.name}: {error}") from error


def algorithm_spec(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm as a mapping in recipe syntax with every choice explicit, for config.yaml.

    `reinlm.algorithms.resolve` builds an equal algorithm from it, if all choices are registered; of other choices it holds
    the class name and the fields.
    """
    tree: dict[str, Any] = {"base": algorithm.base or algorithm.name}
    if algorithm.base:
        tree["name"] = algorithm.name
    for key in FIELDS[:-1]:
        value = getattr(algorithm, key)
        if key == "kl":
            tree[key] = [_values_of(kl) for kl in value] if isinstance(value, tuple) else value and _values_of(value)
        else:
            tree[key] = [choice_spec(item) for item in value] if key in LISTS else choice_spec(value)
    return tree


def choice_spec(choice: Any) -> Any:
    """A choice in recipe syntax: a name, or {name: values}."""
    if choice is None or isinstance(choice, str):
        return choice
    known = {made: name for options in CHOICES.values() for name, made in options.items()}
    if is_dataclass(choice) and not isinstance(choice, type):
        return {known.get(type(choice), type(choice).__name__): _values_of(choice)}
    return known.get(choice) or getattr(choice, "__name__", repr(choice))


def _values_of(choice: Any) -> dict[str, Any]:
    values = ((member, getattr(choice, member.name)) for member in fields(choice))
    return {member.name: choice_spec(value) if "kind" in member.metadata else value for member, value in values}


def _choice(key: str, value: Any, base: Algorithm) -> Any:
    if key == "name":
        if not isinstance(value, str) or not value:
            raise InputError(f"name: {value!r} is no name for an algorithm", hint="a text such as my_grpo")
        return value
    if key == "overlong":
        if value not in OVERLONG:
            raise unknown("choice for overlong", str(value), OVERLONG)
        return value
    if key == "kl":
        return _kl(value, base)
    if key in LISTS:
        items = [] if value is None else value if isinstance(value, list | tuple) else [value]
        return tuple(_build(LISTS[key], item) for item in items)
    return None if value is None and key in OPTIONAL else _build(key, value)


def _kl(value: Any, base: Algorithm) -> KL | tuple[KL, ...] | None:
    """One mapping changes the single KL of the base, or makes a new one; a list replaces all."""
    if value is None or isinstance(value, KL):
        return value
    if isinstance(value, list | tuple):
        return tuple(item if isinstance(item, KL) else _one_kl(item, KL()) for item in value)
    if isinstance(base.kl, tuple):
        raise InputError(
            f"kl: {base.name} has {len(base.kl)} KL terms, so {value!r} may mean either", hint="give the whole list"
        )
    return _one_kl(value, base.kl or KL())


def _one_kl(value: Any, start: KL) -> KL:
    if isinstance(value, Mapping):
        return replace(start, **_values("kl", KL, value))
    raise InputError(f"kl: {value!r} is no KL choice", hint="null for none, or {estimator: k3, coefficient: 0.04}")


def _build(kind: str, spec: Any) -> Any:
    """A choice from an instance, a name, or {name: one value | list of values | mapping of values}."""
    options = CHOICES[kind]
    if isinstance(spec, str):
        name, given = spec, None
    elif isinstance(spec, Mapping) and len(spec) == 1 and next(iter(spec)) in options:
        name, given = next(iter(spec.items()))
    elif kind in OPTIONAL and len(options) == 1 and isinstance(spec, Mapping | list | tuple | float | int):
        name, given = next(iter(options)), spec  # the only choice of its kind: the name may be left out
    elif isinstance(spec, Mapping) and len(spec) == 1:
        name, given = next(iter(spec.items()))
    elif not isinstance(spec, type | Mapping) and _is_choice(kind, spec):
        return spec
    else:
        raise InputError(
            f"{kind}: cannot read {spec!r}", hint=f"a name, or {{name: values}}; names: {', '.join(options)}"
        )
    if name not in options:
        raise unknown(kind, str(name), options)
    made = options[name]
    if inspect.isfunction(made):
        if given:
            raise InputError(f"{name} takes no values: {given!r}", hint=f"write {name} alone")
        return made
    return made(**_values(name, made, given))


def _is_choice(kind: str, made: Any) -> bool:
    """Whether an object is a registered choice of this kind, or an unregistered callable or dataclass."""
    homes = [home for home, options in CHOICES.items() if made in options.values() or type(made) in options.values()]
    if homes:
        return kind in homes
    return callable(made) or is_dataclass(made)


def _values(name: str, build: Any, given: Any) -> dict[str, Any]:
    """The values of a choice by field, from one value, a list of values or a mapping; each of the field's type."""
    members = {field.name: field for field in fields(build)} if is_dataclass(build) else {}
    hints = get_type_hints(build, localns={"Advantage": Any, "Controller": Any}) if members else {}
    if not isinstance(given, Mapping) or _names_a_choice(members, given):
        values = [] if given is None else given if isinstance(given, list | tuple) else [given]
        if len(values) > len(members):
            raise InputError(
                f"{name} takes {len(members)} values, not {len(values)}: {given!r}", hint=", ".join(members)
            )
        given = dict(zip(members, values, strict=False))
    given = {_renamed(name, str(key), members, given): value for key, value in given.items()}
    for key, field in members.items():
        if field.default is MISSING and key not in given:
            raise InputError(f"{name} needs a value for {key!r}", hint=f"{{{name}: value}}")
    values_by_name = {}
    for key, value in given.items():
        if key not in members:
            raise unknown(f"value of {name}", str(key), members)
        if "kind" in members[key].metadata:
            values_by_name[key] = None if value is None else _build(members[key].metadata["kind"], value)
            continue
        try:
            TypeAdapter(hints[key]).validate_python(value, strict=True)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise InputError(f"{name}.{key}: {message[0].lower()}{message[1:]} (given: {value!r})") from error
        values_by_name[key] = value
    return values_by_name


def _renamed(choice: str, key: str, members: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """The name by which a value goes, with a warning where the recipe says an earlier one."""
    new = EARLIER.get(key, key)
    if key in members or new not in members:
        return key
    if new in given:
        raise InputError(f"{choice}: {key} and {new} are one value, given twice", hint=f"keep {new}")
    warnings.warn(f"{choice}: {key} is named {new}; say {new}", FutureWarning, stacklevel=2)
    return new


def _names_a_choice(members: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether `given` is itself the choice that the first field holds, as in {whitened: {gae: …}}."""
    first = next(iter(members.values()), None)
    if first is None or "kind" not in first.metadata or any(key in members for key in given):
        return False
    return any(key in CHOICES[first.metadata["kind"]] for key in given)
