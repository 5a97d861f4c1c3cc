"""Messages of the command line for words that cannot be parsed, and for errors."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from reinlm.aliases import same_value
from reinlm.aliases.absent import absent_verb
from reinlm.cli.words import missing_value
from reinlm.errors import InputError, find_name, nearest
from reinlm.keys import flag_hint, keys_of, takes
from reinlm.program import command_line

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's exceptions; typer contains its own copy of click, which it does not export."""
_WITH_KEYS = ("rl", "sft", "rft", "dpo", "reward", "eval", "generate", "bench", "classical")
_OTHER_VERBS = {
    "evaluate": "eval",
    "test": "eval",
    "score": "eval",
    "sample": "generate",
    "chat": "generate",
    "infer": "generate",
    "benchmark": "bench",
    "profile": "bench",
    "resume": "rl --resume --output runs/NAME",
    "version": "--version",
    "help": "--help",
    "list": "algorithms",
    "config": "keys",
    "options": "keys",
    "plot": "report",
}
"""What other programs call a verb -> what it is here."""


def usage_message(error: Exception, words: Sequence[str], command: Any) -> tuple[str, str | None]:
    """(message, hint) for an error of the parser.

    Args:
        words: the command line.
        command: the parser's application, with its `commands`.
    """
    option = getattr(error, "option_name", None)
    verb = next((word for word in words if word in command.commands), None)
    if type(error).__name__ == "NoSuchOption":
        return _unknown_option(str(option), _value_of(str(option), words), verb, command)
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    if type(error).__name__ == "BadOptionUsage" and verb is not None:
        found = next((item for item in command.commands[verb].params if option in item.opts), None)
        if found is not None and "does not take a value" in message:
            return f"{option} takes no value", f"write {option} alone, or leave it out"
        if found is not None:
            refused = missing_value(str(option), found)
            return refused.message, refused.hint
    if message.startswith("No such command"):
        return _unknown_verb(message.split("'")[1], words, command)
    if message.startswith("Got unexpected extra argument"):
        extra = message.rpartition("(")[2].rstrip(".)").split()[0]
        return f"unexpected {extra!r} after {verb}", f"see `{command_line(*([verb] if verb else []), '--help')}`"
    param = getattr(error, "param", None)
    if param is not None and message.startswith("Invalid value for "):
        name = next((name for name in param.opts if name.startswith("--")), param.name)
        given = _value_of(name, words) or next((v for o in param.opts if (v := _value_of(o, words))), None)
        shown = "" if given is None else f" (given: {given!r})"
        reason = str(getattr(error, "message", message)).partition(", unable")[0].rstrip(".")
        return (
            f"{name}: {reason[0].lower()}{reason[1:]}{shown}",
            f"see `{command_line(*([verb] if verb else []), '--help')}`",
        )
    return message[0].lower() + message[1:].rstrip("."), f"see `{command_line(*([verb] if verb else []), '--help')}`"


def _value_of(option: str, words: Sequence[str]) -> str | None:
    """The value given to an option that is not known: behind its `=`, or the next word."""
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        if name == option:
            follows = words[index + 1 : index + 2]
            return value if separator else follows[0] if follows and not follows[0].startswith("-") else None
    return None


def _unknown_option(option: str, value: str | None, verb: str | None, command: Any) -> tuple[str, str]:
    params = command.params if verb is None else command.commands[verb].params
    options = [name for item in params for name in item.opts if name.startswith("--")]
    message = f"unknown option {option!r}"
    plain = option.lstrip("-").replace("-", "_")
    if verb is None:
        owners = [name for name, sub in command.commands.items() if any(option in item.opts for item in sub.params)]
        return (
            message,
            f"it belongs to a verb: {command_line(owners[0], option)}" if owners else f"known: {', '.join(options)}",
        )
    if plain in ("config", "recipe", "config_file") and verb in _WITH_KEYS:
        return message, f"a recipe is given without an option: {command_line(verb, value or 'recipe.yaml')}"
    same = find_name(option, options)
    hint = f"write {same}" if same else None
    if hint is None and verb in _WITH_KEYS:
        hint = _key_instead(plain, value, verb)
    if hint is None and plain in ("deterministic", "greedy"):
        hint = {"generate": "write --temperature 0", "eval": "write evaluation.temperature=0"}.get(verb)
    near = nearest(option, options)
    return message, hint or (f"did you mean {near}?" if near else f"known: {', '.join(options)}")


def _key_instead(name: str, value: str | None, verb: str) -> str | None:
    """A hint with the key of the same meaning, to be typed as KEY=VALUE; None where there is none."""
    found = flag_hint(f"--{name}", verb, value)
    if found is None:
        return None
    shown = "VALUE" if value is None else shlex.quote(value)
    key = re.search(r"\bis ([a-z]\w*(?:\.\w+)*)", found)
    if key is None:
        return found.replace("VALUE", shown)
    why = found.partition(" (write")[0]
    if found.startswith("write "):
        return why
    allowed = next((one.type for one in keys_of(verb) if one.key == key[1]), None)
    if value is not None and ((allowed is not None and not takes(allowed, value)) or not same_value(name)):
        return f"write {key[1]}=…{f' ({allowed})' if allowed else ''}: {why}"
    return f"write {key[1]}={shown}: {why}"


def _unknown_verb(name: str, words: Sequence[str], command: Any) -> tuple[str, str]:
    absent = absent_verb(name)
    if absent is not None:
        return absent.message, str(absent.hint)
    message, commands = f"unknown command {name!r}", sorted(command.commands)
    if name in ("train", "finetune", "fine-tune"):
        return message, "`sft` imitates completions, `rl` improves a model against a reward"
    if name in _OTHER_VERBS:
        return message, f"did you mean `{command_line()} {_OTHER_VERBS[name]}`?"
    path = Path(name)
    rest = [word for word in words if word != name]
    if path.suffix in (".yaml", ".yml"):
        return message, f"a verb comes first: {command_line('rl', name, *rest)}"
    if (path / "run.json").is_file():
        return message, f"a verb comes first: {command_line('report', name)}"
    same = find_name(name, commands)
    if same:
        return message, f"did you mean {same!r}?"
    return message, _as_algorithm(name, rest) or _nearest_verb(name, commands)


def _nearest_verb(name: str, commands: Sequence[str]) -> str:
    near = nearest(name, commands)
    return f"did you mean {near!r}?" if near else f"known: {', '.join(commands)}"


def _as_algorithm(name: str, rest: Sequence[str] = ()) -> str | None:
    """A hint for the name of an algorithm in place of a verb; `rest` are the other words, which may name an environment."""
    from reinlm.algorithms import ALGORITHMS, is_preference, preference_name
    from reinlm.classical.registry import CLASSES, catalogue, example

    if is_preference(name):
        return f"an algorithm is an option: {command_line('dpo', '--algorithm', preference_name(name))}"
    algorithm, control = find_name(name, ALGORITHMS), bool({"--env", "-e"} & set(rest))
    if algorithm is not None and not control:
        return f"an algorithm is an option: {command_line('rl', '--algorithm', algorithm)}"
    catalogue()
    classical = find_name(name, CLASSES)
    if classical is not None:
        words, budget = example(classical), bool({"--steps", "--episodes"} & set(rest))
        words = (*rest, *(() if budget else words[2:])) if control else words
        return f"it is a classical algorithm: {command_line('classical', classical, *words)}"
    return None


def refuse_classical(name: str) -> None:
    """Raise InputError for the name of a classical algorithm where one of `rl` is asked for."""
    from reinlm.algorithms import ALGORITHMS

    hint = None if find_name(name, ALGORITHMS) else _as_algorithm(name)
    if hint is not None:
        raise InputError(f"{name!r} is no algorithm of rl", hint=hint)


def print_error(message: str, hint: str | None, label: str = "error: ") -> None:
    """Print one line, and the hint on another, on standard error."""
    sys.stdout.flush()
    print(f"{label}{message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
