"""What the services' trackers leave on disk, read back without the services."""

from __future__ import annotations

import json
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32 * 1024


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run's transaction log: LevelDB's log format, blocks of chunks with a 7-byte head."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    data, place, parts = file.read_bytes(), HEADER, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # no head fits into the rest of a block
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or last of several
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def wait_for_wandb(file: Path, seconds: float = 30.0) -> None:
    """Wait until the process of W&B has written the end of the run."""
    deadline = time.monotonic() + seconds
    while not any(record.WhichOneof("record_type") == "exit" for record in wandb_records(file)):
        assert time.monotonic() < deadline, f"{file} has no end"
        time.sleep(0.1)


def wandb_runs(folder: Path) -> list[dict[str, Any]]:
    """Project, name, group and entity of the offline runs in a run's folder."""
    names = ("project", "display_name", "run_group", "entity")
    for file in folder.glob("wandb/offline-run-*/*.wandb"):
        wait_for_wandb(file)
    return [
        {name: getattr(record.run, name) for name in names}
        for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        for record in wandb_records(file)
        if record.WhichOneof("record_type") == "run"
    ]


def trackio_runs(store: Path) -> list[dict[str, Any]]:
    """Project, name and group of the runs in a store of Trackio."""
    found = []
    for file in sorted(store.glob("*.db")):
        with sqlite3.connect(file) as connection:
            for name, config in connection.execute("SELECT run_name, config FROM configs").fetchall():
                found.append({"project": file.stem, "name": name, "group": json.loads(config).get("_Group")})
    return found
