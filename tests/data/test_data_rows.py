"""What bad rows get, and how columns are named, mapped and checked."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from reinlm.config import build
from reinlm.data import DataConfig, load_rows
from reinlm.data.columns import text_column
from reinlm.data.rows import BadRow, Row, counted
from reinlm.errors import InputError

GOOD = {"prompt": "good"}


def write(tmp_path, *lines: object) -> str:
    path = tmp_path / "a.jsonl"
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return str(path)


def chat(*messages: object) -> dict[str, object]:
    return {"prompt": list(messages)}


USER = {"role": "user", "content": "hi"}
BAD_ROWS: list[tuple[Any, str]] = [
    (b'{"prompt": ', "invalid JSON: Expecting value"),
    (b'{"prompt": "' + b"\x00" + b'"}', "invalid JSON"),
    (b'{"prompt": "\xff\xfe"}', "not UTF-8 at byte 13 of the line"),
    (b"[" * 100_000, "invalid JSON"),
    (["a"], "not an object but a list"),
    ("a", "not an object but text"),
    (None, "not an object but null"),
    ({"question": "a"}, r"column 'prompt' is missing \(columns: question\)"),
    ({"prompt": None}, "column 'prompt' is null"),
    ({"prompt": ""}, "column 'prompt' is empty"),
    ({"prompt": " \n"}, "column 'prompt' is empty"),
    ({"prompt": 3}, "column 'prompt' is neither text nor chat messages but int"),
    ({"prompt": "a\0b"}, "column 'prompt' holds a NUL character at position 1"),
    (b'{"prompt": "ab\\ud800"}', "column 'prompt' holds a lone surrogate at position 2"),
    ({"prompt": []}, "column 'prompt' is empty"),
    (chat("hi"), "column 'prompt' holds what is not a message, message 1: str"),
    (chat(USER, {"role": "asistant", "content": "x"}), "column 'prompt' has an unknown role, message 2: 'asistant'"),
    (chat({"content": "x"}), "column 'prompt' has an unknown role, message 1: None"),
    (chat({"role": "user"}), "column 'prompt' has a message without content, message 1"),
    (chat({"role": "user", "content": None}), "column 'prompt' has a message without content, message 1"),
    (chat({"role": "user", "content": " "}), "column 'prompt' has a message with empty content, message 1"),
    (chat({"role": "user", "content": [1]}), "column 'prompt' has content that is not text, message 1: list"),
    (chat({"role": "user", "content": "\0"}), "column 'prompt' holds a NUL character"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_ROWS)
def test_a_bad_row_stops_and_is_named_by_file_line_and_column(tmp_path, bad, message):
    with pytest.raises(InputError, match=rf"^{tmp_path}/a\.jsonl:2: {message}") as caught:
        load_rows(write(tmp_path, GOOD, bad, GOOD), kind="prompt")
    assert "\n" not in caught.value.message
    assert "data.on_bad_row=skip" in str(caught.value.hint)


@pytest.mark.parametrize(("bad", "message"), BAD_ROWS)
def test_a_bad_row_can_be_skipped_and_is_counted_by_reason(tmp_path, bad, message):
    loaded = load_rows(write(tmp_path, GOOD, bad, GOOD, bad), kind="prompt", on_bad_row="skip")
    assert [row.where for row in loaded] == [f"{tmp_path}/a.jsonl:1", f"{tmp_path}/a.jsonl:3"]
    ((reason, count),) = loaded.skipped.items()
    assert count == 2
    assert reason.split("'")[0].strip() in message


def test_reasons_are_counted_apart(tmp_path):
    path = write(tmp_path, GOOD, {"prompt": ""}, b"{", {"prompt": ""}, [1])
    assert load_rows(path, kind="prompt", on_bad_row="skip").skipped == {
        "invalid JSON": 1,
        "not an object": 1,
        "column 'prompt' is empty": 2,
    }


def test_when_every_row_is_skipped_that_is_an_error_with_the_counts(tmp_path):
    path = write(tmp_path, b"{", {"prompt": ""}, {"prompt": ""})
    message = r"a\.jsonl: no row is usable: 2 × column 'prompt' is empty, 1 × invalid JSON"
    with pytest.raises(InputError, match=message):
        load_rows(path, kind="prompt", on_bad_row="skip")
    with pytest.raises(InputError, match=r"a\.jsonl: no row is usable: 1 × invalid JSON"):
        load_rows(write(tmp_path, b"{"), kind="prompt", on_bad_row="skip")


CSV_HEAD = 'prompt,answer\n"two\nlines",1\n\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"a,b,c", "too many fields: 3 for 2 columns"),
        (b"a", "too few fields: 1 for 2 columns"),
        (b'"a"x,b', "malformed CSV"),
        (b'"a,b', "malformed CSV: unexpected end of data"),
        (b"\xff,b", "column 'prompt' is not UTF-8"),
        (b",b", "column 'prompt' is empty"),
        (b"a\x00,b", "column 'prompt' holds a NUL character at position 1"),
    ],
)
def test_a_bad_csv_row_is_named_by_its_own_line_after_fields_with_line_breaks(tmp_path, line, message):
    path = tmp_path / "a.csv"
    path.write_bytes(CSV_HEAD.encode() + line + b"\n")
    with pytest.raises(InputError, match=rf"a\.csv:5: {message}"):
        load_rows(str(path), kind="prompt")
    path.write_bytes(CSV_HEAD.encode() + line + b"\n")
    loaded = load_rows(str(path), kind="prompt", on_bad_row="skip")
    assert [row.columns["prompt"] for row in loaded] == ["two\nlines"]
    assert sum(loaded.skipped.values()) == 1


def test_a_bad_csv_row_does_not_take_the_next_one_with_it(tmp_path):
    (tmp_path / "a.csv").write_text('prompt,answer\n"a"x,b\nc,d\n')
    loaded = load_rows(str(tmp_path / "a.csv"), kind="prompt", on_bad_row="skip")
    assert [row.where for row in loaded] == [f"{tmp_path}/a.csv:3"]


def test_bad_rows_from_python_are_named_by_index():
    with pytest.raises(InputError, match=r"^data\[1\]: not an object but a number"):
        load_rows([GOOD, 7])
    with pytest.raises(InputError, match=r"^data\[1\]: a column name is not text"):
        load_rows([GOOD, {1: "a"}])


def test_limit_reads_only_the_first_rows(tmp_path):
    path = write(tmp_path, GOOD, GOOD, b"{")
    assert len(load_rows(path, limit=2)) == 2
    assert load_rows(path, limit=3, on_bad_row="skip").skipped == {"invalid JSON": 1}


def test_columns_map_your_names_to_those_used_here_and_keep_your_own():
    rows = [{"problem": "2+2", "solution": "4", "level": 3}]
    (row,) = load_rows(rows, columns={"prompt": "problem", "completion": "solution"}, kind="example")
    assert row.columns == {"prompt": "2+2", "completion": "4", **rows[0]}


def test_a_mapping_may_be_a_template_over_columns():
    rows = [{"instruction": "Add", "input": 5, "output": "x"}]
    (row,) = load_rows(rows, columns={"prompt": "{instruction}\n{{{input}}}", "completion": "output"}, kind="example")
    assert row.columns["prompt"] == "Add\n{5}"
    assert row.columns["completion"] == "x"


def test_a_template_names_a_row_without_its_column():
    rows = [{"a": "1", "b": "2"}, {"a": "1"}, {"a": [1], "b": "2"}]
    with pytest.raises(InputError, match=r"data\[1\]: column 'b' is missing \(columns: a\)"):
        load_rows(rows, columns={"prompt": "{a}{b}"})
    loaded = load_rows(rows, columns={"prompt": "{a}{b}"}, on_bad_row="skip")
    assert loaded.skipped == {"column 'b' is missing": 1, "column 'a' is not text": 1}


@pytest.mark.parametrize("template", ["{", "{a!r}", "{a:3}", "{}"])
def test_a_template_that_is_more_than_columns_in_braces_is_refused(template):
    with pytest.raises(InputError, match=r"columns\.prompt: cannot read"):
        load_rows([{"a": "1"}], columns={"prompt": template})


@pytest.mark.parametrize("value", ["problm", "{problm}"])
def test_a_mapping_to_no_column_names_column_file_and_columns(tmp_path, value):
    path = write(tmp_path, {"problem": "a", "solution": "b"})
    message = r"columns\.prompt names column 'problm', which .*a\.jsonl does not have"
    with pytest.raises(InputError, match=rf"{message} \(did you mean 'problem'\? columns: problem, solution\)"):
        load_rows(path, columns={"prompt": value}, on_bad_row="skip")


def test_a_row_without_a_mapped_column_is_bad():
    rows = [{"problem": "a"}, {"other": "b"}]
    with pytest.raises(InputError, match=r"data\[1\]: column 'problem' is missing \(columns: other\)"):
        load_rows(rows, columns={"prompt": "problem"})


def test_known_layouts_map_themselves():
    gsm8k = [{"question": "q", "answer": "a"}]
    assert load_rows(gsm8k, kind="example")[0].columns == {"prompt": "q", "completion": "a", **gsm8k[0]}
    assert load_rows(gsm8k, kind="prompt")[0].columns == {"prompt": "q", **gsm8k[0]}
    assert load_rows(gsm8k)[0].columns == gsm8k[0]
    math = [{"problem": "p", "solution": "s", "answer": "a"}]
    assert load_rows(math, kind="example")[0].columns["completion"] == "s"
    own = load_rows(
        [{"question": "q", "answer": "a", "thoughts": "t"}], columns={"completion": "thoughts"}, kind="example"
    )
    assert own[0].columns["prompt"] == "q"
    assert own[0].columns["completion"] == "t"


def test_a_layout_never_overrides_columns_that_are_there():
    rows = [{"prompt": "p", "question": "q", "answer": "a", "completion": "c"}]
    assert load_rows(rows, kind="example")[0].columns == rows[0]


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("prompt", [{"q": "a"}], r"data has no column 'prompt' \(columns: q\) \(needs prompt or messages"),
        ("example", [{"prompt": "a"}], r"data has no column 'completion' .*prompt\+completion or messages or text"),
        ("pair", [{"prompt": "a", "chosen": "b"}], r"data has no column 'rejected'.*prompt\+chosen\+rejected"),
    ],
)
def test_data_without_the_columns_they_need_name_the_column_and_those_there_are(kind, rows, message):
    with pytest.raises(InputError, match=message):
        load_rows(rows, kind=kind)


def test_preference_pairs_are_recognised_and_checked():
    pair = {"prompt": "p", "chosen": "good", "rejected": "bad"}
    assert load_rows([pair], kind="pair")[0].columns == pair
    with pytest.raises(InputError, match=r"data\[0\]: column 'rejected' is empty"):
        load_rows([{**pair, "rejected": ""}], kind="pair")


def test_texts_and_messages_are_checked_by_their_column():
    with pytest.raises(InputError, match=r"data\[0\]: column 'text' is not text but int"):
        load_rows([{"text": 1}], kind="example")
    with pytest.raises(InputError, match=r"data\[0\]: column 'messages' is not a list of chat messages but str"):
        load_rows([{"messages": "hi"}], kind="example")
    with pytest.raises(InputError, match=r"data\[1\]: column 'messages' is missing"):
        load_rows([{"messages": [USER]}, {"x": 1}], kind="example")


def test_the_hint_of_an_unknown_role_names_the_nearest():
    with pytest.raises(InputError) as caught:
        load_rows([chat({"role": "asistant", "content": "x"})], kind="prompt")
    assert "did you mean 'assistant'? roles: system, developer, user, assistant, tool" in str(caught.value.hint)


def test_tool_output_may_be_empty_and_a_tool_call_without_content():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    rows = [{"messages": [USER, call, {"role": "tool", "content": ""}]}]
    assert len(load_rows(rows, kind="prompt")) == 1


def test_a_bare_path_or_rows_stand_for_the_whole_configuration(tmp_path):
    assert build(DataConfig, {"path": "a.jsonl"}) == DataConfig.model_validate("a.jsonl")
    assert DataConfig.model_validate([GOOD]).path == [GOOD]
    assert DataConfig(path=tmp_path).path == str(tmp_path)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"path": " "}, "path: must name a file or a data set"),
        ({"path": 5}, "an object of type int is no data"),
        ({"path": "a", "colums": {}}, "unknown key 'colums' .*did you mean 'columns'"),
        ({"path": "a", "chat": "never", "system_prompt": "x"}, "system_prompt has no effect with chat='never'"),
        ({"path": "a", "chat_template_kwargs": {"tokenize": True}}, "tokenize cannot be set here"),
        ({"path": "a", "limit": 0}, "limit"),
        ({"path": "a", "on_bad_row": "ignore"}, r"on_bad_row: .*'stop' or 'skip' \(given: 'ignore'\)"),
    ],
)
def test_a_wrong_configuration_names_its_key(tree, message):
    with pytest.raises(InputError, match=message):
        build(DataConfig, tree)


def test_importing_data_loads_no_heavy_library():
    heavy = "torch", "transformers", "datasets", "pyarrow", "pandas", "jinja2"
    code = f"import sys, reinlm.data, reinlm.data.arithmetic; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_column_of_null_is_not_called_missing():
    rows = [Row("data[0]", {"prompt": None}), Row("data[1]", {"other": 1})]
    with pytest.raises(BadRow, match=r"data\[0\]: column 'prompt' is null"):
        text_column(rows[0], "prompt")
    with pytest.raises(BadRow, match=r"data\[1\]: column 'prompt' is missing \(columns: other\)"):
        text_column(rows[1], "prompt")


def test_counts_are_words_of_one_or_several():
    assert [counted(count, "pairs") for count in (0, 1, 2)] == ["0 pairs", "1 pair", "2 pairs"]
