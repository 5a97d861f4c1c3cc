"""The command line: parse, call, print. Every heavy import waits until a verb runs."""

from __future__ import annotations

import os
import sys

import typer

from reinlm.cli import commands, compare, look_up  # noqa: F401  they register their commands
from reinlm.cli.app import Stopped, app
from reinlm.cli.messages import UsageError, complain, explain
from reinlm.errors import ReinlmError

__all__ = ["app", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Exit codes: 0 done; 2 something to correct (one line on standard error), also where every update was skipped; 130 after
    Ctrl-C, 143 after SIGTERM, with the steps made saved.
    """
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        code = app(args=words, standalone_mode=False)
        _leave(code if isinstance(code, int) else 0)
    except typer.Exit as error:
        _leave(error.exit_code)
    except UsageError as error:
        complain(*explain(error))
        _leave(2)
    except ReinlmError as error:
        if debug:
            raise
        complain(error.message, error.hint)
        _leave(2)
    except Stopped as error:
        if debug:
            raise
        complain(str(error), None, label="")
        _leave(error.code)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
