"""The typer application, and the handling of Ctrl-C that all commands share."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Annotated, Any

import typer

import reinlm

app = typer.Typer(
    name="reinlm",
    help="Improve language models by reinforcement learning, from a laptop to a cluster.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Stopped(Exception):  # noqa: N818 - Ctrl-C is no error
    """Ctrl-C or SIGTERM, as an exception that typer does not turn into a bare exit code."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.code = 128 + signum


def command(name: str | None = None, *, hidden: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command of its name, or of `name`; Ctrl-C in it is raised as `Stopped`."""

    def register(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def call(*arguments: Any, **options: Any) -> None:
            try:
                verb(*arguments, **options)
            except KeyboardInterrupt as error:
                raise Stopped(str(error) or "interrupted", getattr(error, "signum", signal.SIGINT)) from error

        return app.command(name, hidden=hidden)(call)

    return register


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(reinlm.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
