"""Scored groups as rows and columns: one writer and one reader for the rollout log, the wire and replay.

A row is an episode, as JSON; a column holds an entry for each token of all episodes, one behind the other, as a tensor.
Nothing is pickled. `ROLLOUT_SCHEMA_VERSION` stands in every row; a reader refuses rows of another version.

    token_ids, turns          each token of each segment
    column/NAME               a per-token column of `reinlm.records.COLUMNS` over the chosen tokens of the segments that name it
    text, text_ends           UTF-8 of every token's own text, and where it ends: what a viewer without a tokenizer shows
    update/NAME               what an update made of each token that the policy chose; NaN where it was in none

`update/mask` says why a token is, or is not, in the loss: 0 it is; 1 its answer has no reward; 2 its answer was filtered as
overlong; 3 its weight is 0 (a sequence mask, a correction, `loss_weight`); 4 no update reached it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reinlm.errors import InputError
from reinlm.plain import decode, encode
from reinlm.records import (
    COLUMNS,
    Array,
    RewardEvent,
    Rollout,
    RolloutGroup,
    SamplingSettings,
    ScoredGroup,
    Segment,
    Task,
    total,
    unweighted,
)
from reinlm.runs.files import remove, write_atomic, write_json_lines
from reinlm.runs.metrics import numbered

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

ROLLOUT_SCHEMA_VERSION = 1


# ---------------------------------------------------------------------------------------------------- writing


def pack_groups(groups: Sequence[ScoredGroup]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Rows and columns that `unpack_groups` gives the same groups from, to the last bit.

    Raises InputError for a task's column that holds what is no plain data.
    """
    rows = []
    columns: dict[str, list[Array]] = {"token_ids": [], "turns": []}
    for number, group in enumerate(groups):
        for index, rollout in enumerate(group.group.rollouts):
            rows.append(_row(number, group, index))
            for segment in rollout.segments:
                columns["token_ids"].append(segment.token_ids)
                columns["turns"].append(segment.turns)
                for name, values in segment.columns.items():
                    columns.setdefault(f"column/{name}", []).append(values)
    return rows, {name: np.concatenate(parts) for name, parts in columns.items() if parts}


def _row(number: int, group: ScoredGroup, index: int) -> dict[str, Any]:
    rollout, events = group.group.rollouts[index], group.events[index]
    names = dict.fromkeys(event.name for event in events)
    return {
        "schema": ROLLOUT_SCHEMA_VERSION,
        "group": number,
        "sample": index,
        "task_id": rollout.task.id,
        "prompt": rollout.task.content,
        "completion": rollout.completion,
        "reward": total(events),
        "rewards": {name: unweighted(events, name) for name in names},
        "length": rollout.length,
        "turns": rollout.turns,
        "terminated": rollout.terminated,
        "truncated": rollout.truncated,
        "end": rollout.reason,
        "events": [asdict(event) for event in events],
        "environment_events": [asdict(event) for event in rollout.events],
        "shaping": [asdict(event) for event in group.shaping[index]] if group.shaping else None,
        "baseline": group.baseline,
        **({"logged": dict(group.logged[index])} if group.logged else {}),
        "columns": encode(dict(rollout.task.columns)),
        "segments": [
            {
                "tokens": len(segment),
                "chosen": segment.length,
                "columns": sorted(segment.columns),
                "sampling": asdict(segment.sampling),
            }
            for segment in rollout.segments
        ],
    }


def write_groups(
    folder: Path,
    step: int,
    groups: Sequence[ScoredGroup],
    updates: Mapping[str, Tensor | Array],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    max_episodes: int | None = None,
) -> Path:
    """Write `step_N.jsonl` and `step_N.safetensors`, each in one piece.

    Args:
        updates: per-token quantities of the update, over the chosen tokens of all groups in their order.
        tokenizer: gives every token's text.
        max_episodes: whole groups are written while they hold no more episodes than this; null: all.
    """
    from safetensors.numpy import save

    kept = _within(groups, max_episodes)
    rows, columns = pack_groups(kept)
    chosen = sum(rollout.length for group in kept for rollout in group.group.rollouts)
    for name, values in updates.items():
        array = values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()
        with np.errstate(over="ignore"):  # beyond float32 is infinite there
            columns[f"update/{name}"] = np.ascontiguousarray(array[:chosen], dtype=_update_type(array))
    if tokenizer is not None and "token_ids" in columns:
        columns |= _texts(columns["token_ids"], tokenizer)
    path = folder / f"step_{step}.jsonl"
    write_atomic(path.with_suffix(".safetensors"), save(columns))
    write_json_lines(path, rows)
    return path


def _within(groups: Sequence[ScoredGroup], most: int | None) -> list[ScoredGroup]:
    kept: list[ScoredGroup] = []
    episodes = 0
    for group in groups:
        episodes += len(group.events)
        if most is not None and kept and episodes > most:
            break
        kept.append(group)
    return kept


def _update_type(array: Array) -> Any:
    return np.float32 if np.issubdtype(array.dtype, np.floating) else np.int16


def _texts(token_ids: Array, tokenizer: PreTrainedTokenizerBase) -> dict[str, Array]:
    """The text of every token by itself; bytes of a character that several tokens share show as the replacement mark."""
    distinct, place = np.unique(token_ids, return_inverse=True)
    texts = [str(tokenizer.decode([int(token)], skip_special_tokens=False)).encode() for token in distinct]
    whole = [texts[index] for index in place]
    ends = np.cumsum([len(text) for text in whole], dtype=np.int64)
    if ends.size and ends[-1] <= np.iinfo(np.int32).max:
        ends = ends.astype(np.int32)
    return {"text": np.frombuffer(b"".join(whole), np.uint8).copy(), "text_ends": ends}


class RolloutLog:
    """`rollouts/step_N.jsonl` and `rollouts/step_N.safetensors`: the episodes of a step and their tokens.

    `after_step` is as in `MetricsLog`: files of later steps are removed.
    """

    def __init__(self, folder: Path, *, after_step: int = -1) -> None:
        self.folder = Path(folder) / "rollouts"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.truncate(after_step)

    def write(self, step: int, groups: Sequence[ScoredGroup], updates: Mapping[str, Any], **options: Any) -> Path:
        """Write the groups of `step`; files of the same step are replaced. Arguments as in `write_groups`."""
        return write_groups(self.folder, step, groups, updates, **options)

    def truncate(self, after_step: int) -> None:
        """Remove what was written after `after_step`."""
        for suffix in (".jsonl", ".safetensors"):
            for step, path in numbered(self.folder, suffix):
                if step > after_step:
                    remove(path)


# ---------------------------------------------------------------------------------------------------- reading


def unpack_groups(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Array]) -> list[ScoredGroup]:
    """The groups that `pack_groups` was given.

    Raises InputError for rows of another version, or columns that do not fit them.
    """
    reader = _Reader(columns)
    groups: dict[int, list[tuple[Rollout, Mapping[str, Any]]]] = {}
    for row in rows:
        if row.get("schema") != ROLLOUT_SCHEMA_VERSION:
            raise InputError(
                f"episode {row.get('task_id')!r} has schema version {row.get('schema')!r}, not {ROLLOUT_SCHEMA_VERSION}",
                hint="read it with the version of reinlm that wrote it",
            )
        groups.setdefault(row["group"], []).append((reader.rollout(row), row))
    reader.check_end()
    return [_group(members) for members in groups.values()]


def _group(members: Sequence[tuple[Rollout, Mapping[str, Any]]]) -> ScoredGroup:
    rollouts = tuple(rollout for rollout, _ in members)
    rows = [row for _, row in members]
    shaping = tuple(_events(row["shaping"]) for row in rows if row["shaping"] is not None)
    group = RolloutGroup(rollouts[0].task, rollouts)
    logged = tuple(row["logged"] for row in rows if "logged" in row)
    return ScoredGroup(group, tuple(_events(row["events"]) for row in rows), rows[0]["baseline"], shaping, logged)


def _events(rows: Sequence[Mapping[str, Any]]) -> tuple[RewardEvent, ...]:
    return tuple(RewardEvent(**row) for row in rows)


class _Reader:
    """Takes the next entries of every column, segment by segment."""

    def __init__(self, columns: Mapping[str, Array]) -> None:
        self.columns = columns
        self.read = dict.fromkeys(columns, 0)
        self.tasks: dict[tuple[int, str], Task] = {}

    def rollout(self, row: Mapping[str, Any]) -> Rollout:
        key = (row["group"], row["task_id"])
        if key not in self.tasks:
            self.tasks[key] = Task(row["task_id"], _content(row["prompt"]), decode(row["columns"]))
        return Rollout(
            task=self.tasks[key],
            segments=tuple(self._segment(part, row["task_id"]) for part in row["segments"]),
            completion=_content(row["completion"]),
            terminated=row["terminated"],
            truncated=row["truncated"],
            reason=row["end"],
            events=_events(row["environment_events"]),
        )

    def _segment(self, part: Mapping[str, Any], where: str) -> Segment:
        for name in part["columns"]:
            if name not in COLUMNS:
                raise InputError(
                    f"episode {where!r} has a per-token column {name!r} that is not declared",
                    hint="import the file that declares it (imports: [FILE.py])",
                )
        return Segment(
            token_ids=self._take("token_ids", part["tokens"], where),
            turns=self._take("turns", part["tokens"], where),
            columns={name: self._take(f"column/{name}", part["chosen"], where) for name in part["columns"]},
            sampling=SamplingSettings(**part["sampling"]),
        )

    def _take(self, name: str, count: int, where: str) -> Array:
        start = self.read.get(name, 0)
        values = self.columns.get(name)
        if values is None or len(values) < start + count:
            raise InputError(f"episode {where!r}: the column {name!r} is missing or too short")
        self.read[name] = start + count
        return values[start : start + count].copy()

    def check_end(self) -> None:
        for name, read in self.read.items():
            if (name in ("token_ids", "turns") or name.startswith("column/")) and read != len(self.columns[name]):
                raise InputError(f"the column {name!r} has {len(self.columns[name])} entries for {read} tokens")


def _content(value: Any) -> Any:
    return value if isinstance(value, str) else tuple(value)


def read_groups(path: Path) -> tuple[list[ScoredGroup], dict[str, Array]]:
    """The groups of `step_N.jsonl`, and all columns that stand beside them."""
    from safetensors.numpy import load_file

    lines = path.read_text(encoding="utf-8").split("\n")  # JSON may hold other line separators, such as U+2028
    rows = [json.loads(line) for line in lines if line]
    columns = load_file(path.with_suffix(".safetensors"))
    return unpack_groups(rows, columns), dict(columns)


def token_texts(columns: Mapping[str, Array]) -> list[str]:
    """The text of every token, in the order of `token_ids`."""
    data, ends = columns["text"].tobytes(), columns["text_ends"].tolist()
    return [data[a:b].decode(errors="replace") for a, b in zip([0, *ends], ends, strict=False)]
