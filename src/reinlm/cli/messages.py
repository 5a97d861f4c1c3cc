"""What the command line says of words that it does not understand, and of errors."""

from __future__ import annotations

import sys
from typing import Any

import typer

from reinlm.errors import nearest

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What the parser raises; typer brings its own copy of click, which it does not export."""


def explain(error: Exception) -> tuple[str, str | None]:
    """One line for what the parser did not understand, and the nearest thing that it would."""
    context: Any = getattr(error, "ctx", None)
    words = getattr(error, "option_name", None) or getattr(error, "param", None)
    if isinstance(words, str):
        options = [name for option in context.command.params for name in option.opts if name.startswith("--")]
        near = nearest(words, options)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(options)}"
        return f"unknown option {words!r}", _elsewhere(words, context.command.name == "classical") or hint
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    if message.startswith("No such command"):
        name = message.split("'")[1]
        commands = sorted(context.command.commands)
        near = nearest(name, commands)
        return f"unknown command {name!r}", f"did you mean {near!r}?" if near else f"known: {', '.join(commands)}"
    return message[0].lower() + message[1:].rstrip("."), f"see `{context.command_path} --help`" if context else None


def _elsewhere(option: str, classical: bool) -> str | None:
    """What an option of another library is here; keys are given as KEY=VALUE."""
    from reinlm.aliases import alias_hint

    hint = alias_hint([option.lstrip("-").replace("-", "_")], classical=classical)
    return f"{hint} (KEY=VALUE sets a key)" if hint else None


def complain(message: str, hint: str | None, label: str = "error: ") -> None:
    sys.stdout.flush()
    print(f"{label}{message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
