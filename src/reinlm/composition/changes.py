"""One rule for changes of an algorithm's choices: a given value changes that value and nothing beside it.

A choice is a tree here: `{name: {field: value}}` for a registered or importable one, the object itself for any other, None
where there is none. `change` lays what a user wrote over such a tree:

- the kind that is there keeps its other values: `{clip: {high: 0.3}}` over a clip keeps its `low`;
- another kind replaces it, with that kind's own defaults;
- one value, or a list, sets the fields in their order: `{clip: [0.1, 0.3]}`;
- null removes: `critic: null`;
- a wrapper, such as `whitened` around an advantage, stays where the kind inside it is named, is put around what is there by
  its own name, and is taken off by `whitened: null`;
- an object from Python is the whole choice.

A name may be the place of a user's own function or class, `mine.py:NAME` or `package.module:NAME`.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from reinlm.aliases.tables import ALIASES
from reinlm.composition import filters, shapers  # noqa: F401  they register their choices
from reinlm.composition.functions import function_in
from reinlm.errors import InputError, unknown
from reinlm.importable import find, is_place, is_placeholder, is_plain, names_there, place_of
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


def choice_tree(choice: Any) -> Any:
    """A choice as a tree; an object that no recipe can name is its own tree."""
    if choice is None or isinstance(choice, str):
        return choice
    choice = function_in(choice)
    known = {made: name for options in CHOICES.values() for name, made in options.items()}
    if is_dataclass(choice) and not isinstance(choice, type):
        name, values = known.get(type(choice)), value_tree(choice)
        if name is not None:
            return {name: values}
        home = place_of(type(choice))
        if home is not None and is_plain(values):
            return {home: values}
    name = known.get(choice) if _hashable(choice) else None
    home = name or place_of(choice)
    return choice if home is None else {home: {}}


def value_tree(choice: Any) -> dict[str, Any]:
    """The values of a dataclass by field; a field that holds a choice has its tree."""
    values = ((member, getattr(choice, member.name)) for member in fields(choice) if member.init)
    return {member.name: choice_tree(value) if "kind" in member.metadata else value for member, value in values}


def change(kind: str, old: Any, given: Any) -> Any:
    """The tree of a choice after a change.

    Args:
        kind: of the choice, as in `CHOICES`.
        old: the tree that is changed; None for none.
        given: an instance, a name, {name: one value | list of values | mapping of values}, or null.

    Raises:
        InputError: a name, a value or a number of values that does not fit.
    """
    if given is None or (given == "none" and kind in OPTIONAL and "none" not in CHOICES[kind]):
        return None
    if isinstance(given, type):
        raise InputError(f"{kind}: {given.__name__} is a class", hint=f"give an instance of it: {given.__name__}(…)")
    if _is_instance(kind, given):
        return choice_tree(given)
    named = _names(kind, given)
    for name in [name for name, values in named.items() if values is None and _inner(kind, name) is not None]:
        old = _without(kind, old, name)
        del named[name]
    if not named:
        return old
    if len(named) > 1:
        raise _unreadable(kind, given)
    ((name, values),) = named.items()
    return _set(kind, old, _known(kind, name, old), values)


def change_list(kind: str, old: Sequence[Any], given: Any) -> list[Any]:
    """The trees of a list of choices after a change.

    A list says which choices there are; a mapping whose names all stand in the old list changes those and leaves the
    others. An item of a kind that was there keeps its other values.
    """
    if isinstance(given, Mapping) and given and all(_position(old, str(name)) is not None for name in given):
        changed = list(old)
        for name, values in given.items():
            at = _position(changed, str(name))
            assert at is not None
            refuse_null(kind, changed[at], given)
            changed[at] = _set(kind, changed[at], str(name), values)
        return changed
    items = [] if given is None else given if isinstance(given, list | tuple) else [given]
    if isinstance(given, Mapping) and len(given) > 1:
        items = [{name: values} for name, values in given.items()]
    left, made = list(old), []
    for item in items:
        named = None if _is_instance(kind, item) else _names(kind, item)
        at = _position(left, next(iter(named))) if named and len(named) == 1 else None
        made.append(change(kind, None if at is None else left.pop(at), item))
    return made


def refuse_null(kind: str, old: Any, given: Any) -> None:
    """Raise InputError for `{name: null}` of the choice that is in force: only a wrapper is removed so."""
    for name, values in given.items() if isinstance(given, Mapping) else ():
        there = (isinstance(old, Mapping) and name in old) or _wrapper_of(kind, old, name) is not None
        if values is not None or not there or _inner(kind, name) is not None:
            continue
        field = next((key for key, item in LISTS.items() if item == kind), kind)
        hint = f"write algorithm.{field}={'null' if kind in OPTIONAL else '[]'} for none"
        if kind not in (*LISTS.values(), *OPTIONAL):
            hint = "write algorithm.gate=none for none" if kind == "gate" else f"names: {', '.join(CHOICES[kind])}"
        raise InputError(f"algorithm.{field}.{name}: null removes nothing here", hint=hint)


def change_kl(old: Any, given: Any) -> Any:
    """The values of the KL after a change; a list holds several, each from the defaults.

    A number is the coefficient and a text the estimator: `0.1`, `k3`; `none` is null.
    """
    if given is None or given == "none":
        return None
    if isinstance(given, KL):
        return value_tree(given)
    if isinstance(given, list | tuple):
        if given and all(isinstance(item, str | int | float) for item in given):
            raise InputError(
                f"kl: a list holds several KL terms, not the values of one: {given!r}",
                hint="write {estimator: k3, coefficient: 0.04}",
            )
        return [change_kl({}, item) for item in given]
    values = _kl_values(given)
    if isinstance(old, list) and not values.keys() >= {member.name for member in fields(KL)}:
        raise InputError(
            f"kl: there are {len(old)} KL terms, so {given!r} may mean either of them", hint="give the whole list"
        )
    start = {} if old is None or isinstance(old, list) else old
    return {**start, **change_values("kl", KL, start, values)}


def _kl_values(given: Any) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    if isinstance(given, str):
        return {"estimator": given}
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"coefficient": given}
    raise InputError(
        f"kl: {given!r} is no KL choice",
        hint="null for none, a coefficient (0.04), an estimator (k3), or {estimator: k3, coefficient: 0.04}",
    )


def between(kind: str, base: Any, tree: Any) -> Any:
    """What `change` takes to come from `base` to `tree`: the tree, with null for each wrapper that it lacks."""
    if not isinstance(tree, Mapping) or _wrapper_of(kind, base, next(iter(tree))) is None:
        return tree
    lacking: dict[str, Any] = {}
    inner = base
    while isinstance(inner, Mapping) and next(iter(inner)) != next(iter(tree)):
        name = next(iter(inner))
        lacking[name] = None
        inner = inner[name][_inner(kind, name)]
    return lacking | dict(tree)


def build_choice(kind: str, tree: Any) -> Any:
    """The choice that a tree stands for. Raises InputError for a missing value, ValueError for one out of range."""
    if not isinstance(tree, Mapping):
        return tree
    ((name, values),) = tree.items()
    made = _made(kind, name)
    return build_values(name, made, values) if isinstance(made, type) else made


def build_values(name: str, made: Any, values: Mapping[str, Any]) -> Any:
    """An instance of `made` from its values by field."""
    members = _members(made)
    for key, member in members.items():
        if member.default is MISSING and member.default_factory is MISSING and key not in values:
            raise InputError(f"{name} needs a value for {key!r}", hint=f"{{{name}: value}}")
    return made(
        **{
            key: build_choice(members[key].metadata["kind"], value) if "kind" in members[key].metadata else value
            for key, value in values.items()
        }
    )


# ------------------------------------------------------------------------------------------------ wrappers


def _inner(kind: str, name: str) -> str | None:
    """The field in which a choice holds another of its own kind; None for one that is no wrapper."""
    members = _members(_made(kind, name))
    return next((key for key, member in members.items() if member.metadata.get("kind") == kind), None)


def _wrapper_of(kind: str, tree: Any, name: str) -> str | None:
    """The name of the wrapper around the choice `name` in a tree; None where it is not inside one."""
    if not isinstance(tree, Mapping):
        return None
    ((outer, values),) = tree.items()
    inner = _inner(kind, outer)
    if outer == name or inner is None or inner not in values:
        return None
    inside = values[inner]
    found = isinstance(inside, Mapping) and (name in inside or _wrapper_of(kind, inside, name) is not None)
    return outer if found else None


def _without(kind: str, old: Any, name: str) -> Any:
    """The tree without the wrapper `name`."""
    if isinstance(old, Mapping):
        ((outer, values),) = old.items()
        inner = _inner(kind, outer)
        if inner is not None and outer == name:
            return values[inner]
        if inner is not None:
            return {outer: {**values, inner: _without(kind, values[inner], name)}}
    raise InputError(f"{kind}: there is no {name} to remove", hint=f"leave {name}: null out")


def _set(kind: str, old: Any, name: str, given: Any) -> Any:
    """The choice `name` with the values that are given, over the tree that is there."""
    wrapper = _wrapper_of(kind, old, name)
    if wrapper is not None:
        inner = _inner(kind, wrapper)
        return {wrapper: {**old[wrapper], inner: _set(kind, old[wrapper][inner], name, given)}}
    made = _made(kind, name)
    same = isinstance(old, Mapping) and name in old
    start: dict[str, Any] = dict(old[name]) if same else {}
    inner = _inner(kind, name)
    if inner is not None and not same and old is not None:
        start[inner] = old
    if not isinstance(made, type):
        if given:
            own = "; a dataclass with __call__ takes values (docs/extending.md)" if is_place(name) else ""
            raise InputError(f"{name} takes no values: {given!r}", hint=f"write {name} alone{own}")
        return {name: {}}
    return {name: {**start, **change_values(name, made, start, given)}}


# ------------------------------------------------------------------------------------------------ reading


def _names(kind: str, given: Any) -> dict[str, Any]:
    """What is given by name: {name: values}."""
    options = CHOICES[kind]
    if isinstance(given, str):
        return {given: {}}
    if isinstance(given, Mapping) and given and all(name in options for name in given):
        return {str(name): values for name, values in given.items()}
    if kind in OPTIONAL and len(options) == 1 and isinstance(given, Mapping | list | tuple | float | int):
        return {next(iter(options)): given}  # the only choice of its kind: the name may be left out
    if isinstance(given, Mapping) and len(given) == 1:
        return {str(name): values for name, values in given.items()}
    raise _unreadable(kind, given)


def _unreadable(kind: str, given: Any) -> InputError:
    return InputError(
        f"{kind}: cannot read {given!r}", hint=f"a name, or {{name: values}}; names: {', '.join(CHOICES[kind])}"
    )


def _known(kind: str, name: str, old: Any = None) -> str:
    """The name of a choice. Raises InputError for an unknown one; for a value, such as `high`, with the choice that has it."""
    if is_placeholder(name):
        raise InputError(f"{kind} was given in Python and is not in the file: {name}", hint="give it again")
    if _made(kind, name) is not None:
        return name
    error = unknown(kind, name, CHOICES[kind])
    if name.endswith(".py"):
        raise InputError(error.message, hint=f"write {name}:FUNCTION{names_there(name)}")
    field = next((key for key, item in LISTS.items() if item == kind), kind)
    there = [choice for choice in old if choice in CHOICES[kind]] if isinstance(old, Mapping) else []
    having = [choice for choice in (*there, *CHOICES[kind]) if name in _members(CHOICES[kind][choice])]
    if not having:
        raise error
    raise InputError(error.message, hint=f"the key is algorithm.{field}.{having[0]}.{name}; {error.hint}")


def _made(kind: str, name: str) -> Any:
    """The class or function of a name: a registered one, or the one at a place; None for an unknown name.

    Raises InputError for a place where there is none.
    """
    if name in CHOICES[kind] or not is_place(name):
        return CHOICES[kind].get(name)
    made = find(name, kind)
    if not callable(made):
        raise InputError(f"{kind} {name!r} is of type {type(made).__name__}", hint="name a function or a dataclass")
    return made


def _is_instance(kind: str, made: Any) -> bool:
    """Whether an object is a registered choice of this kind, or an unregistered callable or dataclass."""
    if made is None or isinstance(made, str | type | Mapping):
        return False
    homes = [
        home
        for home, options in CHOICES.items()
        if type(made) in options.values() or (_hashable(made) and made in options.values())
    ]
    return kind in homes if homes else callable(made) or (is_dataclass(made) and not isinstance(made, type))


def _position(trees: Sequence[Any], name: str) -> int | None:
    return next((at for at, tree in enumerate(trees) if isinstance(tree, Mapping) and name in tree), None)


def _hashable(value: Any) -> bool:
    return getattr(type(value), "__hash__", None) is not None


def _members(made: Any) -> dict[str, Field[Any]]:
    if not (isinstance(made, type) and is_dataclass(made)):
        return {}
    return {field.name: field for field in fields(made) if field.init}


def change_values(name: str, made: Any, old: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """The values that are given, by field, from one value, a list of values or a mapping; each of the field's type."""
    members = _members(made)
    hints = _hints(made) if members else {}
    if not isinstance(given, Mapping) or _names_a_choice(members, given):
        alone = len(getattr(made, "one_value", ("first",)))
        values = [] if given is None else given if isinstance(given, list | tuple) else [given] * alone
        if len(values) > len(members):
            raise InputError(
                f"{name} takes {len(members)} values, not {len(values)}: {given!r}", hint=", ".join(members)
            )
        given = dict(zip(members, values, strict=False))
    changed: dict[str, Any] = {}
    for key, value in {_renamed(name, str(key), members, given): value for key, value in given.items()}.items():
        if key not in members:
            raise _unknown_value(name, key, members)
        if "kind" in members[key].metadata:
            changed[key] = change(members[key].metadata["kind"], old.get(key), value)
            continue
        changed[key] = _fitting(f"{name}.{key}", hints.get(key, Any), value)
    return changed


def _unknown_value(name: str, key: str, members: Collection[str]) -> InputError:
    """An unknown value of a choice; the hint gives our name for one of another library, such as TRL's beta."""
    named = (table[key].ours for table in ALIASES.values() if key in table)
    found = [ours.rpartition(".")[2] for ours in named if ours is not None and f".{name}." in ours]
    if found and found[0] in members:
        return InputError(f"unknown value of {name} {key!r}", hint=f"it is called {found[0]} here")
    return unknown(f"value of {name}", key, members)


def _hints(made: Any) -> dict[str, Any]:
    """The types of a dataclass's fields; none where they name what is there for type checkers alone."""
    try:
        return get_type_hints(made, localns={"Advantage": Any, "Controller": Any})
    except NameError:
        return {}


def _fitting(where: str, hint: Any, value: Any) -> Any:
    """The value, if it is of the type of its field; a list is a tuple where the field is one."""
    try:
        kind = TypeAdapter(hint)
    except PydanticSchemaGenerationError:  # a class of the user's own
        return value
    try:
        if isinstance(value, list):
            return kind.validate_python(value)
        kind.validate_python(value, strict=True)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise InputError(f"{where}: {message[0].lower()}{message[1:]} (given: {value!r})") from error
    return value


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
    return bool(first and given and "kind" in first.metadata and not any(key in members for key in given))
