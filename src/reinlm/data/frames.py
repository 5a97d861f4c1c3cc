"""Tables of other packages as rows: data sets of `datasets`, frames of pandas and polars, tables of pyarrow, generators.

None of these packages is imported here: an object of one of them says itself where it comes from.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reinlm.config import Config
from reinlm.data.rows import listed
from reinlm.errors import InputError, unknown

_ENDINGS = (".jsonl", ".json", ".csv", ".parquet", ".gz", ".txt", ".tsv")
_SPLITS = ("DatasetDict", "IterableDatasetDict")


def is_rows(value: Any) -> bool:
    """Whether a value is data itself, and not a section of settings: anything but a plain mapping or a configuration."""
    return not isinstance(value, Mapping) or type(value).__name__ in _SPLITS


def named_sets(value: Any, alone: str = "eval") -> dict[str, Any]:
    """Sets of data by name, each as a section of settings: one without a name is called `alone`; data itself is its path."""
    if value is None:
        return {}
    if is_rows(value) or isinstance(value, Config) or "path" in value:
        value = {alone: value}
    return {name: {"path": data} if is_rows(data) else data for name, data in value.items()}


def rows_of(value: Any, split: str | None = None, limit: int | None = None) -> tuple[Any, str | None]:
    """Data as a path, a list of paths or a list of rows; and the split, where it is still to be chosen.

    Args:
        value: a path, a list, an object of another package, or any iterable of rows, which is read once.
        split: of a `DatasetDict`; None: `train`, or the only one.
        limit: rows to read of an iterable.

    Raises:
        InputError: what is no data, with what to write instead.
    """
    if isinstance(value, str | Path):
        if isinstance(value, str) and _reads_like_text(value):
            raise InputError(
                f"{value[:60]!r} names no file and no data set", hint="give rows: [{'prompt': text}], or a file of rows"
            )
        return str(value), split
    name, package = type(value).__name__, type(value).__module__.partition(".")[0]
    if package == "datasets" and name in _SPLITS:
        chosen = split or (next(iter(value)) if len(value) == 1 else "train")
        if chosen not in value:
            if split is None:
                raise InputError(
                    f"this {name} has the splits {listed(value)}: which one?",
                    hint=f"give dataset[{next(iter(value))!r}], or data={{'path': dataset, 'split': {next(iter(value))!r}}}",
                )
            raise unknown(f"split of the {name}", chosen, value)
        return rows_of(value[chosen], None, limit)
    if name == "LazyFrame" and package == "polars":
        value, name = value.collect(), "DataFrame"
    if package == "pandas" and name == "DataFrame":
        return [_without_gaps(row) for row in value.to_dict("records")], split
    if package == "polars" and name == "DataFrame":
        return value.to_dicts(), split
    if package == "pyarrow" and hasattr(value, "to_pylist"):
        return value.to_pylist(), split
    if package == "datasets" and name == "Dataset":
        return value.to_list(), split
    if package == "datasets" and name == "IterableDataset" and limit is None:
        raise InputError(
            "an IterableDataset may have no end", hint="say how many rows to read: data={'path': …, 'limit': N}"
        )
    _refuse(value, name)
    if isinstance(value, list | tuple) and any(_is_table(item) for item in value):
        return [_source(item) for item in value], split
    rows = [str(item) if isinstance(item, Path) else item for item in itertools.islice(value, _wanted(value, limit))]
    _refuse_texts(rows)
    return rows, split


def is_list_of_sources(path: list[Any]) -> bool:
    """Whether a list holds sources, each a path or the rows of one, and not rows."""
    return bool(path) and all(isinstance(item, str | list) for item in path)


def _is_table(item: Any) -> bool:
    """Whether an item of a list is a source of rows of its own, and not a row or a chat."""
    if isinstance(item, list):
        return bool(item) and isinstance(item[0], Mapping) and "role" not in item[0]
    return not isinstance(item, str | Path | Mapping | bytes | tuple) and hasattr(item, "__len__")


def _source(item: Any) -> Any:
    found, _ = rows_of(item)
    return found


def _wanted(value: Any, limit: int | None) -> int | None:
    """How many rows to take of an iterable; of a list all, since its reader counts them."""
    return limit if isinstance(value, Iterator) or not hasattr(value, "__len__") else None


def _refuse(value: Any, name: str) -> None:
    if hasattr(value, "convert_tokens_to_ids"):
        raise InputError("a tokenizer stands where data belong", hint="give (model, tokenizer) as the model")
    if hasattr(value, "to_frame"):  # a column of a frame
        raise InputError(f"a {name} is one column", hint="give the whole frame, with a column 'prompt'")
    if callable(value) and not isinstance(value, Iterable):
        raise InputError(f"a {name} is no data", hint="call it, data=rows(), or give a list of rows")
    if isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        raise InputError(
            f"an object of type {name} is no data", hint="give a file, a data set, a frame, or a list of rows"
        )


def _reads_like_text(name: str) -> bool:
    """Whether a name of data is rather a prompt: several words that name no file and end like none."""
    if "\n" not in name and (" " not in name.strip() or Path(name).suffix in _ENDINGS or "/" in name):
        return False
    return "\n" in name or not Path(name).exists()


def _refuse_texts(rows: list[Any]) -> None:
    """A list of texts means files; one that reads like a prompt is no file."""
    for item in rows:
        if isinstance(item, list) and item and isinstance(item[0], Mapping) and "role" in item[0]:
            raise InputError(
                "a chat stands where a row belongs", hint="give rows: [{'messages': chat} for chat in chats]"
            )
        if isinstance(item, str) and _reads_like_text(item):
            raise InputError(
                f"a list of texts names files, and {item[:60]!r} is none",
                hint="give rows: [{'prompt': text} for text in texts]",
            )


def _without_gaps(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """A row of a frame: NaN, NaT and NA as None, arrays as lists."""
    return {key: _plain(value) for key, value in row.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    missing = type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    return None if missing else value
