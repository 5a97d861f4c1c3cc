"""Read rows from a source, rename their columns and check them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reinlm.data.columns import Kind, alternative, check_row, column_map
from reinlm.data.config import DataConfig
from reinlm.data.rows import BadRow, BadRows, Loaded, OnBad, Row
from reinlm.data.sources import read_source, source_name
from reinlm.errors import InputError


def load_rows(
    source: str | Sequence[Any],
    *,
    split: str | None = None,
    subset: str | None = None,
    columns: Mapping[str, str] | None = None,
    kind: Kind = "any",
    on_bad_row: OnBad = "stop",
    limit: int | None = None,
) -> Loaded[Row]:
    """Read rows, rename their columns, and check those that `kind` needs.

    Args:
        source: as `DataConfig.path`; likewise split, subset, columns, on_bad_row and limit.
        kind: what the rows are for: "prompt" (prompt or messages), "example" (prompt+completion, messages or text),
            "pair" (prompt+chosen+rejected) or "any", which checks no column.

    Raises:
        InputError: a source, column or row that cannot be used, named with its file, line and column; or no row left.
    """
    config = DataConfig(
        path=source if isinstance(source, str) else list(source),
        split=split, subset=subset, columns=dict(columns) if columns else None, on_bad_row=on_bad_row, limit=limit,
    )  # fmt: skip
    bad_rows = BadRows(on_bad_row)
    rows, _ = typed_rows(config, kind, bad_rows)
    return Loaded(tuple(rows), dict(bad_rows.counts))


@dataclass(frozen=True)
class Found:
    """The checked rows of a data set, before anything is tokenised.

    Example:
        Found(rows=[Row("a.jsonl:1", {"prompt": "1+1="})], names=("prompt",), bad_rows=BadRows("stop"))
    """

    rows: Sequence[Row]
    names: tuple[str, ...]
    """The columns that serve the kind of row."""
    bad_rows: BadRows
    """Counts the rows that were left out so far."""


def find_rows(config: DataConfig, kind: Kind) -> Found:
    """Read and check the rows of a data set: all that can be said of it without a tokenizer.

    Raises InputError for data, columns or rows that cannot be used, as `config` says.
    """
    bad_rows = BadRows(config.on_bad_row)
    return Found(*typed_rows(config, kind, bad_rows), bad_rows)


def typed_rows(config: DataConfig, kind: Kind, bad_rows: BadRows) -> tuple[list[Row], tuple[str, ...]]:
    """The checked rows, and the columns to use for `kind`, the same for the whole data set."""
    source = source_name(config.path)
    rows: list[Row] = []
    for item in itertools.islice(read_source(config.path, config.split, config.subset), config.limit):
        if isinstance(item, BadRow):
            bad_rows.add(item)
        else:
            rows.append(item)
    bad_rows.require_some(rows, source)
    mapping = column_map(config.columns, _present(rows), kind, source)
    mapped: list[Row] = []
    for row in rows:
        try:
            mapped.append(mapping.apply(row))
        except BadRow as bad:
            bad_rows.add(bad)
    bad_rows.require_some(mapped, source)
    names = alternative(kind, _present(mapped), source)
    checked: list[Row] = []
    for row in mapped:
        try:
            check_row(row, names)
            checked.append(row)
        except BadRow as bad:
            bad_rows.add(bad)
    bad_rows.require_some(checked, source)
    return checked, names


def drop_long(
    lengths: Sequence[int], places: Sequence[str], *, limit: int, what: str, on_long: OnBad, source: str
) -> list[int]:
    """Indices of the sequences of at most `limit` tokens.

    Raises InputError when `on_long` is "stop" and one is longer, or when every one is: it says how many, which is the
    longest, and what to change.
    """
    kept = [index for index, length in enumerate(lengths) if length <= limit]
    too_many = len(lengths) - len(kept)
    if too_many and (on_long == "stop" or not kept):
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        raise InputError(
            f"{source}: {too_many} of {len(lengths)} {what} are longer than {limit} tokens "
            f"(the longest, {places[longest]}, has {lengths[longest]})",
            hint="allow more tokens or take a model with a longer context"
            + (", or set data.on_long_prompt=skip to leave them out" if kept else ""),
        )
    return kept


def _present(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows for name in row.columns}
