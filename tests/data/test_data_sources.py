"""Every source gives the same rows, with their places, and names what is wrong with a file."""

from __future__ import annotations

import csv
import gzip
import json
import os
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reinlm.data import load_rows
from reinlm.errors import InputError
from reinlm.hub import missing_data, missing_model

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "zwei\nZeilen, é", "answer": "x"}, {"prompt": "3", "answer": "6"}]


def rows_of(source, **options):
    return [dict(row.columns) for row in load_rows(source, **options)]


def places_of(source, **options):
    return [row.where for row in load_rows(source, **options)]


def write_csv(path, rows=ROWS):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def jsonl(rows=ROWS):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def sources(tmp_path, monkeypatch) -> dict[str, str]:
    (tmp_path / "a.jsonl").write_text(jsonl(), encoding="utf-8")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(jsonl().encode()))
    (tmp_path / "a.json").write_text(json.dumps(ROWS, indent=2), encoding="utf-8")
    write_csv(tmp_path / "a.csv")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    splits = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "splits")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text(jsonl(), encoding="utf-8")
    names = ("a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.csv.gz", "a.parquet", "saved", "splits", "files")
    return {name: str(tmp_path / name) for name in names}


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("a.jsonl", ("a.jsonl:1", "a.jsonl:2", "a.jsonl:3")),
        ("a.jsonl.gz", ("a.jsonl.gz:1", "a.jsonl.gz:2", "a.jsonl.gz:3")),
        ("a.json", ("a.json:2", "a.json:6", "a.json:10")),
        ("a.csv", ("a.csv:2", "a.csv:3", "a.csv:5")),
        ("a.csv.gz", ("a.csv.gz:2", "a.csv.gz:3", "a.csv.gz:5")),
        ("a.parquet", ("a.parquet:1", "a.parquet:2", "a.parquet:3")),
        ("saved", ("saved:1", "saved:2", "saved:3")),
        ("splits", ("splits[train]:1", "splits[train]:2", "splits[train]:3")),
        ("files", ("files[train]:1", "files[train]:2", "files[train]:3")),
    ],
)
def test_every_format_gives_the_same_rows_with_their_places(sources, name, places):
    folder = str(Path(sources[name]).parent)
    assert rows_of(sources[name]) == ROWS
    assert places_of(sources[name]) == [f"{folder}/{place}" for place in places]


def test_rows_from_python_are_taken_as_they_are():
    assert rows_of(ROWS) == ROWS
    assert rows_of(datasets.Dataset.from_list(ROWS)) == ROWS
    assert places_of(ROWS) == ["data[0]", "data[1]", "data[2]"]


def test_several_files_follow_each_other_and_limit_counts_over_all(sources):
    both = [sources["a.jsonl"], sources["a.csv"]]
    assert rows_of(both) == ROWS + ROWS
    assert places_of([Path(path) for path in both], limit=4)[-1] == sources["a.csv"] + ":2"
    with pytest.raises(InputError, match=r"a\.csv is named twice"):
        load_rows([sources["a.csv"], sources["a.csv"]])


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf\n{"prompt": "a"}\n  \n\n{"prompt": "b"}')
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfprompt\n\na\n\nb\n")
    assert places_of(str(tmp_path / "a.jsonl")) == [f"{tmp_path}/a.jsonl:2", f"{tmp_path}/a.jsonl:5"]
    assert places_of(str(tmp_path / "a.csv")) == [f"{tmp_path}/a.csv:3", f"{tmp_path}/a.csv:5"]
    assert rows_of(str(tmp_path / "a.csv")) == [{"prompt": "a"}, {"prompt": "b"}]


def test_a_csv_field_may_be_longer_than_the_readers_default_limit(tmp_path):
    csv.field_size_limit(131_072)
    write_csv(tmp_path / "long.csv", [{"prompt": "x" * 200_000}])
    assert rows_of(str(tmp_path / "long.csv")) == [{"prompt": "x" * 200_000}]
    assert csv.field_size_limit() == 131_072


def test_a_split_is_chosen_by_name_and_an_unknown_one_named(sources):
    assert rows_of(sources["splits"], split="test") == ROWS[:1]
    with pytest.raises(InputError, match=r"unknown split of .*splits 'tset' \(did you mean 'test'\?"):
        load_rows(sources["splits"], split="tset")


def test_a_split_or_subset_of_what_has_none_is_an_error(sources):
    with pytest.raises(InputError, match=r"split='test' is set, but .*a\.jsonl \(a plain file\) has none"):
        load_rows(sources["a.jsonl"], split="test")
    with pytest.raises(InputError, match=r"subset='main' is set, but a list of rows has none"):
        load_rows(ROWS, subset="main")
    with pytest.raises(InputError, match=r"split='train' is set, but .*saved has none"):
        load_rows(sources["saved"], split="train")
    with pytest.raises(InputError, match=r"subset='main' is set, but .*splits \(a saved data set\) has none"):
        load_rows(sources["splits"], subset="main")


def test_a_missing_file_is_named_with_the_nearest_one(sources):
    folder = Path(sources["a.jsonl"]).parent
    with pytest.raises(InputError, match=rf"no such file: {folder}/b\.jsonl \(did you mean '{folder}/a\.jsonl'"):
        load_rows(str(folder / "b.jsonl"))
    with pytest.raises(InputError, match=rf"no such file: {folder}/no/b\.jsonl \(there is no folder {folder}/no"):
        load_rows(str(folder / "no" / "b.jsonl"))


@pytest.mark.parametrize(("given", "where"), [("no.jsonl", "no.jsonl"), ("./no", "no"), ("x/../no.csv", "x/../no.csv")])
def test_a_missing_path_is_named_with_where_it_was_looked_for(given, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for find in (missing_data, missing_model):
        refused = find(given)
        assert refused is not None
        assert (refused.hint or "").endswith(f"looked for {tmp_path}/{where}")


def test_a_file_of_an_unknown_format_is_named_with_the_known_ones(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"a\.txt: unknown format '\.txt' \(known: \.jsonl"):
        load_rows(str(tmp_path / "a.txt"))


def test_a_name_that_is_neither_file_nor_data_set_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="data 'nobody/nothing' are neither a file here nor a data set"):
        load_rows("nobody/nothing")


def test_an_empty_folder_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"cannot load data '.*empty' \(folder\)"):
        load_rows(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("module", "name", "extra"), [("datasets", "saved", "datasets"), ("pyarrow.parquet", "a.parquet", "parquet")]
)
def test_a_missing_package_says_how_to_install_it(sources, monkeypatch, module, name, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"{name}.*pip install '\.\[{extra}\]'"):
        load_rows(sources[name])


@pytest.mark.parametrize("name", ["e.jsonl", "e.csv", "e.json"])
def test_empty_data_are_an_error(tmp_path, name):
    content = {"e.jsonl": "\n\n", "e.csv": "prompt,answer\n", "e.json": "[]"}[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name}: no rows"):
        load_rows(str(tmp_path / name))
    with pytest.raises(InputError, match="data: no rows"):
        load_rows([])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a"}', r"a\.json: a \.json file must hold a list of rows"),
        ('[{"prompt": "a"},\n{"prompt": }]', r"a\.json:2: invalid JSON: Expecting value"),
        ('[{"prompt": "a"}\n{"prompt": "b"}]', r"a\.json:2: invalid JSON: expecting ',' or '\]'"),
        ('[{"prompt": "a"},\n]', r"a\.json:2: invalid JSON: a comma before the end"),
        ('[{"prompt": "a"}', r"a\.json:1: invalid JSON"),
        ('[{"prompt": "a"}] x', r"a\.json: text after the end of the list"),
        ("[" * 100_000, r"a\.json:1: invalid JSON"),
        (b'[\n{"prompt": "\xff"}]', r"a\.json:2: not UTF-8"),
    ],
)
def test_a_malformed_json_list_is_named_by_line(tmp_path, content, message):
    (tmp_path / "a.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        load_rows(str(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("prompt,prompt", "column 'prompt' stands there twice"),
        ("prompt,", "a column has no name"),
        ('"a"b', "malformed"),
    ],
)
def test_a_csv_header_that_cannot_name_columns_is_an_error(tmp_path, header, message):
    (tmp_path / "a.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(InputError, match=rf"a\.csv:1: {message}"):
        load_rows(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz", "a.parquet"])
def test_a_damaged_file_is_named(sources, name):
    content = Path(sources[name]).read_bytes()
    Path(sources[name]).write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=rf"cannot read .*{name}"):
        load_rows(sources[name])
    Path(sources[name]).write_bytes(b"not what the name says")
    with pytest.raises(InputError, match=rf"cannot read .*{name}"):
        load_rows(sources[name])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_named(sources):
    os.chmod(sources["a.jsonl"], 0)
    with pytest.raises(InputError, match=r"cannot read .*a\.jsonl: Permission denied"):
        load_rows(sources["a.jsonl"])
