"""How readers find a page: README, the overview and the navigation name the same pages; the layout is the one that is checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def _toml(name: str) -> Any:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def _named(entries: Any) -> Iterator[tuple[str, str]]:
    """Title and file of every page of the navigation."""
    for entry in entries:
        for title, inside in entry.items():
            yield from [(title, inside)] if isinstance(inside, str) else _named(inside)


def _table(page: Path) -> str:
    found = re.search(r"\| you want to \|.*?\n\n", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[0]


def test_a_page_has_the_title_that_the_navigation_gives_it() -> None:
    titles = {page.name: page.read_text(encoding="utf-8").splitlines()[0] for page in DOCS.glob("*.md")}
    assert titles == {file: f"# {title}" for title, file in _named(_toml("zensical.toml")["project"]["nav"])}


def test_the_overview_names_every_page_and_readme_has_its_table() -> None:
    table = _table(DOCS / "index.md")
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\((\w+\.md)\)", table)) == pages
    assert _table(ROOT / "README.md").replace("](docs/", "](") == table


def test_the_layout_of_the_architecture_is_the_one_that_imports_are_checked_against() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"## Layout and imports\n.*?```text\n(.*?)```", text, re.DOTALL)
    assert block
    lines = [
        found[0].split()
        for line in block[1].splitlines()
        if (found := re.match(r"(?:\w+(?:/|\.py)(?:\s+|$))+", line))  # a line without names goes on with the one above
    ]
    (contract,) = (found for found in _toml("pyproject.toml")["tool"]["importlinter"]["contracts"] if "layers" in found)
    layers = [layer.replace("reinlm.", "").split(" | ") for layer in contract["layers"]]
    assert [[name.removesuffix("/").removesuffix(".py") for name in line] for line in lines] == [
        *layers,
        ["objectives"],
    ]
    assert not [name for line in lines for name in line if not (ROOT / "src/reinlm" / name).exists()]
