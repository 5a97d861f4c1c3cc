"""How this program is called from a shell: commands that messages print run as they stand, from the working directory."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

NAME = "reinlm"


def command_line(*words: str | os.PathLike[str]) -> str:
    """The command `reinlm WORDS…` as it can be typed in the working directory, quoted for a shell.

    Example:
        >>> command_line("rl", "--resume", "--output", "runs/my run")  # doctest: +SKIP
        ".venv/bin/reinlm rl --resume --output 'runs/my run'"
    """
    return shlex.join([*program(), *(os.fspath(word) for word in words)])


def install(extra: str) -> str:
    """The hint that says how a package which an option needs is installed: with the extra of reinlm that has it.

    Example:
        >>> install("lora")
        "in the clone of reinlm: pip install '.[lora]'"
    """
    return f"in the clone of {NAME}: pip install '.[{extra}]'"


def as_typed(text: str) -> str:
    """`text` with its commands as they can be typed here: those that begin a line, and those in backticks.

    Example:
        >>> as_typed("`reinlm keys WORD` explains them")  # doctest: +SKIP
        '`.venv/bin/reinlm keys WORD` explains them'
    """
    return re.sub(rf"(?m)(^ *|`){NAME}(?= )", rf"\g<1>{command_line()}", text)


def program() -> list[str]:
    """The words that start this program: `reinlm` where the shell finds this installation under that name, else the path
    of its script (relative inside the working directory), else `PYTHON -m reinlm.cli`.
    """
    python = Path(sys.executable)
    called = Path(sys.argv[0]) if sys.argv and Path(sys.argv[0]).name == NAME else python.parent / NAME
    script = shutil.which(str(called.absolute()))
    if script is None:
        return [_typed(python), "-m", "reinlm.cli"]
    return [_typed(Path(script))]


def _typed(file: Path) -> str:
    """A file's name where the shell finds this very file under it, else its path."""
    found = shutil.which(file.name)
    if found is not None and os.path.samefile(found, file):
        return file.name
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)
