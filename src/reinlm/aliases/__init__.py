"""Option names of TRL, verl and Stable-Baselines3, and the corresponding names here.

The error for an unknown key gives our name if the key is in these tables (`reinlm.config`); docs/coming_from.md lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from reinlm.aliases.alias import Alias
from reinlm.aliases.sb3 import SB3
from reinlm.aliases.tables import ALIASES, WRITE

__all__ = [
    "ALIASES",
    "SB3",
    "WRITE",
    "Alias",
    "alias_hint",
    "aliases_of",
    "is_alias",
    "may_be_named",
    "same_value",
    "written",
]


def aliases_of(key: str, *, classical: bool = False) -> tuple[str, ...]:
    """The options of other libraries that lead to one of our keys.

    Args:
        classical: of `reinlm classical` instead of the verbs of language models.
    """
    tables = {"Stable-Baselines3": ALIASES["Stable-Baselines3"]} if classical else ALIASES
    options = ((name, one) for table in tables.values() for name, one in table.items())
    return tuple(dict.fromkeys(name for name, one in options if (one.classical if classical else one.ours) == key))


def alias_hint(
    path: Sequence[str], value: Any = None, *, known: Collection[str] | None = None, classical: bool = False
) -> str | None:
    """A hint with our name for an option of another library; None for a key that is in no table.

    Example:
        >>> alias_hint(["rollout", "num_generations"])
        "TRL's num_generations is rollout.group_size"

    Args:
        path: the parts of the key as given.
        value: the value given to it; of a mapping the inner keys are looked up.
        known: the keys that the hint may name, or that lie below what it names. None: everything.
        classical: give the name of `reinlm classical`.
    """
    for library, name, alias in _matches(list(_leaves(tuple(path), value))):
        ours = alias.classical if classical else alias.ours
        if alias.ours is None and alias.classical is None:
            return f"{_called(library, name)}: {alias.note}"
        if ours is None and alias.note and not classical:
            return f"{_called(library, name)}: {alias.note}"
        if ours is not None and (known is None or may_be_named(ours, known)):
            note = f"; {alias.note}" if alias.note and not classical else ""
            write = None if classical else written(name, value)
            return f"{f'write {write}: ' if write else ''}{_called(library, name)} is {ours}{note}"
    return None


def written(name: str, value: Any) -> str | None:
    """What to write for an option of another library with this value; None where no table says it.

    Example:
        >>> written("bf16", True)
        'training.autocast=bfloat16'
    """
    if value is None or isinstance(value, Mapping):
        return None
    known = WRITE.get(name, {})
    found = known.get(str(value).lower(), known.get("*"))
    return None if found is None else found.format(value)


def same_value(name: str) -> bool:
    """Whether a value of an option of another library may be written under our name.

    Example: TRL's `gradient_accumulation_steps` counts batches, and `training.micro_batch_tokens` counts tokens:
        >>> same_value("gradient_accumulation_steps")
        False
    """
    return all(alias.same_value for _, _, alias in _matches([tuple(name.split("."))]))


def is_alias(path: Sequence[str]) -> bool:
    """Whether a whole key is an option of another library."""
    return any(".".join(path) in table for table in ALIASES.values())


def _called(library: str, name: str) -> str:
    return f"{library}'s {name}" if library else name


def may_be_named(ours: str, known: Collection[str]) -> bool:
    """Whether a key, or keys below it, are known; a flag always is."""
    return ours.startswith("--") or any(name == ours or name.startswith(f"{ours}.") for name in known)


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves((*path, str(key)), inner)


def _matches(paths: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, str, Alias]]:
    """Options that a path names, or the last part of the first one; then keys that end like it, if all lead to one of ours."""
    options = [(library, name, alias) for library, table in ALIASES.items() for name, alias in table.items()]
    for path in paths:
        yield from (option for option in options if option[1] == ".".join(path))
    yield from (option for option in options if option[1] == paths[0][-1])
    last = [option for option in options if option[1].split(".")[-1] == paths[0][-1] and "." in option[1] and option[0]]
    if len({alias.ours for _, _, alias in last}) == 1:
        yield from last
    for path in paths:
        below = [option for option in options if option[1].endswith(".*") and ".".join(path).startswith(option[1][:-1])]
        yield from sorted(below, key=lambda option: -len(option[1]))
