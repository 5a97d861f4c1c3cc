"""How this program is called from a shell, and how what it lacks is installed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from reinlm.program import as_typed, command_line, install

ROOT = Path(__file__).parents[1]


def script(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "reinlm"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("on_path", "started", "called"),
    [
        (True, True, "reinlm"),
        (False, True, "env/bin/reinlm"),  # relative to the working directory
        (False, False, None),
    ],
)
def test_the_program_is_called_as_the_shell_finds_it(
    on_path: bool, started: bool, called: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = script(tmp_path / "env" / "bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(installed if started else tmp_path / "other.py")])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "python"))
    monkeypatch.setenv("PATH", str(installed.parent) if on_path else "/nonexistent")
    words = shlex.split(command_line("rl", "--output", "runs/my run"))
    assert words[-3:] == ["rl", "--output", "runs/my run"]
    assert words[:-3] == ([called] if called else ["bare/python", "-m", "reinlm.cli"])


def test_another_program_of_the_same_name_on_the_path_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = script(tmp_path / "mine"), script(tmp_path / "other")
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.setattr(sys, "argv", [str(mine)])
    monkeypatch.setenv("PATH", str(other.parent))
    assert command_line() == str(mine)


def test_commands_in_a_text_are_replaced_and_the_name_in_prose_is_not() -> None:
    text = as_typed("reinlm has keys: `reinlm keys`, and\n  reinlm rl r.yaml\nof reinlm alone")
    assert text.splitlines()[1] == f"  {command_line('rl', 'r.yaml')}"
    assert f"`{command_line('keys')}`" in text
    assert text.endswith("of reinlm alone")


def test_what_is_printed_runs() -> None:
    done = subprocess.run(f"{command_line()} --version", shell=True, check=True, capture_output=True, text=True)
    assert done.stdout.strip()[0].isdigit()


def test_hints_install_from_a_clone_with_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")}
    named = {extra for text in sources.values() for extra in re.findall(r"\binstall\(['\"](\w+)['\"]\)", text)}
    assert {"lora", "datasets", "parquet", "renderers", "video"} <= named <= set(project["optional-dependencies"])
    assert install("lora") == "in the clone of reinlm: pip install '.[lora]'"
    assert not [file for file, text in sources.items() if "reinlm[" in text]  # the package is in no index
