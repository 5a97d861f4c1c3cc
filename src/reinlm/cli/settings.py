"""Flags, recipe and overrides of a command as one tree of settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reinlm.cli.words import recipe_and_overrides
from reinlm.errors import InputError
from reinlm.hub import missing_data, missing_model
from reinlm.places import model_folder, short_names
from reinlm.program import command_line


def sections_of_flags(
    model: str | None,
    data: str | None,
    *,
    reward: list[str] | None = None,
    eval_data: str | None = None,
    steps: int | None = None,
    output: Path | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The flags as configuration sections; `others` keep their names."""
    return without_none(
        {
            "model": model,
            "data": data,
            "reward": (reward[0] if len(reward) == 1 else reward) if reward else None,
            "evaluation": {"data": _evaluation_set(eval_data)} if eval_data else None,
            "training": {"steps": steps} if steps is not None else None,
            "run": {"output": str(output)} if output else None,
        }
        | others
    )


def _evaluation_set(text: str) -> dict[str, Any]:
    """The set of --eval-data, FILE or NAME=FILE; without a name `eval`."""
    name, path = _name_and_path(text)
    return {name or "eval": {"path": path}}


def named_or_one(flag: str, given: list[str] | None) -> tuple[str | None, dict[str, Any] | None]:
    """The values of a flag that may be repeated: one alone, or several by name, `{NAME: {path: …}}`.

    A value may have a name before it, NAME=PATH; others are named by their paths. Raises InputError for two of the same name.
    """
    pairs = [_name_and_path(text) for text in given or ()]
    if len(pairs) < 2 and not any(name for name, _ in pairs):
        return (pairs[0][1] if pairs else None), None
    short = short_names([path for _, path in pairs])
    names = [name or own for (name, _), own in zip(pairs, short, strict=True)]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{flag}: two are named {name!r}", hint=f"give each a name of its own: {flag} NAME=PATH")
    return None, {name: {"path": path} for name, (_, path) in zip(names, pairs, strict=True)}


def _name_and_path(text: str) -> tuple[str | None, str]:
    name, equals, path = text.partition("=")
    if equals and path and re.fullmatch(r"[\w.-]+", name) and not Path(text).exists():
        return name, path
    return None, text


def settings_tree(
    verb: str, arguments: list[str] | None, flags: dict[str, Any], *, explain: bool = False
) -> dict[str, Any]:
    """Merge recipe, flags and overrides; later ones take precedence. Each value keeps what gave it."""
    from reinlm.recipe import merge_settings, one_or_several, override, read

    recipe, overrides = recipe_and_overrides(arguments or (), verb)
    tree = read(recipe)
    for section, value in flags.items():
        keys = value if isinstance(value, dict) else {"": None}
        for key in keys:
            given = {key: keys[key]} if key else value
            tree = merge_settings(tree, {section: given}, _flag(verb, section, key))
    tree = override(tree, overrides)
    tree = one_or_several(tree) if verb == "eval" else tree
    if not explain:
        _refuse_missing(tree)
    return tree


def _flag(verb: str, section: str, key: str) -> str:
    """The flag that gives a key of a section."""
    name = f"{section}.{key}" if key else section
    if verb == "eval" and (section == "models" or name == "evaluation.data"):
        return "--model" if section == "models" else "--data"
    return _FLAGS.get(name, "--" + (key or section).replace("_", "-"))


_FLAGS = {
    "evaluation.data": "--eval-data",
    "run.output": "--output",
    "system_prompt": "--system",
    "prompts": "--prompt",
}
"""Sections and keys whose flag has another name."""


def _refuse_missing(tree: Mapping[str, Any]) -> None:
    """Raise InputError for a model's folder or a file of data that is not there, before anything heavy is imported."""
    run = tree.get("run")
    if isinstance(run, Mapping) and run.get("output") and (Path(str(run["output"])) / "config.yaml").is_file():
        return  # what is resumed has paths relative to the directory that it was started in
    models = tree.get("models")
    named = list(models.values()) if isinstance(models, Mapping) else []
    text = tree.get("text")
    text = text.get("data") if isinstance(text, Mapping) else text
    texts = list(text.values()) if isinstance(text, Mapping) and "path" not in text else [text]
    given = [
        (tree.get("model"), _missing_model),
        *((one, _missing_model) for one in named),
        (tree.get("data"), missing_data),
        *((one, missing_data) for one in texts),
    ]
    for value, find in given:
        path = value.get("path") if isinstance(value, Mapping) else value
        for place in [path] if isinstance(path, str) else path if isinstance(path, list) else ():
            refused = find(place) if isinstance(place, str) and place.strip() else None
            if refused is not None:
                raise refused


def _missing_model(text: str) -> InputError | None:
    return missing_model(model_folder(text))


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given."""
    return {key: value for key, value in values.items() if value is not None}


def typed_command() -> str:
    """This command as it can be typed again."""
    return command_line(*sys.argv[1:])
