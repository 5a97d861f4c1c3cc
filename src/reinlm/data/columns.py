"""Columns of rows: templates, mapping of the user's names to those of reinlm, and checks of their contents."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from reinlm.data.rows import BadRow, Row, listed
from reinlm.errors import InputError, nearest
from reinlm.records import Content, Message

Kind = Literal["any", "prompt", "example", "pair", "judged", "rated"]
"""The use of a row: any, a prompt to sample from, an SFT example, a preference pair, judged answers of any layout, or an answer
whose ratings stand in columns that the user names."""

CONVENTIONS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "any": (),
    "prompt": (("prompt",), ("messages",)),
    "example": (("prompt", "completion"), ("messages",), ("text",)),
    "pair": (("prompt", "chosen", "rejected"),),
    "judged": (
        ("prompt", "chosen", "rejected"),
        ("chosen", "rejected"),
        ("prompt", "answers"),
        ("prompt", "completions", "labels"),
        ("prompt", "completion", "label"),
        ("prompt", "completion", "ratings"),
        ("prompt", "completion", "rating"),
    ),
    "rated": (("prompt", "completion"),),
}
"""The columns that each kind needs; the first alternative that the data have is used."""

KNOWN_LAYOUTS: tuple[dict[str, str], ...] = (
    {"prompt": "question", "completion": "answer"},  # GSM8K
    {"prompt": "problem", "completion": "solution"},  # MATH
    {"prompt": "problem", "completion": "answer"},
    {"prompt": "question", "chosen": "chosen", "rejected": "rejected"},  # Orca DPO pairs
    {"prompt": "question", "chosen": "response_j", "rejected": "response_k"},  # Stack Exchange, paired
)
"""Column names of well-known data sets, mapped automatically if the data have no prompt, messages or text."""

JUDGEMENTS = ("label", "labels", "rating", "ratings")
"""Columns that say how good an answer is; they are read with the answers."""

ROLES = ("system", "developer", "user", "assistant", "tool")


class Template:
    """Text with columns in braces; `{{` and `}}` are plain braces.

    Example:
        >>> Template("Question: {prompt}", "prompt_template").fill(Row("data[0]", {"prompt": "1+1?"}))
        'Question: 1+1?'

    Raises InputError when the braces do not match or hold anything but a column's name.
    """

    def __init__(self, text: str, option: str) -> None:
        try:
            pieces = list(string.Formatter().parse(text))
        except ValueError as error:
            raise InputError(
                f"{option}: cannot read {text!r}: {error}", hint="write {{ and }} for plain braces"
            ) from error
        if any(name == "" or spec or conversion for _, name, spec, conversion in pieces):
            raise InputError(f"{option}: cannot read {text!r}", hint="between braces stands a column's name alone")
        self.text = text
        self._pieces = [(literal, name) for literal, name, _, _ in pieces]

    @property
    def columns(self) -> list[str]:
        """The columns named, in order."""
        return [name for _, name in self._pieces if name is not None]

    def fill(self, row: Row) -> str:
        """The text for one row. Raises BadRow where a named column is missing, or is neither text nor a number."""
        parts = []
        for literal, name in self._pieces:
            parts.append(literal)
            if name is None:
                continue
            value = row.columns.get(name)
            if value is None:
                raise missing(row, name)
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise BadRow(row.where, f"column {name!r} is not text", f" but {type(value).__name__}")
            parts.append(str(value))
        return "".join(parts)


class ColumnMap:
    """The mapping of the user's columns to the names of reinlm.

    A mapped column stays available under its own name, so that a verifier finds `answer` when it is also the completion, and
    a reward function `question` when it is the prompt.
    """

    def __init__(self, mapping: Mapping[str, str], present: set[str], source: str) -> None:
        self._plain = {target: value for target, value in mapping.items() if value in present or "{" not in value}
        self._templates = {
            target: Template(value, f"columns.{target}")
            for target, value in mapping.items()
            if target not in self._plain
        }
        for target, value in self._plain.items():
            require_column(value, present, source, f"columns.{target}")
        for target, template in self._templates.items():
            for name in template.columns:
                require_column(name, present, source, f"columns.{target}")

    def apply(self, row: Row) -> Row:
        """The row with mapped names; the same row if nothing is mapped. Raises BadRow where it lacks a mapped column."""
        if not self._plain and not self._templates:
            return row
        columns = dict(row.columns)
        for target, name in self._plain.items():
            if name not in row.columns:
                raise missing(row, name)
            columns[target] = row.columns[name]
        columns.update({target: template.fill(row) for target, template in self._templates.items()})
        return Row(row.where, columns)


def column_map(mapping: Mapping[str, str] | None, present: set[str], kind: Kind, source: str) -> ColumnMap:
    """The user's mapping, with the names of a known layout where the data name no prompt, messages or text.

    Raises InputError for a mapping to a column that no row has; it names it, the source and the columns there are.
    """
    own = dict(mapping or {})
    wanted = {name for alternative in CONVENTIONS[kind] for name in alternative}
    if not {"prompt", "messages", "text"} & (present | own.keys()):
        layout = next((known for known in KNOWN_LAYOUTS if present >= set(known.values())), {})
        own = {target: name for target, name in layout.items() if target in wanted} | own
    return ColumnMap(own, present, source)


def alternative(kind: Kind, present: set[str], source: str) -> tuple[str, ...]:
    """The columns of these data to use for `kind`. Raises InputError if there are none."""
    options = CONVENTIONS[kind]
    for option in options:
        if present >= set(option):
            return option
    if not options:
        return ()
    best = max(options, key=lambda option: len(present & set(option)))
    lacking = next(name for name in best if name not in present)
    raise InputError(
        f"{source} has no column {lacking!r} (columns: {listed(present)})",
        hint=f"needs {' or '.join('+'.join(option) for option in options)}; "
        f"other names are mapped with columns: {{{lacking}: YOUR_COLUMN}}",
    )


def require_column(name: str, present: set[str], source: str, option: str) -> None:
    """Raises InputError when no row of the source has column `name`."""
    if name not in present:
        near = nearest(name, present)
        guess = f"did you mean {near!r}? " if near else ""
        raise InputError(
            f"{option} names column {name!r}, which {source} does not have", hint=f"{guess}columns: {listed(present)}"
        )


def missing(row: Row, name: str) -> BadRow:
    """The error of a row without a value in column `name`."""
    if name in row.columns:
        return BadRow(
            row.where, f"column {name!r} is null", "", f"give it a value, or leave column {name!r} out of the data"
        )
    return BadRow(row.where, f"column {name!r} is missing", f" (columns: {listed(row.columns)})")


def text_column(row: Row, name: str) -> str:
    """The text in a column. Raises BadRow where it is missing, mistyped, empty or not clean Unicode."""
    value = row.columns.get(name)
    if value is None:
        raise missing(row, name)
    if not isinstance(value, str):
        raise BadRow(row.where, f"column {name!r} is not text", f" but {type(value).__name__}")
    if not value.strip():
        raise BadRow(row.where, f"column {name!r} is empty")
    _clean(row.where, f"column {name!r}", value)
    return value


def content_column(row: Row, name: str) -> Content:
    """The text or the chat messages in a column. Raises BadRow where it holds neither."""
    value = row.columns.get(name)
    if isinstance(value, list | tuple):
        return _messages(row.where, name, value)
    if value is not None and not isinstance(value, str):
        raise BadRow(row.where, f"column {name!r} is neither text nor chat messages", f" but {type(value).__name__}")
    return text_column(row, name)


def contents_column(row: Row, name: str) -> tuple[Content, ...]:
    """The answers in a column, each a text or chat messages. Raises BadRow where it holds anything else, or nothing."""
    value = row.columns.get(name)
    if value is None:
        raise missing(row, name)
    if not isinstance(value, list | tuple):
        raise BadRow(row.where, f"column {name!r} is not a list of answers", f" but {type(value).__name__}")
    if not value:
        raise BadRow(row.where, f"column {name!r} is empty")
    return tuple(content_column(Row(row.where, {name: item}), name) for item in value)


def number_column(row: Row, name: str) -> float:
    """The number in a column. Raises BadRow where it is missing, mistyped, or not finite."""
    value = row.columns.get(name)
    if value is None:
        raise missing(row, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow(row.where, f"column {name!r} is not a number", f" but {type(value).__name__}")
    if not math.isfinite(value):
        raise BadRow(row.where, f"column {name!r} is not finite", f": {value}")
    return float(value)


def truth(row: Row, name: str, value: Any) -> bool:
    """A judgement of yes or no: true, false, 1 or 0. Raises BadRow for anything else."""
    if value is None:
        raise missing(row, name)
    if not isinstance(value, bool | int | float) or value not in (0, 1):
        raise BadRow(row.where, f"column {name!r} is neither true nor false", f" but {value!r}")
    return bool(value)


def messages_column(row: Row, name: str) -> tuple[Message, ...]:
    """The chat messages in a column. Raises BadRow where it holds anything else."""
    value = row.columns.get(name)
    if value is None:
        raise missing(row, name)
    if not isinstance(value, list | tuple):
        raise BadRow(row.where, f"column {name!r} is not a list of chat messages", f" but {type(value).__name__}")
    return _messages(row.where, name, value)


def check_row(row: Row, names: Sequence[str]) -> None:
    """Raises BadRow when one of these columns does not hold what its name promises."""
    for name in names:
        if name == "messages":
            messages_column(row, name)
        elif name == "text":
            text_column(row, name)
        elif name in ("answers", "completions"):
            contents_column(row, name)
        elif name not in JUDGEMENTS:
            content_column(row, name)


def _messages(where: str, column: str, value: Sequence[Any]) -> tuple[Message, ...]:
    if not value:
        raise BadRow(where, f"column {column!r} is empty", hint="a chat has at least one message")
    return tuple(_message(where, column, index, item) for index, item in enumerate(value))


def _message(where: str, column: str, index: int, value: Any) -> Message:
    """One message without its empty fields, which Parquet and datasets add if another message has them."""
    place = f", message {index + 1}"
    if not isinstance(value, Mapping):
        raise BadRow(where, f"column {column!r} holds what is not a message", f"{place}: {type(value).__name__}")
    message = {key: item for key, item in value.items() if item is not None}
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        near = nearest(role, ROLES) if isinstance(role, str) else None
        hint = f"did you mean {near!r}? " if near else ""
        raise BadRow(
            where,
            f"column {column!r} has an unknown role",
            f"{place}: {role!r}",
            hint=f"{hint}roles: {', '.join(ROLES)}",
        )
    may_be_empty = role == "tool" or bool(message.get("tool_calls"))
    if content is None and not message.get("tool_calls"):
        raise BadRow(where, f"column {column!r} has a message without content", place)
    if content is not None and not isinstance(content, str):
        raise BadRow(where, f"column {column!r} has content that is not text", f"{place}: {type(content).__name__}")
    if content is not None and not content.strip() and not may_be_empty:
        raise BadRow(where, f"column {column!r} has a message with empty content", place)
    _clean(where, f"column {column!r}", content or "")
    return message


def _clean(where: str, what: str, text: str) -> None:
    """Tokenizers cannot read lone surrogates, and a NUL is a sign of a broken export."""
    if "\0" in text:
        raise BadRow(where, f"{what} holds a NUL character", f" at position {text.index(chr(0))}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRow(where, f"{what} holds a lone surrogate", f" at position {error.start}") from error
