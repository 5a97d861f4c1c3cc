"""The recipes on the page about data are ones that the library takes, and the page names every option."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from reinlm.config import build
from reinlm.data import DataConfig

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_recipes_are_taken_with_their_values() -> None:
    rows, several, chats = (
        build(DataConfig, yaml.safe_load(block)["data"]) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    )
    assert (rows.columns, rows.limit, rows.on_bad_row) == (
        {"prompt": "problem", "completion": "solution"},
        1000,
        "skip",
    )
    assert (several.weights, several.shuffle, several.sort_by) == ([1, 3], True, "level")
    assert (chats.chat, chats.renderer, chats.chat_template_kwargs) == (
        "always",
        "template",
        {"enable_thinking": False},
    )


def test_every_option_is_on_the_page() -> None:
    assert not {name for name in DataConfig.model_fields if not re.search(rf"\b{name}:", PAGE)}
