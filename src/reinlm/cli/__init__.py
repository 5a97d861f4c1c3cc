"""The command line: parse, call, print. Every heavy import waits until a verb runs."""

from __future__ import annotations

import contextlib
import os
import sys

import typer

from reinlm.cli import (  # noqa: F401  they register their commands
    bench,
    commands,
    compare,
    completion,
    look_up,
    vllm_serve,
)
from reinlm.cli.app import Stopped, app
from reinlm.cli.messages import UsageError, print_error, usage_message
from reinlm.cli.words import check_words
from reinlm.errors import ReinlmError
from reinlm.program import command_line

__all__ = ["app", "main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Exit codes: 0 done; 2 something to correct (one line on standard error), also where every update was skipped; 130 after
    Ctrl-C, 143 after SIGTERM, with the steps made saved.
    """
    words = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in words
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if "OMP_WAIT_POLICY" not in os.environ:  # threads that wait for one another give their core away soon
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    command = typer.main.get_command(app)
    try:
        check_words(words, command)
        code = command.main(args=list(words), prog_name=command_line(), standalone_mode=False)
        _leave(code if isinstance(code, int) else 0)
    except typer.Exit as error:
        _leave(error.exit_code)
    except UsageError as error:
        print_error(*usage_message(error, words, command))
        _leave(2)
    except ReinlmError as error:
        if debug:
            raise
        print_error(error.message, error.hint)
        _leave(2)
    except Stopped as error:
        if debug:
            raise
        print_error(str(error), None, label="")
        _leave(error.code)
    except BrokenPipeError:  # the reader of a pipe, such as head, has enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the interpreter flushes it as it ends
        _leave(0)


def _leave(code: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    sys.exit(code)
