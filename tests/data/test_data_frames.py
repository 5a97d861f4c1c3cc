"""Data of other packages, several sources with weights, and the order in which training reads rows."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reinlm.data import DataConfig, RowOrder, load_rows, load_tasks
from reinlm.data.frames import is_rows
from reinlm.data.loading import find_rows, row_order
from reinlm.errors import InputError

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+3=", "answer": "5"}]


def columns(data: Any, **options: Any) -> list[dict[str, Any]]:
    return [dict(row.columns) for row in find_rows(DataConfig(path=data, **options), "prompt").rows]


def test_a_frame_of_pandas_is_its_rows() -> None:
    pandas = pytest.importorskip("pandas")
    assert columns(pandas.DataFrame(ROWS, index=[7, 3])) == ROWS
    chats = [{"prompt": [{"role": "user", "content": "hi"}], "level": 2, "note": None}]
    (row,) = columns(pandas.DataFrame(chats))
    assert row == chats[0]
    assert type(row["level"]) is int
    gaps = pandas.DataFrame({"prompt": ["a", "b"], "score": [1.5, None]})
    assert [row["score"] for row in columns(gaps)] == [1.5, None]
    assert not is_rows({"path": gaps})


def test_arrays_in_a_frame_are_lists(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    chats = [{"prompt": [{"role": "user", "content": "hi"}]}]
    pandas.DataFrame(chats).to_parquet(tmp_path / "chats.parquet")
    assert columns(pandas.read_parquet(tmp_path / "chats.parquet")) == chats


def test_a_frame_of_polars_is_its_rows() -> None:
    polars = pytest.importorskip("polars")
    assert columns(polars.DataFrame(ROWS)) == columns(polars.DataFrame(ROWS).lazy()) == ROWS


def test_a_table_of_pyarrow_is_its_rows() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    assert columns(pyarrow.Table.from_pylist(ROWS)) == ROWS


def test_data_sets_are_their_rows_and_a_split_is_chosen() -> None:
    datasets = pytest.importorskip("datasets")
    train, test = (datasets.Dataset.from_list(rows) for rows in (ROWS, ROWS[:1]))
    both = datasets.DatasetDict(train=train, test=test)
    assert columns(train) == columns(both) == columns(datasets.DatasetDict(only=train)) == ROWS
    assert DataConfig.model_validate(both).path == ROWS
    assert columns(both, split="test") == ROWS[:1]
    assert columns(train.to_iterable_dataset(), limit=1) == ROWS[:1]
    assert [dict(row.columns) for row in load_rows(train)] == ROWS


def test_a_generator_is_read_once_and_no_further_than_the_limit() -> None:
    endless = ({"prompt": str(number)} for number in itertools.count())
    assert columns(endless, limit=3) == [{"prompt": "0"}, {"prompt": "1"}, {"prompt": "2"}]
    assert next(endless) == {"prompt": "3"}
    assert columns(row for row in ROWS) == ROWS


def test_several_sources_are_read_one_after_the_other(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "from a file", "answer": "1"}\n')
    config = DataConfig(path=[str(tmp_path / "a.jsonl"), (row for row in ROWS), ROWS[:1]])
    tasks = load_tasks(config, tokenizer).items
    assert [task.id for task in tasks] == [f"{tmp_path}/a.jsonl:1", "data[1][0]", "data[1][1]", "data[2][0]"]
    assert [task.content for task in tasks] == ["from a file", "1+1=", "2+3=", "1+1="]


# ------------------------------------------------------------------------------------------------ order


def order(rows: Any, **options: Any) -> RowOrder:
    config = DataConfig(path=rows, **options)
    found = find_rows(config, "prompt")
    return row_order(config, found, [row.where for row in found.rows], seed=5)


def test_rows_keep_their_order_or_follow_a_column() -> None:
    rows = [{"prompt": str(n), "level": level} for n, level in enumerate([3, 1, 2, 1, 3, 2, 1])]
    assert order(rows, shuffle=False).take(10) == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert order(rows).take(7) == RowOrder(7, seed=5).take(7)
    assert order(rows, sort_by="level", shuffle=False).take(7) == [1, 3, 6, 2, 5, 0, 4]
    shuffled = order(rows, sort_by="level")
    epochs = [shuffled.take(7) for _ in range(8)]
    assert all([rows[index]["level"] for index in epoch] == [1, 1, 1, 2, 2, 3, 3] for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1


@pytest.mark.parametrize("level", [None, float("nan"), [1], "hard"])
def test_a_column_that_cannot_be_sorted_is_named(level: Any) -> None:
    rows = [{"prompt": "a", "level": 1}, {"prompt": "b", "level": level}]
    with pytest.raises(InputError, match=r"data\.sort_by.*'level'"):
        order(rows, sort_by="level")


def test_weights_are_shares_of_every_stretch_and_sources_begin_again() -> None:
    easy, hard = ([{"prompt": f"{name}{n}"} for n in range(size)] for name, size in (("e", 10), ("h", 3)))
    mixed = order([easy, hard], weights=[1, 3])
    taken = mixed.take(13 * 4)
    for start in range(0, len(taken), 4):
        assert sum(index >= 10 for index in taken[start : start + 4]) in (2, 3, 4)
    assert sum(index >= 10 for index in taken) == 4 * round(13 * 0.75)
    counts = Counter(index for index in taken if index >= 10)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert mixed.epochs == 4.0


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    weights=st.lists(st.floats(0.1, 5), min_size=3, max_size=3),
    cut=st.integers(0, 40),
)
def test_a_mixture_that_is_resumed_goes_on_with_the_same_rows(sizes: list[int], weights: list[float], cut: int) -> None:
    sources = [number for number, size in enumerate(sizes) for _ in range(size)]
    how: Any = {"seed": 1, "sources": sources, "weights": weights[: len(sizes)]}
    whole, first, second = (RowOrder(len(sources), **how) for _ in range(3))
    first.take(cut)
    second.load_state_dict(first.state_dict())
    assert whole.take(cut + 20)[cut:] == second.take(20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": ROWS, "weights": [1.0]}, "1 numbers for 1 sources"),
        ({"path": ["a.jsonl", "b.jsonl"], "weights": [1]}, "1 numbers for 2 sources"),
        ({"path": ["a.jsonl", "b.jsonl"], "weights": [1, -1]}, "must all be above 0"),
    ],
)
def test_weights_that_fit_no_sources_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataConfig(**given)


def test_a_source_that_has_no_row_left_is_named() -> None:
    with pytest.raises(InputError, match=r"data\[1\] has no row to take"):
        order([ROWS, ROWS[:1]], weights=[1, 1], limit=2)
