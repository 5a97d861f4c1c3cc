"""The command line: parse, call, print. Every heavy import waits until a verb runs."""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import reinlm
from reinlm.errors import InputError, ReinlmError, nearest

if TYPE_CHECKING:
    from reinlm.loop import RunResult

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What the parser raises; typer brings its own copy of click, which it does not export."""

app = typer.Typer(
    name="reinlm",
    help="Improve language models by reinforcement learning, from a laptop to a cluster.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class _Stopped(Exception):  # noqa: N818 - Ctrl-C is no error
    """Ctrl-C or SIGTERM, as an exception that typer does not turn into a bare exit code."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.code = 128 + signum


def _interruptible(verb: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(verb)
    def call(*arguments: Any, **options: Any) -> None:
        try:
            verb(*arguments, **options)
        except KeyboardInterrupt as error:
            raise _Stopped(str(error) or "interrupted", getattr(error, "signum", signal.SIGINT)) from error

    return call


Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...", help="A YAML recipe, and overrides such as rollout.group_size=16."
    ),
]
Model = Annotated[str | None, typer.Option("--model", "-m", help="A Hugging Face folder or name.")]
Data = Annotated[str | None, typer.Option("--data", "-d", help="JSONL, CSV or Parquet file, or a data set's name.")]
EvalData = Annotated[str | None, typer.Option(help="Prompts that training never sees.")]
Reward = Annotated[
    list[str] | None,
    typer.Option("--reward", "-r", help="math, exact_match, regex, length or file.py:function; may be repeated."),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The run's folder [default: runs/KIND-TIME].")]
Steps = Annotated[int | None, typer.Option(help="Training steps.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --output.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start anew in an existing --output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(reinlm.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
@_interruptible
def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run's folder.")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """A tiny model from scratch: SFT, then RL, before your eyes; about two minutes."""
    from reinlm.quickstart import run_quickstart

    run_quickstart(output, seed=seed, overwrite=overwrite, quiet=quiet)


@app.command()
@_interruptible
def sft(
    arguments: Arguments = None,
    model: Model = None,
    data: Data = None,
    eval_data: EvalData = None,
    output: Output = None,
    steps: Steps = None,
    seed: Seed = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Supervised fine-tuning: imitate completions.

    Rows have prompt + completion, messages, or text.
    """
    tree = _tree(arguments, model, data, eval_data=eval_data, steps=steps, seed=seed, output=output)
    _finish(reinlm.sft(recipe=tree, resume=resume, overwrite=overwrite, quiet=quiet, command=_command()))


@app.command()
@_interruptible
def rl(
    arguments: Arguments = None,
    model: Model = None,
    data: Data = None,
    reward: Reward = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", "-a", help="A name; see `reinlm algorithms`.")] = None,
    environment: Annotated[
        str | None, typer.Option("--environment", "-e", help="A name, or file.py:CLASS [default: question].")
    ] = None,
    eval_data: EvalData = None,
    output: Output = None,
    steps: Steps = None,
    seed: Seed = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Reinforcement learning: improve a model against a reward.

    Rows have a prompt, or messages, and the columns that the reward reads (such as answer). An environment may give rewards
    of its own; then --reward may be left out.
    """
    tree = _tree(
        arguments,
        model,
        data,
        reward=reward,
        eval_data=eval_data,
        steps=steps,
        seed=seed,
        output=output,
        algorithm=algorithm,
        environment=environment,
    )
    _finish(reinlm.rl(recipe=tree, resume=resume, overwrite=overwrite, quiet=quiet, command=_command()))


@app.command("eval")
@_interruptible
def evaluate(
    arguments: Arguments = None,
    model: Model = None,
    data: Data = None,
    reward: Reward = None,
    samples: Annotated[int | None, typer.Option(help="Answers to each prompt; pass@k up to this k.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy [default: 1].")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer at most [default: 256].")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSONL file for all answers.")] = None,
    seed: Seed = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Score a model: accuracy with its interval, pass@k, length."""
    from reinlm.config import merge

    tree = _tree(arguments, model, data, reward=reward, seed=seed)
    settings = {"samples": samples, "temperature": temperature, "max_new_tokens": max_new_tokens}
    tree = merge(tree, {"evaluation": _given(settings)} if _given(settings) else {})
    result = reinlm.evaluate(recipe=tree, **({"output": str(output)} if output else {}))
    if as_json:
        typer.echo(json.dumps(result.metrics))
    else:
        _print_evaluation(result.metrics, len(result.groups))


@app.command()
@_interruptible
def generate(
    arguments: Arguments = None,
    model: Model = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="May be repeated; - reads standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt, for chat models.")] = None,
    samples: Annotated[int | None, typer.Option(help="Answers to each prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy [default: 1].")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer at most [default: 256].")] = None,
    seed: Seed = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Sample from a model."""
    from reinlm.config import merge

    tree = _tree(arguments, model, None, seed=seed)
    if prompt:
        tree["prompts"] = [sys.stdin.read().strip() if text == "-" else text for text in prompt]
    settings = _given({"temperature": temperature, "max_new_tokens": max_new_tokens})
    tree = merge(tree, _given({"sampling": settings or None, "samples": samples, "system_prompt": system}))
    for answers in reinlm.generate(recipe=tree):
        for completion, end in zip(answers.completions, answers.ends, strict=True):
            if as_json:
                row = {"prompt": answers.prompt, "completion": completion, "end": end}
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(completion)


@app.command()
@_interruptible
def classical(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="An algorithm; see --list.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Of the algorithm (discount=0.9), or of the environment (env.sab=true)."
        ),
    ] = None,
    env: Annotated[str | None, typer.Option("--env", "-e", help="A Gymnasium id, such as CartPole-v1.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the environment for each seed.")] = None,
    episodes: Annotated[int | None, typer.Option(help="Or episodes for each seed.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Independent runs [default: 1].")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first one [default: 0].")] = None,
    evaluate: Annotated[int | None, typer.Option(help="Greedy episodes after training [default: 100].")] = None,
    render: Annotated[str | None, typer.Option(help="text or video: watch the learned policy.")] = None,
    output: Output = None,
    as_json: AsJson = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Mirror the metrics of each seed to TensorBoard.")
    ] = False,
    as_list: Annotated[bool, typer.Option("--list", help="What there is to learn with.")] = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The classical algorithms on control tasks, from Monte Carlo to PPO.

    reinlm classical sarsa --env CliffWalking-v1 --episodes 3000 --seeds 10
    """
    from reinlm.classical.command import list_algorithms, run_command
    from reinlm.insight.report import REPORT_FILE
    from reinlm.insight.tracker import ReportTracker

    if as_list:
        list_algorithms(as_json=as_json)
        return
    given = _given(
        {
            "algorithm": name,
            "env": env,
            "steps": steps,
            "episodes": episodes,
            "seeds": seeds,
            "seed": seed,
            "evaluation_episodes": evaluate,
            "tensorboard": True if tensorboard else None,
            "output": str(output) if output else None,
        }
    )
    result = run_command(
        given,
        settings or [],
        render=render,
        as_json=as_json,
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        command=_command(),
        reports=[ReportTracker()],
    )
    typer.echo(json.dumps(result.summary) if as_json else f"report  {result.folder / REPORT_FILE}")


@app.command()
@_interruptible
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One of them; by default the whole ladder.")] = None,
    as_json: AsJson = False,
    page: Annotated[bool, typer.Option("--page", help="Print docs/algorithms.md.")] = False,
    debug: Debug = False,
) -> None:
    """The named algorithms: choices, formula, defaults, when to use one and how it fails."""
    from reinlm.algorithms.ladder import page as write_page
    from reinlm.algorithms.ladder import table, told

    if page and (name or as_json):
        raise InputError("--page prints the whole page", hint="leave NAME and --json out")
    if page:
        typer.echo(write_page(), nl=False)
    elif as_json:
        typer.echo(json.dumps(told(name) if name else table(), ensure_ascii=False))
    elif name:
        _print_algorithm(told(name))
    else:
        _print_ladder(table())


@app.command(hidden=True)
@_interruptible
def metrics(
    name: Annotated[str | None, typer.Argument(help="A logged name, such as eval/gsm8k/pass@8.")] = None,
    page: Annotated[bool, typer.Option("--page", help="Print docs/metrics.md.")] = False,
    debug: Debug = False,
) -> None:
    """What a metric measures, what is healthy, and what a bad value means."""
    from reinlm.errors import unknown
    from reinlm.metrics import METRICS, describe
    from reinlm.metrics import page as write_page

    if page == (name is not None):
        raise InputError("metrics takes either a NAME or --page")
    if name is None:
        typer.echo(write_page(), nl=False)
        return
    info = describe(name)
    if info is None:
        raise unknown("metric", name, METRICS)
    told = {"unit": info.unit, "meaning": info.meaning, "healthy": info.healthy, "bad": info.bad}
    typer.echo("\n".join([name, *(f"{label:8} {text}" for label, text in told.items() if text)]))


# ------------------------------------------------------------------------------------------------ helpers


def _print_ladder(rows: list[dict[str, str]]) -> None:
    import re

    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title="one update, five choices", box=box.SIMPLE_HEAD, row_styles=["", "dim"], padding=(0, 1, 0, 0))
    console = Console()
    widths = {"advantage": 11, "ratio": 8, "gate": 8, "kl": 11, "weights": 8, "critic": 6}
    columns = [name for name in rows[0] if name != "source" or console.width >= 100]
    for column in columns:
        table.add_column(column, no_wrap=column in ("name", "source"), min_width=widths.get(column))
    for row in rows:
        cited = re.search(r"\d{4}\.\d{5}", row["source"])
        words = {key: text.replace("_", " ") for key, text in row.items() if key in columns}
        words |= {"name": row["name"]} | ({"source": cited[0] if cited else "1992"} if "source" in columns else {})
        table.add_row(*words.values())
    console.print(table)
    console.print("more: reinlm algorithms NAME", highlight=False)


def _print_algorithm(item: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from reinlm.algorithms.ladder import COLUMNS, table

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
    say(f"use     {item['use']}")
    say(f"fails   {item['fails']}")
    say(f"source  {item['source']}")


def _tree(
    arguments: list[str] | None,
    model: str | None,
    data: str | None,
    *,
    reward: list[str] | None = None,
    eval_data: str | None = None,
    steps: int | None = None,
    seed: int | None = None,
    output: Path | None = None,
    algorithm: str | None = None,
    environment: str | None = None,
) -> dict[str, Any]:
    """Recipe, then flags, then overrides: the later wins."""
    from reinlm.config import apply_overrides, merge, read_recipe

    words = list(arguments or [])
    tree = read_recipe(words.pop(0)) if words and "=" not in words[0] else {}
    for key in ("model", "data"):
        if isinstance(tree.get(key), str | list):
            tree[key] = {"path": tree[key]}
    flags: dict[str, Any] = _given(
        {
            "model": {"path": model} if model else None,
            "data": {"path": data} if data else None,
            "reward": (reward[0] if len(reward) == 1 else reward) if reward else None,
            "evaluation": {"data": {"eval": {"path": eval_data}}} if eval_data else None,
            "training": {"steps": steps} if steps is not None else None,
            "run": {"output": str(output)} if output else None,
            "algorithm": algorithm,
            "environment": environment,
            "seed": seed,
        }
    )
    return apply_overrides(merge(tree, flags), words)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _command() -> str:
    return shlex.join(["reinlm", *sys.argv[1:]])


def _finish(result: RunResult) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    summary = result.summary
    before, after = summary.get("before"), summary.get("after")
    if before and after:
        table = Table("", "before", "after", title=f"{summary['kind']}: {summary['steps']} steps")
        for name in after:
            if name.endswith(("/accuracy", "/loss", "/reward", "/mean_length", "/greedy_accuracy")) and name in before:
                table.add_row(name, _figure(name, before[name]), _figure(name, after[name]))
        console.print(table)
    if summary.get("stopped"):
        console.print(f"stopped early: {summary['stopped']}", markup=False)
    if skipped := summary.get("updates_skipped"):
        console.print(f"updates skipped, as their loss or gradient was not finite: {skipped}", markup=False)
    for label, path in (("model ", result.folder / "checkpoints" / "last"), ("report", result.folder / "report.html")):
        console.print(f"{label}  {path}", markup=False, highlight=False, soft_wrap=True)


def _figure(name: str, value: float) -> str:
    return f"{value:.1%}" if name.endswith("accuracy") else f"{value:.3f}"


def _print_evaluation(metrics: dict[str, float], prompts: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value", title=f"{prompts} prompts")
    for name, value in metrics.items():
        if name in ("accuracy_low", "accuracy_high"):
            continue
        if name == "accuracy":
            shown = f"{value:.1%}  ({metrics['accuracy_low']:.1%} to {metrics['accuracy_high']:.1%}, 95 %)"
        elif name.startswith("pass@") or name == "clipped_ratio":
            shown = f"{value:.1%}"
        else:
            shown = f"{value:.4g}"
        table.add_row(name, shown)
    Console().print(table)


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
        _complain(*_explain(error))
        _leave(2)
    except ReinlmError as error:
        if debug:
            raise
        _complain(error.message, error.hint)
        _leave(2)
    except _Stopped as error:
        if debug:
            raise
        _complain(str(error), None, label="")
        _leave(error.code)


def _explain(error: Exception) -> tuple[str, str | None]:
    """One line for what the parser did not understand, and the nearest thing that it would."""
    context: Any = getattr(error, "ctx", None)
    words = getattr(error, "option_name", None) or getattr(error, "param", None)
    if isinstance(words, str):
        options = [name for option in context.command.params for name in option.opts if name.startswith("--")]
        near = nearest(words, options)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(options)}"
        return f"unknown option {words!r}", _elsewhere(words, context.command.name == "classical") or hint
    message = str(error.format_message()).strip()  # type: ignore[attr-defined]
    if message.startswith("No such command"):
        name = message.split("'")[1]
        commands = sorted(context.command.commands)
        near = nearest(name, commands)
        return f"unknown command {name!r}", f"did you mean {near!r}?" if near else f"known: {', '.join(commands)}"
    return message[0].lower() + message[1:].rstrip("."), f"see `{context.command_path} --help`" if context else None


def _elsewhere(option: str, classical: bool) -> str | None:
    """What an option of another library is here; keys are given as KEY=VALUE."""
    from reinlm.aliases import alias_hint

    hint = alias_hint([option.lstrip("-").replace("-", "_")], classical=classical)
    return f"{hint} (KEY=VALUE sets a key)" if hint else None


def _complain(message: str, hint: str | None, label: str = "error: ") -> None:
    sys.stdout.flush()
    print(f"{label}{message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


if __name__ == "__main__":
    main()
