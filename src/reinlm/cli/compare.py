"""`reinlm compare`: runs side by side, or a grid of recipes, settings and seeds to run first."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reinlm
from reinlm.cli.app import command
from reinlm.cli.options import AsJson, Debug, Quiet

if TYPE_CHECKING:
    from reinlm.insight.compare import Comparison


@command()
def compare(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN RUN... | RECIPE... [KEY=VALUE]...", help="Run folders; or YAML recipes to run, with overrides."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Of recipes: runs of each, from its seed on [default: 1].")] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(help="Of recipes: KEY=VALUE,VALUE,... such as algorithm=grpo,dapo; may be repeated."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="A logged metric; may be repeated [default: evaluations and reward].")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The page [default: compare.html]; of recipes the folder [default: runs/compare-TIME].",
        ),
    ] = None,
    verb: Annotated[str, typer.Option(help="Of recipes: rl, sft or dpo.")] = "rl",
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare runs or recipes: means over seeds, and curves.

    Recipes are run first, each with every combination of --grid. Means have intervals; a page has the curves, overlaid.

    \b
    reinlm compare runs/a runs/b
    reinlm compare grpo.yaml dapo.yaml --seeds 3 --output runs/cmp rollout.group_size=8

    Stopped and started again with the same words, it keeps finished runs and resumes the one that was interrupted.
    """
    words = arguments or []
    changes = [word for word in words if "=" in word and not Path(word).exists()]
    given = [word for word in words if word not in changes]
    recipes = any(Path(word).suffix in (".yaml", ".yml") for word in given)
    result = reinlm.compare(
        *given,
        seeds=seeds,
        grid=grid or (),
        metrics=metric or (),
        output=output or (None if recipes else Path("compare.html")),
        verb=verb,
        changes=changes,
        quiet=quiet or as_json,
        command=shlex.join(["reinlm", *sys.argv[1:]]),
    )
    if as_json:
        typer.echo(json.dumps({"rows": result.rows, "page": str(result.page), "failed": result.failed}))
    else:
        print_comparison(result)


def print_comparison(result: Comparison) -> None:
    """The table of groups, and where the page is."""
    from rich.console import Console
    from rich.table import Table

    from reinlm.insight.page import interval_text, is_fraction, number_text, percent

    console = Console()
    several = any(row["runs"] > 1 for row in result.rows)
    for metric in result.metrics:
        show: Any = percent if is_fraction(metric) else number_text
        table = Table("group", "seeds", "mean", *(["95 % interval"] if several else []), title=result.means(metric))
        for row in result.rows:
            if row["metric"] == metric:
                around = interval_text(row, show)
                cells = [row["group"], str(row["runs"]), show(row["mean"])]
                table.add_row(*cells, *([around] if several else []))
        console.print(table, markup=False)
    if result.settings:
        table = Table("setting", "group", "value", title="settings that differ")
        for key, values in result.settings.items():
            for number, name in enumerate(result.groups):
                table.add_row("" if number else key, name, values[name], end_section=number == len(result.groups) - 1)
        for column in table.columns:
            column.overflow = "fold"
        console.print(table, markup=False)
    for name, count in result.updates.items():
        console.print(f"updates of a batch, {name}: {count or 'not known'}", markup=False, highlight=False)
    for text in (*result.identical, *result.notes):
        console.print(f"note    {text}", markup=False, highlight=False, soft_wrap=True)
    if several:
        console.print("interval: Student's, of the mean over seeds", style="dim", highlight=False)
    for name, why in result.failed.items():
        console.print(f"failed  {name}: {why}", markup=False, highlight=False, soft_wrap=True)
    if result.page is not None:
        console.print(f"page    {result.page}", markup=False, highlight=False, soft_wrap=True)
