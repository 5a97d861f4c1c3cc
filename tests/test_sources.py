"""Comments that say where values came from: written into YAML, they leave its values alone and are read back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reinlm import config
from reinlm.config import dump_yaml, parse_yaml
from reinlm.errors import InputError
from reinlm.sources import annotate, leaves, read_sources

TRICKY: dict[str, Any] = {
    "plain": "a text of several words that is long enough to be folded over more than one line of the file " * 2,
    "block": "two\nlines\n",
    "unicode": "ε → 0.2, 奖励, 😀",
    "half of a pair": "\ud800",
    "quoted": "1e-6",
    "hash": "a # b",
    "list": [{"name": "math", "weight": 0.5}, "x"],
    "flow": [],
    "nested": {"empty": {}, "null": None, "number": 3e-4, "block": "ends\n\n  indented\n"},
}


def test_comments_are_read_back_and_values_stay() -> None:
    comments = {path: f"from {'.'.join(path)}" for path, _ in leaves(TRICKY)}
    text = annotate(dump_yaml(TRICKY), comments)
    assert parse_yaml(text, "annotated") == TRICKY
    assert read_sources(text) == comments


WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40) | st.sampled_from(
    ["1e-6", "no", "~", "- a"]
)
TREES = st.recursive(
    WORDS | st.integers(-9, 9) | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.from_regex("[a-z]{1,6}", fullmatch=True), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex("[a-z]{1,6}", fullmatch=True), TREES, min_size=1, max_size=4))
def test_both_loaders_read_what_is_written(tree: dict[str, Any]) -> None:
    text = dump_yaml(tree)
    assert parse_yaml(text, "written") == tree
    assert yaml.load(text, Loader=config._Loader) == tree


@pytest.mark.parametrize(
    ("text", "message"), [("a: [1\nb: 2", "r:2: not valid YAML"), ("a: b: c", "r:1: not valid YAML: mapping")]
)
def test_what_is_malformed_is_named_by_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "r")
    assert caught.value.message.startswith(message)
