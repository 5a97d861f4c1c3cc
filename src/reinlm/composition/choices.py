"""Convert between the values in a recipe and choice objects, in both directions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from reinlm.aliases import alias_hint
from reinlm.composition.algorithm import OVERLONG, Algorithm, Updates
from reinlm.composition.changes import (
    LISTS,
    OPTIONAL,
    between,
    build_choice,
    build_values,
    change,
    change_kl,
    change_list,
    change_values,
    choice_tree,
    refuse_null,
    value_tree,
)
from reinlm.errors import InputError, unknown
from reinlm.importable import is_place, is_placeholder, placeholder
from reinlm.objectives import CHOICES, KL

FIELDS = ("advantage", "ratio", "gate", "aggregation", "kl", *LISTS, *OPTIONAL, "overlong", "updates", "name")
"""Fields of `Algorithm` that a recipe may set."""
EARLIER_FIELDS = {"weights": "aggregation"}
"""Earlier name of a field -> its name."""


def compose(base: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    """`base` with some of its choices changed; see `reinlm.algorithm`, and `reinlm.composition.changes` for the rule."""
    changes = named_fields(changes)
    for key in changes:
        if key not in FIELDS:
            error = unknown(f"choice of {base.name}", key, FIELDS)
            raise InputError(error.message, hint=alias_hint(["algorithm", key], changes[key]) or error.hint)
    try:
        chosen = {key: _build(key, _changed(key, field_tree(base, key), value)) for key, value in changes.items()}
        origin = base.base or base.name
        renamed = chosen.get("name", base.name) != origin
        return replace(base, **chosen, base=origin if renamed else "")
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"algorithm {base.name}: {error}") from error


def merge_changes(base: Algorithm, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of `base` that are those of `old` and then those of `new`, as one mapping."""
    old, new = named_fields(old), named_fields(new)
    merged = {**old, **new}
    for key in old.keys() & new.keys() & set(FIELDS):
        before = field_tree(base, key)
        try:
            earlier = before if is_placeholder(old[key]) else _changed(key, before, old[key])
        except InputError:
            if isinstance(new[key], str | Mapping | Sequence):
                raise
            earlier = before  # an object replaces the whole choice, also one that is in no file
        if key == "updates":  # what was given alone: the trainer fits the paper's own number to small batches
            merged[key] = {**updates_in(old), **updates_in(new)}
            continue
        after = _changed(key, earlier, new[key])
        merged[key] = after if key in ("kl", "name", "overlong", *LISTS) else between(key, before, after)
    return merged


def updates_in(spec: Any) -> dict[str, int]:
    """The passes and minibatches that an algorithm in recipe syntax gives by itself, beside those of its base.

    Example:
        >>> updates_in({"base": "dapo", "updates": {"minibatches": 4}}), updates_in("dapo")
        ({'minibatches': 4}, {})
    """
    given = spec.get("updates") if isinstance(spec, Mapping) else None
    return {} if given is None else dict(_changed("updates", {}, given))


def spell_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values that changes give, each under its own name: `gate: {clip: [0.1]}` gives `gate: {clip: {low: 0.1}}`.

    What cannot be read on its own stays as it is.
    """
    spelled = named_fields(changes)
    for key, value in spelled.items():
        try:
            spelled[key] = _changed(key, {} if key in ("kl", "updates") else [] if key in LISTS else None, value)
        except (InputError, KeyError):  # it refers to what it changes, or is an error that `compose` names
            continue
    return spelled


def named_fields(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes with the earlier names of fields replaced, with a warning."""
    for old, new in EARLIER_FIELDS.items():
        if old not in changes:
            continue
        if new in changes:
            raise InputError(f"algorithm: {old} and {new} are one choice, given twice", hint=f"keep {new}")
        warnings.warn(f"algorithm: {old} is named {new}; say {new}", FutureWarning, stacklevel=3)
    return {EARLIER_FIELDS.get(key, key): value for key, value in changes.items()}


def field_tree(algorithm: Algorithm, key: str) -> Any:
    """One field of an algorithm as a tree, as `reinlm.composition.changes` has them."""
    value = getattr(algorithm, key)
    if key == "updates":
        return vars(value).copy()
    if key == "kl":
        return [value_tree(kl) for kl in value] if isinstance(value, tuple) else value and value_tree(value)
    return [choice_tree(item) for item in value] if key in LISTS else choice_tree(value)


def algorithm_spec(algorithm: Algorithm, base: Algorithm | None = None) -> dict[str, Any]:
    """The algorithm as a mapping in recipe syntax with every choice explicit, for config.yaml.

    `reinlm.algorithms.resolve` builds an equal algorithm from it, if all choices are registered or have a place in a file;
    other ones stand there as a placeholder.

    Args:
        base: the named algorithm that `base` names in it; by default one without wrappers around its choices.
    """
    tree: dict[str, Any] = {"base": algorithm.base or algorithm.name}
    if algorithm.base:
        tree["name"] = algorithm.name
    if base is not None and algorithm.updates != base.updates:
        own = vars(base.updates)
        tree["updates"] = {name: value for name, value in vars(algorithm.updates).items() if value != own[name]}
    for key in (key for key in FIELDS if key not in ("updates", "name")):
        value = getattr(algorithm, key)
        if key == "kl":
            tree[key] = [_values_of(kl) for kl in value] if isinstance(value, tuple) else value and _values_of(value)
        elif key in LISTS:
            tree[key] = [choice_spec(item) for item in value]
        else:
            tree[key] = between(key, base and field_tree(base, key), choice_spec(value))
    return tree


def choice_spec(choice: Any) -> Any:
    """A choice in recipe syntax: a name or a place, or {name: values}; a placeholder for what no recipe can name."""
    tree = choice_tree(choice)
    if tree is None or isinstance(tree, str):
        return tree
    if not isinstance(tree, Mapping):
        return placeholder(tree)
    ((name, values),) = tree.items()
    if not is_dataclass(choice) or (is_place(name) and not values):
        return name
    return {name: _spelled(choice, values)}


def _values_of(choice: Any) -> dict[str, Any]:
    return _spelled(choice, value_tree(choice))


def _spelled(choice: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a choice; a field that holds another choice has it in recipe syntax."""
    inner = {member.name: getattr(choice, member.name) for member in fields(choice) if "kind" in member.metadata}
    return {name: choice_spec(inner[name]) if name in inner else value for name, value in values.items()}


def _changed(key: str, old: Any, given: Any) -> Any:
    """The tree of a field after a change."""
    if key == "name":
        if not isinstance(given, str) or not given:
            raise InputError(f"name: {given!r} is no name for an algorithm", hint="a text such as my_grpo")
        return given
    if key == "overlong":
        if given not in OVERLONG:
            raise unknown("choice for overlong", str(given), OVERLONG)
        return given
    if key == "updates":
        if not isinstance(given, Mapping | Updates):
            raise InputError(f"updates: cannot read {given!r}", hint="write {passes: 1, minibatches: 4}")
        values = given if isinstance(given, Mapping) else vars(given)
        return {**(old or {}), **change_values("updates", Updates, old or {}, values)}
    if key == "kl":
        return change_kl(old, given)
    if key in LISTS:
        return change_list(LISTS[key], old, given)
    if given is None and key not in OPTIONAL:
        names = f"a name, or {{name: values}}; names: {', '.join(CHOICES[key])}"
        hint = f"write algorithm.{key}=none for none; {names}" if "none" in CHOICES[key] else names
        raise InputError(f"{key}: cannot read None", hint=hint)
    refuse_null(key, old, given)
    return change(key, old, given)


def _build(key: str, tree: Any) -> Any:
    """What the tree of a field stands for."""
    if key == "kl":
        several = isinstance(tree, list)
        return (
            tuple(build_values("kl", KL, item) for item in tree) if several else tree and build_values("kl", KL, tree)
        )
    if key == "updates":
        return Updates(**tree)
    if key in LISTS:
        return tuple(build_choice(LISTS[key], item) for item in tree)
    return tree if key in ("name", "overlong") else build_choice(key, tree)
