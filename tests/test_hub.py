"""What is meant as a path and what as a name on the Hub, and what is said of a path that is not there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from reinlm.hub import _within, looks_like_path, missing_data, missing_model, nearest_path


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models" / "small").mkdir(parents=True)
    (tmp_path / "train.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("gpt2", False),
        ("openai/gsm8k", False),
        ("./gpt2", True),
        ("~/model", True),
        ("models/large", True),  # models/ is a folder here
        ("runs/a", True),
        ("a/b/c", True),
        ("train.JSONL", True),
        ("owner/", True),
        (r"models\small", True),
        ("two words", True),
    ],
)
def test_a_text_is_meant_as_a_path_or_may_be_a_name(text: str, path: bool) -> None:
    assert looks_like_path(text) is path


@pytest.mark.parametrize(
    ("found", "message", "hint"),
    [
        (lambda: missing_model("models/smal"), "no such model folder: models/smal", "did you mean 'models/small'?"),
        (lambda: missing_model("train.jsonl"), "train.jsonl is a file, not a model folder", "save_pretrained"),
        (lambda: missing_data("trains.jsonl"), "no such file: trains.jsonl", "did you mean 'train.jsonl'?"),
        (lambda: missing_data("data/train.jsonl"), "no such file: data/train.jsonl", "there is no folder data either"),
    ],
)
def test_a_path_that_is_not_there_is_named_with_the_nearest(found, message: str, hint: str) -> None:
    error = found()
    assert error.message == message
    assert hint in error.hint


def test_what_is_there_and_what_may_be_on_the_hub_is_no_error() -> None:
    assert [missing_model("models/small"), missing_model("gpt2"), missing_data("train.jsonl"), missing_data("o/n")] == [
        None
    ] * 4
    assert nearest_path("nowhere/model") is None


def test_the_hub_is_asked_for_a_limited_time() -> None:
    def fail() -> None:
        raise OSError("no route")

    before = time.monotonic()
    assert _within(0.05, lambda: time.sleep(5)) == "no answer within 0.05 s"
    assert time.monotonic() - before < 2
    assert "no route" in str(_within(5, fail))
    assert _within(5, lambda: None) is None
