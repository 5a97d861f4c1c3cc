"""The docs site: it builds without the network and without warnings, holds every page, and asks nobody for anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import reinlm

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    environment = os.environ | {"PYTHONPATH": str(folder / "docs")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def _listed(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    values = entries.values() if isinstance(entries, dict) else entries
    return [page for value in values for page in _listed(value)]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = _listed(tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"])
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    page = (site / "python" / "index.html").read_text(encoding="utf-8")
    assert {name for name in reinlm.__all__ if not name.startswith("_")} <= set(re.findall(r'id="reinlm\.(\w+)"', page))


def test_formulas_are_shown_without_a_script(site: Path) -> None:
    page = (site / "algorithms" / "index.html").read_text(encoding="utf-8")
    assert page.count("<math") == (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8").count("```math")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]*?\ssrc=\"([^\"]+)\"|<link[^>]*?\shref=\"([^\"]+)\"")
    for page in site.rglob("*.html"):
        for found in loaded.finditer(page.read_text(encoding="utf-8")):
            assert not urlparse(found[1] or found[2]).netloc, f"{page.relative_to(site)} loads {found[1] or found[2]}"
