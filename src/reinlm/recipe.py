"""Merge recipe, flags, overrides and keywords into one mapping, from which a configuration is built.

Later ones override earlier ones (`over`). A single value may replace a section, as its main key:
`model: PATH` is `model: {path: PATH}`, and `algorithm: dapo` with `algorithm.kl.coefficient=0.1` over it is
`{base: dapo, kl: {coefficient: 0.1}}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reinlm.config import HIDDEN, Config, apply_overrides, may_be_secret, merge, read_recipe
from reinlm.errors import InputError

MAIN = {"model": "path", "reference": "path", "teacher": "path", "data": "path", "text": "data", "reward": "functions"}
"""Sections that a single value may replace -> the key that the value sets."""
UNIONS = ("environment", "engine", "functions", "gate", "advantage", "ratio", "selection")
"""Keys with values {name: values}: a different name replaces the value instead of being merged."""


def read(recipe: Any) -> dict[str, Any]:
    """The settings of a recipe: a YAML file, a mapping, or None for none.

    Raises:
        InputError: a file that cannot be read, or a value of another type.
    """
    if recipe is None:
        return {}
    if isinstance(recipe, Mapping):
        return expand_sections(recipe)
    if isinstance(recipe, str | Path):
        return expand_sections(read_recipe(recipe))
    raise InputError(f"recipe: {recipe!r} is neither a file nor a mapping", hint="give a YAML file, or {section: …}")


def over(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `changes` into `tree`, recursively; `changes` take precedence."""
    base, changes = expand_sections(tree), expand_sections(changes)
    if isinstance(base.get("algorithm"), str) and isinstance(changes.get("algorithm"), Mapping):
        base["algorithm"] = {"base": base["algorithm"]}
    return merge(base, changes, UNIONS)


def override(tree: Mapping[str, Any], words: Iterable[str]) -> dict[str, Any]:
    """Apply overrides `a.b=value` to `tree`, one after the other.

    Raises:
        InputError: a word that is no key=value, or a key that only a run's own file may hold.
    """
    changed = dict(tree)
    for word in words:
        change = apply_overrides({}, [word])
        refuse_resolved(change)
        changed = over(changed, change)
    return changed


def refuse_resolved(given: Mapping[str, Any]) -> None:
    """Raise InputError for `resolved`, a section that runs write and that cannot be set."""
    if "resolved" in given:
        raise InputError(
            "'resolved' cannot be set: it is what a run writes down beside its settings",
            hint="set the section itself, such as data.renderer",
        )


def expand_sections(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Replace single values by the sections that they stand for."""
    sections = dict(tree)
    for section, key in MAIN.items():
        value = sections.get(section)
        if value is None or isinstance(value, Config):
            continue
        if not isinstance(value, Mapping) or (section == "reward" and _is_one_reward(value)):
            sections[section] = {key: str(value) if isinstance(value, Path) else value}
    return sections


def _is_one_reward(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is one reward, `{name: …}` or `{regex: {…}}`, and not the section of rewards."""
    if "functions" in value:
        return False
    return "name" in value or (len(value) == 1 and isinstance(next(iter(value.values())), Mapping))


# ---------------------------------------------------------------------------------------------------- placeholders


_FROM_PYTHON = re.compile(r"<.+>", re.DOTALL)


def refuse_placeholders(tree: Mapping[str, Any]) -> None:
    """Raise InputError for placeholders in config.yaml: redacted secrets, and objects that were given in Python."""
    for path, value in _texts(tree):
        key = ".".join(path)
        if value == HIDDEN and may_be_secret(path[-1]):
            raise InputError(
                f"{key} is {HIDDEN!r}: a run's file does not hold secrets",
                hint=f"give it again, {key}=VALUE, such as {key}=$NAME in a shell that has it in a variable",
            )
        named = path[0] in (*MAIN, "environment", "evaluation", "algorithm", "rollout", "optimizer")
        if named and _FROM_PYTHON.fullmatch(value) and (" given in Python" in value or path == ("model", "path")):
            raise InputError(
                f"{key} was given in Python and is not in the file: {value}",
                hint=f"give it again: {path[0]}=… in the call that resumes the run",
            )


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in a tree of settings with the keys that lead to it; rows of data are no settings."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*path, str(key)))
    elif isinstance(value, list | tuple) and path and path[-1] not in ("path", "prompts"):
        for item in value:
            yield from _texts(item, path)
