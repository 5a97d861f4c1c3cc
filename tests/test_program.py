"""How this program is called from a shell, and how what it lacks is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from reinlm.program import install

ROOT = Path(__file__).parents[1]


def test_hints_install_from_a_clone_with_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")}
    named = {extra for text in sources.values() for extra in re.findall(r"\binstall\(['\"](\w+)['\"]\)", text)}
    assert {"lora", "datasets", "parquet", "renderers", "video"} <= named <= set(project["optional-dependencies"])
    assert install("lora") == "in the clone of reinlm: pip install '.[lora]'"
    assert not [file for file, text in sources.items() if "reinlm[" in text]  # the package is in no index
