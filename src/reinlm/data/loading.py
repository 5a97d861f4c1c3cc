"""Read rows from a source, rename their columns and check them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reinlm.data.columns import Kind, alternative, check_row, column_map, require_column
from reinlm.data.config import DataConfig
from reinlm.data.order import RowOrder
from reinlm.data.rows import BadRow, BadRows, Loaded, OnBad, Row
from reinlm.data.sources import read_source, source_name, source_number
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


def row_order(config: DataConfig, found: Found, ids: Sequence[str], *, seed: int) -> RowOrder:
    """The order in which a run reads the items that were made of these rows.

    Args:
        ids: where each item comes from: the place of its row, or that with `#N` for one of several of a row.

    Raises:
        InputError: a column to sort by that is absent, empty or of several types; a source with a weight and no item.
    """
    rows = {row.where: row for row in found.rows}
    wheres = [item if item in rows else item.rpartition("#")[0] for item in ids]
    keys = _sort_keys(config.sort_by, [rows[where] for where in wheres], source_name(config.path))
    if config.weights is None:
        return RowOrder(len(ids), seed=seed, shuffle=config.shuffle, keys=keys)
    sources = [source_number(where, config.path) for where in wheres]
    for number, item in enumerate(config.path):
        if number not in sources:
            name = item if isinstance(item, str) else f"data[{number}]"
            raise InputError(
                f"data.weights: {name} has no row to take", hint="leave that source out, or raise data.limit"
            )
    return RowOrder(len(ids), seed=seed, shuffle=config.shuffle, keys=keys, sources=sources, weights=config.weights)


def _sort_keys(column: str | None, rows: Sequence[Row], source: str) -> list[Any] | None:
    if column is None:
        return None
    require_column(column, _present(rows), source, "data.sort_by")
    keys: list[Any] = []
    for row in rows:
        key = row.columns.get(column)
        if not isinstance(key, str | int | float) or key != key:
            raise InputError(
                f"{row.where}: data.sort_by needs a number or a text in column {column!r}, not {key!r}",
                hint="fill the column, or leave such rows out",
            )
        keys.append(key)
    if sum(isinstance(key, str) for key in keys) not in (0, len(keys)):
        raise InputError(
            f"{source}: data.sort_by: column {column!r} holds numbers and texts", hint="make them all numbers"
        )
    return keys


def refuse_order(config: DataConfig, key: str) -> None:
    """Raise InputError for an order of rows where every row is read once."""
    for name in ("weights", "shuffle", "sort_by"):
        if config.changed(name):
            raise InputError(f"{key}.{name} has no effect: all of its rows are read", hint=f"leave {key}.{name} out")


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
    lengths: Sequence[int],
    places: Sequence[str],
    *,
    limit: int,
    what: str,
    on_long: OnBad,
    source: str,
    key: str = "data",
) -> list[int]:
    """Indices of the sequences of at most `limit` tokens; `key` is the section of the data, for the hint.

    Raises InputError when `on_long` is "stop" and one is longer, or when every one is: it says how many, which is the
    longest, and what to change.
    """
    kept = [index for index, length in enumerate(lengths) if length <= limit]
    too_many = len(lengths) - len(kept)
    if too_many and (on_long == "stop" or not kept):
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        more = (
            "allow more tokens"
            if what == "prompts"
            else f"set max_tokens={lengths[longest]} where the context holds as many"
        )
        longer = "take a model with a longer context"
        raise InputError(
            f"{source}: {too_many} of {len(lengths)} {what} are longer than {limit} tokens "
            f"(the longest, {places[longest]}, has {lengths[longest]})",
            hint=(f"{more}, or {longer}" if key == "data" else longer)
            + (f", or set {key}.on_long_prompt=skip to leave them out" if kept else ""),
        )
    return kept


def _present(rows: Sequence[Row]) -> set[str]:
    return {name for row in rows for name in row.columns}
