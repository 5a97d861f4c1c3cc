"""A row with its origin, the error of a bad row, and the result of a loader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, overload

from reinlm.errors import InputError

T = TypeVar("T")
OnBad = Literal["stop", "skip"]


@dataclass(frozen=True)
class Row:
    """One row as the user wrote it, with its origin.

    Example:
        Row(where="train.jsonl:17", columns={"prompt": "12+30=", "answer": "42"})
    """

    where: str
    """`FILE:LINE` (from 1, where the row starts), `FILE:ROW` in formats without lines, `data[INDEX]` from Python."""
    columns: Mapping[str, Any]


class BadRow(Exception):  # noqa: N818 - a row's error, which may be skipped and counted
    """What is wrong with one row.

    `reason` is the part that rows share and by which skipped rows are counted; `detail` is specific to the row.
    """

    def __init__(self, where: str, reason: str, detail: str = "", hint: str | None = None) -> None:
        super().__init__(f"{where}: {reason}{detail}")
        self.where, self.reason, self.detail, self.hint = where, reason, detail, hint


class BadRows:
    """Handles bad rows: the first one raises, or each is skipped and counted by reason."""

    def __init__(self, on_bad_row: OnBad) -> None:
        self.on_bad_row = on_bad_row
        self.counts: Counter[str] = Counter()

    def add(self, bad: BadRow) -> None:
        """Count the row. Raises InputError when bad rows stop the run."""
        if self.on_bad_row == "stop":
            hint = "correct the row, or set data.on_bad_row=skip to leave such rows out"
            raise InputError(one_line(str(bad)), hint=f"{bad.hint}; {hint}" if bad.hint else hint) from bad
        self.counts[bad.reason] += 1

    def require_some(self, kept: Sequence[object], source: str) -> None:
        """Raises InputError when no row is left: the data are empty, or every row was skipped."""
        if kept:
            return
        if not self.counts:
            raise InputError(f"{source}: no rows", hint="give at least one row")
        raise InputError(
            f"{source}: no row is usable: {tally(self.counts)}", hint="correct the rows, or give other data"
        )


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """The result of a loader: the items in the order of their rows, and the number of skipped rows by reason.

    Example:
        Loaded(items=(prompt_1, prompt_2), skipped={"column 'prompt' is empty": 3})
    """

    items: tuple[T, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.items[index]


def tally(counts: Mapping[str, int]) -> str:
    """The counts as text, the most frequent first: `3 × invalid JSON, 1 × column 'prompt' is empty`."""
    return ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.items(), key=lambda item: -item[1]))


def counted(count: int, plural: str) -> str:
    """`3 pairs`, `1 pair`; for nouns that take an s."""
    return f"{count} {plural if count != 1 else plural.removesuffix('s')}"


def one_line(text: str, width: int = 300) -> str:
    """`text` without line breaks, cut at `width` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def listed(names: Iterable[str]) -> str:
    """Column names as a message shows them, sorted and comma-separated; `none` where there are none."""
    return ", ".join(sorted(names)) or "none"
