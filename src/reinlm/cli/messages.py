"""Messages of the command line for arguments that cannot be parsed, and for errors."""

from __future__ import annotations

import sys
from typing import Any

import typer

from reinlm.errors import nearest
from reinlm.keys import flag_hint

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's exceptions; typer contains its own copy of click, which it does not export."""


def explain(error: Exception) -> tuple[str, str | None]:
    """(message, hint) for a parser error; the hint gives the most similar valid name."""
    context: Any = getattr(error, "ctx", None)
    words = getattr(error, "option_name", None) or getattr(error, "param", None)
    if isinstance(words, str):
        options = [name for option in context.command.params for name in option.opts if name.startswith("--")]
        near = nearest(words, options)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(options)}"
        return f"unknown option {words!r}", flag_hint(words, str(context.command.name)) or hint
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    if message.startswith("No such command"):
        name = message.split("'")[1]
        commands = sorted(context.command.commands)
        near = nearest(name, commands)
        return f"unknown command {name!r}", f"did you mean {near!r}?" if near else f"known: {', '.join(commands)}"
    return message[0].lower() + message[1:].rstrip("."), f"see `{context.command_path} --help`" if context else None


def complain(message: str, hint: str | None, label: str = "error: ") -> None:
    sys.stdout.flush()
    print(f"{label}{message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
