"""The words of a command line before and after the parser: dashes and missing values, the recipe, overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reinlm.errors import InputError, find_name, nearest
from reinlm.program import command_line

_RECIPES = (".yaml", ".yml")
_DATA = (".jsonl", ".json", ".csv", ".parquet", ".gz", ".txt", ".tsv")
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


def check_words(words: Sequence[str], command: Any) -> None:
    """Refuse words that the parser would misread.

    Args:
        command: the parser's application, with its `commands`.

    Raises:
        InputError: a dash of another character, a long option with one dash (`-model`), an option without its value, an
            option before the verb, or one of `ONE_DATA` given twice.
    """
    words = list(words[: words.index("--")]) if "--" in words else list(words)
    for word in words:
        if word[:1] in "‐‑‒–—―−" and word[:1]:
            raise InputError(f"the dash in {word!r} is no hyphen", hint=f"write --{word.lstrip('‐‑‒–—―−-')}")
    place = next((index for index, word in enumerate(words) if word in command.commands), None)
    if place is None:
        return
    verb = words[place]
    options = {name: option for option in command.commands[verb].params for name in getattr(option, "opts", ())}
    for word in words[:place]:
        name = word.partition("=")[0]
        if name in options and name not in ("--help", "--version"):
            raise InputError(f"{name} stands before the verb", hint=f"write it after: {command_line(verb, name)}")
    after = words[place + 1 :]
    for index, word in enumerate(after):
        option = options.get(word)
        if option is not None and not option.is_flag and after[index + 1 : index + 2] in [[], *([o] for o in options)]:
            raise missing_value(word, option)
        long = f"-{word.partition('=')[0]}"
        if re.match(r"-[a-z]{2}", word) and long in options and not _is_value(after, index, options):
            raise InputError(f"{word!r} has one dash", hint=f"write -{word}")
    _refuse_twice(after, options)


ONE_DATA = ("against", "eval_data")
"""Options of one model or file that could be taken for several, as those of eval are; of other options the last counts."""


def _refuse_twice(words: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise InputError for one of `ONE_DATA` that is given twice, of which the parser would drop the first."""
    seen: set[str] = set()
    for index, word in enumerate(words):
        name = word.partition("=")[0]
        option = options.get(name) if name.startswith("-") else None
        if option is None or option.name not in ONE_DATA or option.multiple or _is_value(words, index, options):
            continue
        if option.name in seen:
            raise InputError(f"{name} is given twice, and takes one value", hint=f"give {name} once")
        seen.add(option.name)


def _is_value(words: Sequence[str], index: int, options: Mapping[str, Any]) -> bool:
    """Whether the word at `index` is the value of the option before it."""
    before = options.get(words[index - 1]) if index else None
    return before is not None and not before.is_flag


def missing_value(name: str, option: Any) -> InputError:
    """The error for an option that ends the line or is followed by another option."""
    example = _EXAMPLES.get(next((o for o in option.opts if o.startswith("--")), name), "VALUE")
    return InputError(f"{name} has no value", hint=f"write {name} {example}")


_EXAMPLES = {
    "--model": "runs/sft/checkpoints/last",
    "--data": "train.jsonl",
    "--eval-data": "test.jsonl",
    "--reward": "math",
    "--algorithm": "grpo",
    "--environment": "file.py:CLASS",
    "--output": "runs/NAME",
    "--steps": "100",
    "--episodes": "500",
    "--seed": "0",
    "--seeds": "5",
    "--samples": "4",
    "--temperature": "0.7",
    "--max-new-tokens": "256",
    "--prompt": "'1 + 2 = ?'",
    "--env": "CartPole-v1",
    "--render": "text",
}


# ------------------------------------------------------------------------------------------------ recipe and overrides


def recipe_and_overrides(words: Iterable[str], verb: str) -> tuple[str | None, list[str]]:
    """Split the words of a verb that are no options into a recipe, which may stand anywhere, and `key=value`.

    Raises:
        InputError: two recipes; spaces around `=`; a word that is neither, with the option that it belongs to.
    """
    given = list(words)
    _refuse_spaces(given)
    overrides = [word for word in given if "=" in word and not word.lower().endswith(_RECIPES)]
    others = [word for word in given if word not in overrides]
    if not others:
        return None, overrides
    recipes = [word for word in others if word.lower().endswith(_RECIPES) or Path(word).is_file()]
    for word in others:
        if word not in recipes or word.lower().endswith(_DATA):
            raise _neither(word, verb)
    if len(recipes) > 1:
        raise InputError(
            f"two recipes: {recipes[0]} and {recipes[1]}", hint="give one, and what differs from it as KEY=VALUE"
        )
    _check_recipe(recipes[0])
    return recipes[0], overrides


def _refuse_spaces(words: Sequence[str]) -> None:
    for index, word in enumerate(words):
        before, after = words[index - 1 : index], words[index + 1 : index + 2]
        if word == "=" and before and after:
            parts = (*before, *after)
        elif word.startswith("=") and before and _KEY.fullmatch(before[0]):
            parts = (before[0], word[1:])
        elif (
            word.endswith("=")
            and _KEY.fullmatch(word[:-1])
            and after
            and "=" not in after[0]
            and not _is_file(after[0])
        ):
            parts = (word[:-1], after[0])
        else:
            continue
        raise InputError(f"spaces around '=' after {parts[0]}", hint=f"write {parts[0]}={parts[1]}")


def _is_file(word: str) -> bool:
    return word.lower().endswith(_RECIPES) or Path(word).exists()


def _check_recipe(word: str) -> None:
    path = Path(word)
    if path.is_file():
        return
    there = path.parent if path.parent.is_dir() else Path()
    files = {file.stem: file for file in there.glob("*.y*ml")}
    near = nearest(path.stem, files)
    if near:
        raise InputError(f"no such recipe: {word}", hint=f"did you mean {str(files[near])!r}?")
    known = Path("recipes") / path.name
    hint = (
        f"did you mean {str(known)!r}?"
        if known.is_file()
        else "give a YAML file, or options such as --model and --data"
    )
    raise InputError(f"no such recipe: {word}", hint=hint)


def _neither(word: str, verb: str) -> InputError:
    """The error for a word that is neither a recipe nor key=value, with what it seems to be."""
    path = Path(word)
    if verb == "generate" and not path.exists() and not _KEY.fullmatch(word):
        return InputError(
            f"{word!r} is neither a recipe nor KEY=VALUE", hint=f"a prompt is given as {_typed('--prompt', word)}"
        )
    if word.lower().endswith(_DATA):
        return InputError(
            f"{word} is no recipe, which is a .yaml file", hint=f"data are given as {_typed('--data', word)}"
        )
    if (path / "config.yaml").is_file() and (path / "run.json").is_file():
        again = f"--model {path / 'checkpoints' / 'last'} takes its model"
        hint = f"{path / 'config.yaml'} is its recipe, --resume --output {word} goes on, {again}"
        return InputError(f"{word} is the folder of a run, not a recipe", hint=hint)
    if path.is_dir():
        return InputError(f"{word} is a folder, not a recipe", hint=f"a model is given as {_typed('--model', word)}")
    key, separator, value = word.partition(":")
    if separator and _KEY.fullmatch(key) and "." in key and value:
        return InputError(f"{word!r} has no '='", hint=f"write {key}={value.strip()}")
    if verb == "rl" and (name := _algorithm(word)):
        return InputError(f"{word!r} is an algorithm, not a recipe", hint=f"write --algorithm {name}")
    if _KEY.fullmatch(word) and "." in word:
        return InputError(f"{word!r} has no value", hint=f"write {word}=VALUE")
    if verb == "generate":
        return InputError(f"no such recipe: {word}", hint=f"a prompt is given as {_typed('--prompt', word)}")
    return InputError(f"no such recipe: {word}", hint="give a YAML file, or options such as --model and --data")


def _typed(option: str, word: str) -> str:
    import shlex

    return f"{option} {shlex.quote(word)}"


def _algorithm(word: str) -> str | None:
    from reinlm.algorithms import ALGORITHMS

    return find_name(word, ALGORITHMS)
