"""Atomic writing of files: write to a temporary file, sync, rename."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reinlm.errors import InputError


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write `data` so that a crash leaves the old file or the new one, never a part.

    Text is UTF-8; a lone surrogate, which has no UTF-8, is written as the `\\udXXX` that JSON reads back.
    """
    temporary = path.with_name(f".tmp-{path.name}")
    with open(temporary, "wb") as file:
        file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def checked_file(name: str, *, overwrite: bool) -> Path:
    """The file that a user wants written. Raises InputError where its folder is not there, or it exists, without `overwrite`."""
    output = Path(name)
    if not output.absolute().parent.is_dir():
        raise InputError(f"cannot write {output}: no such folder {output.absolute().parent}")
    if os.path.lexists(output) and not (overwrite and output.is_file()):
        allowed = ", or --overwrite (overwrite=True)" if output.is_file() else ""
        raise InputError(f"{output} exists already", hint=f"give another file{allowed}")
    return output


def write_json(path: Path, tree: Any) -> None:
    """Write strict JSON atomically; see `json_safe`."""
    write_atomic(path, json.dumps(json_safe(tree), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write strict JSON, one row a line, atomically; see `json_safe`."""
    lines = (json.dumps(json_safe(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    write_atomic(path, "".join(lines))


def json_safe(tree: Any) -> Any:
    """`tree` as strict JSON holds it: NaN and ±infinity become None, tuples and arrays lists, the rest text."""
    if isinstance(tree, float):
        return float(tree) if math.isfinite(tree) else None
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    if isinstance(tree, Mapping):
        return {str(key): json_safe(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [json_safe(value) for value in tree]
    return json_safe(tree.tolist()) if hasattr(tree, "tolist") else str(tree)


def stamped_folder(kind: str) -> Path:
    """`runs/KIND-DATE-TIME`, where a run goes that names no folder; numbered from 2 where that is there already."""
    stamped = f"runs/{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stamped], (f"{stamped}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, names) if not path.exists())


def sync(path: Path) -> None:
    """Ask the disk to hold this file, or this folder's list of names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Sync every file and folder below `folder`, and the folder itself."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(root, name))
        sync(Path(root))


def remove(path: Path) -> None:
    """Remove a file, a link (not what it points to) or a folder with all that it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
