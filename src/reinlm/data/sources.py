"""Read rows from files, data sets and lists, with their origin; a row that cannot be read is yielded as a `BadRow`.

pyarrow and datasets are optional and imported only when a source needs them.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from reinlm.data.rows import BadRow, Row, one_line
from reinlm.errors import InputError, unknown
from reinlm.hub import missing_data, nearest_path, why_not_on_hub
from reinlm.program import install

Read = Iterator[Row | BadRow]


def read_source(source: str | Sequence[Any], split: str | None = None, subset: str | None = None) -> Read:
    """The rows of a file, a data set, a list of those, or a list of dicts, in their order.

    Raises InputError for what is wrong with a source as a whole: a missing file, an unknown format, split or data set.
    """
    if isinstance(source, str):
        yield from _read_one(source, split, subset)
    elif source and all(isinstance(item, str | list) for item in source):
        named = [item for item in source if isinstance(item, str)]
        twice = sorted({item for item in named if named.count(item) > 1})
        if twice:
            raise InputError(f"{twice[0]} is named twice among the data", hint="name each source once")
        for number, item in enumerate(source):
            if isinstance(item, str):
                yield from _read_one(item, split, subset)
                continue
            _refuse_splits("a list of rows", split, subset)
            for index, row in enumerate(item):
                yield _row(f"data[{number}][{index}]", row)
    else:
        _refuse_splits("a list of rows", split, subset)
        for index, item in enumerate(source):
            yield _row(f"data[{index}]", item)


def source_name(source: str | Sequence[Any]) -> str:
    """The name of the source in messages: its path or paths, or `data` for rows from Python."""
    if isinstance(source, str):
        return source
    return ", ".join(source) if source and all(isinstance(item, str) for item in source) else "data"


def source_number(where: str, sources: Sequence[Any]) -> int:
    """Which of several sources a row comes from, by its origin as `read_source` names it."""
    names = [item if isinstance(item, str) else f"data[{number}]" for number, item in enumerate(sources)]
    found = [number for number, name in enumerate(names) if where.startswith((f"{name}:", f"{name}["))]
    return max(found, key=lambda number: len(names[number]))


def _read_one(source: str, split: str | None, subset: str | None) -> Read:
    path = Path(source)
    if path.is_file():
        suffix = next((known for known in _READERS if path.name.lower().endswith(known)), None)
        if suffix is None:
            raise InputError(f"{source}: unknown format {path.suffix!r}", hint=f"known: {', '.join(_READERS)}")
        _refuse_splits(f"{source} (a plain file)", split, subset)
        yield from _READERS[suffix](source)
    else:
        refused = missing_data(source)
        if refused is not None:
            raise refused
        yield from _read_data_set(source, split, subset)


def _refuse_splits(what: str, split: str | None, subset: str | None) -> None:
    for name, value in (("split", split), ("subset", subset)):
        if value is not None:
            raise InputError(f"{name}={value!r} is set, but {what} has none", hint=f"take {name} out")


def _row(where: str, value: Any) -> Row | BadRow:
    if not isinstance(value, Mapping):
        return BadRow(where, "not an object", f" but {_kind(value)}", hint="a row maps column names to values")
    if not all(isinstance(key, str) for key in value):
        return BadRow(where, "a column name is not text")
    return Row(where, value)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _open(source: str) -> IO[bytes]:
    try:
        return cast("IO[bytes]", gzip.open(source, "rb") if source.lower().endswith(".gz") else open(source, "rb"))
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}") from error


def _lines(source: str) -> Iterator[bytes]:
    """Lines as bytes, so that one undecodable line is one bad row."""
    with _open(source) as file:
        try:
            for number, line in enumerate(file):
                yield line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"cannot read {source}: {error}", hint="the file seems damaged") from error


def _read_jsonl(source: str) -> Read:
    for number, line in enumerate(_lines(source), start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        try:
            yield _row(where, json.loads(line.decode("utf-8")))
        except UnicodeDecodeError as error:
            yield BadRow(where, "not UTF-8", f" at byte {error.start + 1} of the line")
        except (ValueError, RecursionError) as error:
            yield BadRow(where, "invalid JSON", f": {error}", hint="one JSON object a line")


def _read_json(source: str) -> Read:
    """Element by element, so that a row is named by the line on which it starts."""
    content = b"".join(_lines(source))
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{source}:{line}: not UTF-8") from error
    decoder, position, line, counted = json.JSONDecoder(), _skip_space(text, 0), 1, 0
    if text[position : position + 1] != "[":
        raise InputError(f"{source}: a .json file must hold a list of rows", hint="one object a line is a .jsonl file")
    try:
        position = _skip_space(text, position + 1)
        while text[position : position + 1] != "]":
            line, counted = line + text.count("\n", counted, position), position
            value, position = decoder.raw_decode(text, position)
            yield _row(f"{source}:{line}", value)
            position = _skip_space(text, position)
            if text[position : position + 1] == ",":
                position = _skip_space(text, position + 1)
                if text[position : position + 1] == "]":
                    raise json.JSONDecodeError("a comma before the end of the list", text, position)
            elif text[position : position + 1] != "]":
                raise json.JSONDecodeError("expecting ',' or ']'", text, position)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}:{error.lineno}: invalid JSON: {error.msg} (column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}:{line}: invalid JSON: {error}") from error
    if text[position + 1 :].strip():
        raise InputError(f"{source}: text after the end of the list")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _read_csv(source: str) -> Read:
    old_limit = csv.field_size_limit(sys.maxsize if sys.maxsize < 2**31 else 2**31 - 1)
    try:
        with _open(source) as raw:
            # Undecodable bytes become lone surrogates, which the check of the fields finds: one bad row, not a bad file.
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")
            reader = csv.reader(text, strict=True)
            header = _csv_header(source, reader)
            while True:
                line = reader.line_num + 1
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield BadRow(f"{source}:{line}", "malformed CSV", f": {error}")
                    continue
                if fields:
                    yield _csv_row(f"{source}:{line}", header, fields)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"cannot read {source}: {error}", hint="the file seems damaged") from error
    finally:
        csv.field_size_limit(old_limit)


def _csv_header(source: str, reader: Any) -> list[str]:
    try:
        header: list[str] = next(reader, [])
    except csv.Error as error:
        raise InputError(f"{source}:1: malformed CSV: {error}") from error
    for name in header:
        if not name.strip() or header.count(name) > 1:
            problem = f"column {name!r} stands there twice" if name.strip() else "a column has no name"
            raise InputError(f"{source}:1: {problem}", hint="the first line names the columns, each once")
    return header


def _csv_row(where: str, header: list[str], fields: list[str]) -> Row | BadRow:
    if len(fields) != len(header):
        reason = "too many fields" if len(fields) > len(header) else "too few fields"
        return BadRow(
            where, reason, f": {len(fields)} for {len(header)} columns", hint="quote fields that hold a comma"
        )
    for name, value in zip(header, fields, strict=True):
        if any("\udc80" <= character <= "\udcff" for character in value):
            return BadRow(where, f"column {name!r} is not UTF-8")
    return Row(where, dict(zip(header, fields, strict=True)))


def _read_parquet(source: str) -> Read:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise InputError(f"{source}: reading Parquet needs pyarrow", hint=install("parquet")) from error
    number = 0
    try:
        with pq.ParquetFile(source) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield _row(f"{source}:{number}", row)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"cannot read {source}: {one_line(str(error))}", hint="the file seems damaged") from error


def _read_data_set(source: str, split: str | None, subset: str | None) -> Read:
    try:
        import datasets
    except ImportError as error:
        hint = f"{install('datasets')}, or give a .jsonl, .json, .csv or .parquet file"
        raise InputError(f"{source!r} is no file, and data sets need the package datasets", hint=hint) from error
    path = Path(source)
    if not path.is_dir():
        _check_name(source, Path(datasets.config.HF_DATASETS_CACHE))
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            _refuse_splits(f"{source} (a saved data set)", None, subset)
            loaded: Any = datasets.load_from_disk(source)
        else:
            loaded = datasets.load_dataset(source, name=subset)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, InputError):
            raise
        what = "folder" if path.is_dir() else "no file of that name, and as a Hugging Face data set"
        hint = "a file, a folder, or a data set's name; a set with several configurations needs subset"
        raise InputError(f"cannot load data {source!r} ({what}): {one_line(str(error))}", hint=hint) from error
    chosen, rows = _choose_split(source, loaded, split)
    for number, row in enumerate(rows, start=1):
        yield _row(f"{source}[{chosen}]:{number}" if chosen else f"{source}:{number}", row)


def _check_name(name: str, cache: Path) -> None:
    """Ask the Hub once for a data set that is not in the cache; datasets itself would try again for half a minute."""
    if (cache / name.replace("/", "___")).is_dir():
        return
    reason = why_not_on_hub(name, "dataset")
    if reason is not None:
        near = nearest_path(name)
        spelling = f"if it is a file: did you mean {near!r}? else" if near else "if it is a file, check its path; else"
        texts = "" if "/" in name else "; a prompt goes in a row, [{'prompt': …}]"
        raise InputError(
            f"data {name!r} are neither a file here nor a data set that can be downloaded: {reason}",
            hint=f"{spelling} check the name, the network{texts or ', and `hf auth login` for gated data'}",
        )


def _choose_split(source: str, loaded: Any, split: str | None) -> tuple[str | None, Any]:
    if not isinstance(loaded, Mapping):  # saved as one set, without splits
        _refuse_splits(source, split, None)
        return None, loaded
    if split is None:
        split = next(iter(loaded)) if len(loaded) == 1 else "train"
    if split not in loaded:
        raise unknown(f"split of {source}", split, loaded)
    return split, loaded[split]


_READERS: dict[str, Callable[[str], Read]] = {
    ".jsonl": _read_jsonl,
    ".jsonl.gz": _read_jsonl,
    ".json": _read_json,
    ".json.gz": _read_json,
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".parquet": _read_parquet,
}
