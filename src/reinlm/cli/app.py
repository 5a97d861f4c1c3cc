"""The typer application, and the handling of Ctrl-C that all commands share."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import reinlm
from reinlm.program import as_typed

ORDER = (
    "quickstart", "create-model", "sft", "reward", "dpo", "rl", "rft", "eval", "generate", "compare", "report",
    "bench", "vllm-serve", "classical", "algorithms", "keys", "metrics", "completion",
)  # fmt: skip
"""The commands in the order in which one first needs them."""


class Verbs(TyperGroup):
    """The commands, in the order of `ORDER`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    name="reinlm",
    cls=Verbs,
    help="Improve language models by reinforcement learning, on a laptop with two cores or on a GPU.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class VerbCommand(TyperCommand):
    """A command whose help ends with the keys that it takes, by section and with their defaults.

    The commands in its help run as they stand.
    """

    def get_help(self, ctx: Any) -> str:
        return as_typed(super().get_help(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from reinlm.keys import VERBS, grouped

        if self.name not in VERBS:
            return
        if self.name == "classical":
            with formatter.section("Settings of the algorithm, as KEY=VALUE"):
                formatter.write_text(
                    "`reinlm classical NAME --settings` shows those of one with their values, `reinlm keys "
                    "--verb classical` explains all."
                )
            return
        with formatter.section("Keys, as SECTION.KEY=VALUE (`reinlm keys WORD` explains them)"):
            rows = [
                (section or "(alone)", _in_short(self.name, section, keys))
                for section, keys in grouped(self.name).items()
            ]
            formatter.write_dl([row for row in rows if row[1]], col_max=16)


def _in_short(verb: str, section: str, keys: Iterable[Any]) -> str:
    """The keys directly in a section, each with its default where it is short."""
    shown = []
    for key in keys:
        name = key.key.removeprefix(f"{section}.")
        default = key.defaults[verb]
        if "." not in name:
            shown.append(name if len(default) > 12 or " " in default else f"{name}={default}")
    return ", ".join(dict.fromkeys(shown))


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

        return app.command(name, cls=VerbCommand, hidden=hidden)(call)

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


def one_thread() -> None:
    """Let torch compute with one thread, unless the environment says how many.

    Where another program wants a core, each of a step's many short operations waits for the slowest thread.
    """
    if not {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & os.environ.keys():
        import torch

        torch.set_num_threads(1)
