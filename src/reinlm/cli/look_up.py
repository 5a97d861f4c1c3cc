"""The commands `algorithms`, `keys` and `metrics`, which print documentation."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from reinlm.cli.app import command
from reinlm.cli.messages import refuse_classical
from reinlm.cli.options import AsJson, Debug
from reinlm.cli.tables import print_algorithm, print_ladder, print_preference, print_preferences
from reinlm.errors import InputError


@command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="An algorithm; by default a table of all.")] = None,
    as_json: AsJson = False,
    page: Annotated[bool, typer.Option("--page", help="Print docs/algorithms.md.")] = False,
    debug: Debug = False,
) -> None:
    """Algorithms of rl and dpo: choices, formula, use."""
    from reinlm.algorithms import is_preference
    from reinlm.algorithms.ladder import algorithm_details, table
    from reinlm.algorithms.ladder import algorithms_page as write_page
    from reinlm.algorithms.preference_cards import preference_details, preference_table

    if page and (name or as_json):
        raise InputError("--page prints the whole page", hint="leave NAME and --json out")
    if page:
        typer.echo(write_page(), nl=False)
        return
    if name and not is_preference(name):
        refuse_classical(name)
    if not name:
        rows, judged = table(), preference_table()
        if as_json:
            every = [{"verb": "rl", **row} for row in rows] + [{"verb": "dpo", **row} for row in judged]
            typer.echo(json.dumps(every, ensure_ascii=False))
            return
        print_ladder(rows)
        print_preferences(judged)
        return
    item = preference_details(name) if is_preference(name) else {"verb": "rl", **algorithm_details(name)}
    if as_json:
        typer.echo(json.dumps(item, ensure_ascii=False))
    elif item["verb"] == "dpo":
        print_preference(item)
    else:
        print_algorithm(item)


@command()
def keys(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="In a key, its description or its name in TRL, verl or SB3."),
    ] = None,
    verb: Annotated[
        str | None, typer.Option("--verb", help="rl, sft, eval, generate, create-model or classical.")
    ] = None,
    as_json: AsJson = False,
    page: Annotated[bool, typer.Option("--page", help="Print docs/configuration.md.")] = False,
    debug: Debug = False,
) -> None:
    """The keys of a recipe: values, defaults, descriptions.

    \b
    reinlm keys clip
    reinlm keys learning_rate --verb sft
    """
    from reinlm.cli.tables import print_keys
    from reinlm.keys import find_keys

    if page:
        if words or verb or as_json:
            raise InputError("--page prints the whole page", hint="leave WORD, --verb and --json out")
        from reinlm.key_reference import configuration_page

        typer.echo(configuration_page(), nl=False)
        return
    found = find_keys(" ".join(words or ()), verb)
    if as_json:
        typer.echo(json.dumps([asdict(key) | {"names": key.names} for key in found], ensure_ascii=False))
    else:
        print_keys(found, verb)


@command()
def metrics(
    name: Annotated[
        str | None, typer.Argument(help="A logged name, such as eval/gsm8k/pass@8; by default a list of all.")
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Print docs/metrics.md.")] = False,
    debug: Debug = False,
) -> None:
    """The metrics of a run: meaning, unit, healthy values."""
    from reinlm.cli.tables import print_metrics
    from reinlm.errors import unknown
    from reinlm.metrics import LIBRARY, METRICS, find_metric
    from reinlm.metrics import metrics_page as write_page

    if page:
        if name:
            raise InputError("--page prints the whole page", hint="leave NAME out")
        typer.echo(write_page(), nl=False)
        return
    if name is None:
        print_metrics(LIBRARY)
        return
    info = find_metric(name)
    if info is None:
        raise unknown("metric", name, METRICS)
    fields = {"unit": info.unit, "meaning": info.meaning, "healthy": info.healthy, "bad": info.bad}
    typer.echo("\n".join([name, *(f"{label:8} {text}" for label, text in fields.items() if text)]))
