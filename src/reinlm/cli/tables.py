"""What commands print on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reinlm.program import command_line

if TYPE_CHECKING:
    from reinlm.keys import Key
    from reinlm.loop import RunResult
    from reinlm.runs.declarations import Metric
    from reinlm.training.benchmark import Benchmark
    from reinlm.training.evaluation import Evaluation
    from reinlm.training.evaluation_table import Evaluations


WIDE = 130
"""Columns from which the table of algorithms has a column for each choice."""


def print_ladder(rows: list[dict[str, str]]) -> None:
    """All algorithms with their choices, in the names that a recipe takes; nothing is cut at any width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title="one update, five choices", box=box.SIMPLE_HEAD, row_styles=["", "dim"], padding=(0, 1, 0, 0))
    table.add_column("name", no_wrap=True)
    if console.width >= WIDE:
        columns = [name for name in rows[0] if name not in ("name", "source")]
        for column in (*columns, "source"):
            table.add_column(column, no_wrap=column == "source")
        for row in rows:
            table.add_row(row["name"], *(row[name] for name in columns), _year(row["source"]))
    else:
        table.add_column("advantage; ratio; gate; KL; aggregation")
        for row in rows:
            kl = "no KL" if row["kl"] == "none" else row["kl"]
            choices = [row["advantage"], row["ratio"], f"gate {row['gate']}", kl, row["aggregation"]]
            table.add_row(row["name"], "; ".join([*choices, *(["a critic"] if row["critic"] == "yes" else [])]))
    console.print(table)


def print_preferences(rows: list[dict[str, str]]) -> None:
    """All algorithms of dpo with their losses and values; nothing is cut at any width."""
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(
        title="dpo: losses of judged answers", box=box.SIMPLE_HEAD, row_styles=["", "dim"], padding=(0, 1, 0, 0)
    )
    table.add_column("name", no_wrap=True)
    table.add_column("loss; values")
    wide = console.width >= WIDE
    if wide:
        table.add_column("source", no_wrap=True)
    for row in rows:
        reference = "" if row["reference"] == "yes" else "; no reference"
        told = escape(f"{row['loss']}; {row['values']}; {row['data']}{reference}")
        table.add_row(row["name"], told, *([_year(row["source"])] if wide else []))
    console.print(table)
    console.print(f"more: {command_line('algorithms', 'NAME')}", markup=False, soft_wrap=True)


def _year(source: str) -> str:
    """The arXiv number of a paper, or its year."""
    import re

    found = re.search(r"\d{4}\.\d{5}|\b(?:19|20)\d{2}\b", source)
    return found[0] if found else source


def print_algorithm(item: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from reinlm.algorithms.ladder import COLUMNS, table
    from reinlm.config import dump_yaml

    console = Console(highlight=False)

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False)

    say(item["name"], "bold")
    say(item["description"])
    say(f"\n  {item['equation']}\n")
    (row,) = (row for row in table() if row["name"] == item["name"])
    choices = Table("choice", "here", f"in {item['parent']}" if item["parent"] else "", title="choices")
    before = {change["choice"]: change["from"] for change in item["differs"]}
    for kind in COLUMNS[1:-2]:
        choices.add_row(kind, row[kind], before.pop(kind, ""))
    for change in item["differs"]:
        if change["choice"] in before:
            choices.add_row(change["choice"], change["to"], change["from"])
    console.print(choices)
    say(f"needs   {', '.join(item['needs']) or 'nothing but rewards'}")
    say(f"updates {item['updates']}")
    say(f"use     {item['use']}")
    say(f"fails   {item['fails']}")
    say(f"source  {item['source']}")
    say("\nin a recipe, with every default", "bold")
    say(dump_yaml({"algorithm": item["choices"]}))


def print_preference(item: dict[str, Any]) -> None:
    """One algorithm of dpo."""
    from rich.console import Console
    from rich.table import Table

    from reinlm.config import dump_yaml

    console = Console(highlight=False)

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False)

    say(item["name"], "bold")
    say(item["description"])
    say(f"\n  {item['equation']}\n")
    if item["differs"]:
        table = Table("value", "here", f"in {item['parent']}", title="values")
        for change in item["differs"]:
            table.add_row(change["choice"], change["to"], change["from"])
        console.print(table)
    say(f"needs   {', '.join(item['needs'])}")
    say(f"use     {item['use']}")
    say(f"fails   {item['fails']}")
    say(f"source  {item['source']}")
    say("\nin a recipe of dpo, with every default", "bold")
    say(dump_yaml({"algorithm": item["choices"]}))


def print_result(result: RunResult) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    summary = result.summary
    if rows := result.before_after():
        table = Table(*result.columns, title=f"{summary['kind']}: {summary['steps']} steps")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if summary.get("stopped"):
        console.print(f"stopped early: {summary['stopped']}", markup=False)
    if skipped := summary.get("updates_skipped"):
        console.print(f"updates skipped, as their loss or gradient was not finite: {skipped}", markup=False)
    for label, path in (("model ", result.folder / "checkpoints" / "last"), ("report", result.folder / "report.html")):
        console.print(f"{label}  {path}", markup=False, highlight=False, soft_wrap=True)


def print_evaluation(found: Evaluation | Evaluations) -> None:
    """The figures of an evaluation; of several models or sets the leading figure of each, with its 95 % interval."""
    from rich.console import Console
    from rich.table import Table

    from reinlm.display import figures

    console = Console()
    if hasattr(found, "tables"):
        from reinlm.training.evaluation_table import caption

        for title, (head, *rows) in found.tables().items():
            table = Table(*head, title=caption(title))
            for row in rows:
                table.add_row(*row)
            console.print(table)
        return
    table = Table("figure", "value", title=found.measured_on)
    for name, value in figures(found.metrics):
        table.add_row(name, value)
    console.print(table)


def print_benchmark(found: Benchmark) -> None:
    from rich.console import Console
    from rich.table import Table

    shape, machine = found.shape, found.machine
    table = Table("figure", "median", title=f"{shape['batch_size']} answers in groups of {shape['group_size']}")
    for row in found.rows():
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(
        f"{shape['parameters']:,} parameters in {shape['computed_in']}, packing {shape['packing']}, {machine.device} with "
        f"{machine.threads} thread{'s' * (machine.threads > 1)}; {len(found.turns)} turn{'s' * (len(found.turns) > 1)}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def print_metrics(metrics: Sequence[Metric]) -> None:
    """Two lines or more for each metric: name and unit, below them what it measures."""
    import shutil
    import textwrap

    width = shutil.get_terminal_size((100, 24)).columns
    for metric in metrics:
        unit = "" if metric.unit == "none" else f" ({metric.unit})"
        meaning = textwrap.fill(metric.meaning, width, initial_indent="    ", subsequent_indent="    ")
        print(f"{metric.name}{unit}\n{meaning}")


def print_keys(keys: Sequence[Key], verb: str | None) -> None:
    """One paragraph for each key: name, what may stand there, default, verbs; below it description and foreign names."""
    import shutil
    import textwrap

    width = shutil.get_terminal_size((100, 24)).columns
    for key in keys:
        defaults = key.defaults if verb is None else {verb: key.defaults[verb]}
        of = f"classical {', '.join(key.algorithms)}" if key.algorithms else ", ".join(defaults)
        several = len(set(defaults.values())) > 1
        default = (
            ", ".join(f"{name} {value}" for name, value in defaults.items())
            if several
            else next(iter(defaults.values()))
        )
        shown = default if default == "required" or several else f"default {default}"
        names = f" Elsewhere: {', '.join(key.names)}." if key.names else ""
        lines = textwrap.wrap(f"{key.type}; {shown}; {of}", width - 4) + textwrap.wrap(f"{key.doc}{names}", width - 4)
        print("\n".join([key.key, *(f"    {line}" for line in lines)]))
