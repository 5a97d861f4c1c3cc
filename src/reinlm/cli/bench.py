"""`reinlm bench`: how fast a model samples and trains on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

import reinlm
from reinlm.cli.app import command
from reinlm.cli.options import (
    AnswerTokens,
    Arguments,
    BatchSize,
    Debug,
    Explain,
    FiguresFile,
    GroupSize,
    IgnoreEos,
    Model,
    OverwriteFiles,
    Profile,
    PromptTokens,
    Quiet,
    Seed,
    Threads,
    Turns,
)
from reinlm.cli.settings import sections_of_flags, settings_tree, without_none
from reinlm.cli.tables import print_benchmark


@command()
def bench(
    arguments: Arguments = None,
    model: Model = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", "-a", help="A name [default: grpo].")] = None,
    prompt_tokens: PromptTokens = None,
    max_new_tokens: AnswerTokens = None,
    group_size: GroupSize = None,
    batch_size: BatchSize = None,
    ignore_eos: IgnoreEos = False,
    turns: Turns = None,
    threads: Threads = None,
    seed: Seed = None,
    figures: FiguresFile = None,
    profile: Profile = None,
    overwrite: OverwriteFiles = False,
    quiet: Quiet = False,
    explain: Explain = False,
    debug: Debug = False,
) -> None:
    """Measure a model: tokens a second, memory, share of peak.

    Steps of rl run on random prompts, at a learning rate that changes no weight.

    \b
    reinlm bench -m runs/x/checkpoints/last --prompt-tokens 32 --max-new-tokens 32 --turns 3
    """
    shape = {
        "prompt_tokens": prompt_tokens,
        "max_new_tokens": max_new_tokens,
        "group_size": group_size,
        "batch_size": batch_size,
        "ignore_eos": ignore_eos or None,
    }
    others = {"algorithm": algorithm, "turns": turns, "threads": threads, "output": figures, "profile": profile}
    flags = sections_of_flags(model, None, rollout=without_none(shape) or None, seed=seed) | without_none(others)
    tree = settings_tree("bench", arguments, flags, explain=explain)
    if explain:
        typer.echo(reinlm.explain("bench", recipe=tree), nl=False)
        return
    found = reinlm.bench(recipe=tree, overwrite=overwrite, quiet=quiet)
    if tree.get("output") == "-":
        typer.echo(json.dumps(found.to_json()))
    else:
        print_benchmark(found)
