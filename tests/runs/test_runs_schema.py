"""What is written of scored groups comes back to the last bit, and what does not fit is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from reinlm.errors import InputError
from reinlm.models import character_tokenizer
from reinlm.records import COLUMNS, Column, Rollout, RolloutGroup, ScoredGroup, Task, declare_column
from reinlm.runs.schema import (
    ROLLOUT_SCHEMA_VERSION,
    RolloutLog,
    pack_groups,
    read_groups,
    token_texts,
    unpack_groups,
    write_groups,
)
from samples import groups, reward, scored, segment

TWO = [
    scored(
        ("ppaapaa", [reward(1.0), reward(0.5, "steps", token=1)]),
        (["paa", "pppa"], [reward(2.0, weight=0.5)]),
    ),
    scored(("pp", [reward(-1.0)]), ("pa", []), where="data[1]", end="length"),
]


def packed(these=TWO):
    """Rows as they come back from JSON, and columns."""
    rows, columns = pack_groups(these)
    return json.loads(json.dumps(rows)), columns


@settings(max_examples=60)
@given(groups())
def test_groups_come_back_to_the_last_bit(drawn):
    assert unpack_groups(*packed(drawn)) == drawn


@settings(max_examples=20)
@given(groups())
def test_groups_come_back_from_files_too(tmp_path_factory, drawn):
    path = write_groups(tmp_path_factory.mktemp("log"), 3, drawn, {})
    found, _ = read_groups(path)
    assert found == drawn


@pytest.mark.parametrize("text", ["one\u2028two", "a\x85b\x1cc", "one\ntwo"])
def test_text_may_hold_any_line_separator(text, tmp_path: Path):
    task = Task("data[0]", text, {"answer": text, "pairs": ((1, b"\x00"), None)})
    rollout = Rollout(task, (segment("pa"),), ({"role": "assistant", "content": text},), True, False, "stop")
    one = ScoredGroup(RolloutGroup(task, (rollout,)), ((reward(1.0),),))
    assert read_groups(write_groups(tmp_path, 1, [one], {}))[0] == [one]


def test_a_row_is_an_episode_that_people_can_read():
    rows, columns = packed()
    assert [(row["group"], row["sample"], row["task_id"]) for row in rows] == [
        (0, 0, "data[0]"),
        (0, 1, "data[0]"),
        (1, 0, "data[1]"),
        (1, 1, "data[1]"),
    ]
    first = rows[0]
    assert (first["reward"], first["rewards"]) == (1.5, {"math": 1.0, "steps": 0.5})
    assert (first["length"], first["turns"], first["end"], first["truncated"]) == (4, 2, "stop", False)
    assert (rows[3]["reward"], rows[3]["rewards"], rows[3]["truncated"]) == (None, {}, True)
    assert columns["token_ids"].tolist() == [*range(10, 17), *range(10, 13), *range(10, 14), 10, 11, 10, 11]
    assert columns["column/rollout_logprobs"].shape == (8,)


def test_rows_of_another_version_are_refused():
    rows, columns = packed()
    rows[2]["schema"] = ROLLOUT_SCHEMA_VERSION + 1
    with pytest.raises(InputError) as error:
        unpack_groups(rows, columns)
    assert error.value.message == "episode 'data[1]' has schema version 2, not 1"
    assert error.value.hint == "read it with the version of reinlm that wrote it"


@pytest.mark.parametrize("name", ["token_ids", "turns", "column/rollout_logprobs", "column/version"])
def test_a_column_that_is_too_short_or_missing_or_too_long_is_named(name):
    rows, columns = packed()
    missing = rf"^episode 'data\[1\]': the column '{name}' is missing or too short$"
    with pytest.raises(InputError, match=missing):
        unpack_groups(rows, columns | {name: columns[name][:-1]})
    with pytest.raises(InputError, match=missing.replace("data\\[1", "data\\[0")):
        unpack_groups(rows, {other: values for other, values in columns.items() if other != name})
    entries = len(columns[name])
    with pytest.raises(InputError, match=f"^the column '{name}' has {entries + 1} entries for {entries} tokens$"):
        unpack_groups(rows, columns | {name: np.append(columns[name], columns[name][:1])})


def test_a_column_that_is_not_declared_is_refused_by_name():
    declare_column(Column("difficulty", "float32", missing=0.0))
    try:
        rollout = replace(TWO[0].group.rollouts[0], segments=(segment("paa", difficulty=[1.0, 2.0]),))
        one = [ScoredGroup(RolloutGroup(rollout.task, (rollout,)), ((),))]
        rows, columns = packed(one)
        assert unpack_groups(rows, columns) == one
    finally:
        del COLUMNS["difficulty"]
    with pytest.raises(InputError, match=r"^episode 'data\[0\]' has a per-token column 'difficulty' that is not decl"):
        unpack_groups(rows, columns)


def test_a_task_with_what_is_no_plain_data_cannot_be_packed():
    task = Task("data[0]", "1+1=", {"model": object()})
    rollout = replace(TWO[0].group.rollouts[0], task=task)
    with pytest.raises(InputError, match="object"):
        pack_groups([ScoredGroup(RolloutGroup(task, (rollout,)), ((),))])


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize(("most", "kept"), [(None, 2), (4, 2), (3, 1), (2, 1), (1, 1)])
def test_whole_groups_are_written_up_to_a_number_of_episodes_and_one_at_least(most, kept, tmp_path: Path):
    advantages = torch.arange(8, dtype=torch.float64)
    path = write_groups(tmp_path, 1, TWO, {"advantages": advantages, "mask": torch.arange(8)}, max_episodes=most)
    found, columns = read_groups(path)
    assert found == TWO[:kept]
    chosen = {2: 8, 1: 7}[kept]
    assert columns["update/advantages"].tolist() == list(range(chosen))
    assert columns["update/advantages"].dtype == np.float32
    assert columns["update/mask"].tolist() == list(range(chosen))
    assert columns["update/mask"].dtype == np.int16


def test_every_token_has_its_text(tmp_path: Path):
    tokenizer = character_tokenizer("0123456789+=é")
    ids = np.array([*tokenizer("12+é=")["input_ids"], tokenizer.eos_token_id])
    rollout = replace(TWO[0].group.rollouts[0], segments=(replace(segment("pppaaa"), token_ids=ids),))
    one = ScoredGroup(RolloutGroup(rollout.task, (rollout,)), ((),))
    _, columns = read_groups(write_groups(tmp_path, 1, [one], {}, tokenizer))
    assert token_texts(columns) == ["1", "2", "+", "é", "=", tokenizer.eos_token]
    assert columns["text"].dtype == np.uint8
    assert columns["text_ends"].dtype == np.int32


def test_a_log_forgets_the_steps_that_come_again(tmp_path: Path):
    log = RolloutLog(tmp_path)
    for step in (1, 2, 10):
        log.write(step, TWO, {})
    assert [read_groups(tmp_path / "rollouts" / f"step_{step}.jsonl")[0] for step in (1, 2, 10)] == [TWO] * 3
    RolloutLog(tmp_path, after_step=2)
    names = sorted(path.name for path in (tmp_path / "rollouts").iterdir())
    assert names == [f"step_{step}.{suffix}" for step in (1, 2) for suffix in ("jsonl", "safetensors")]
