"""The verbs: each merges recipe, flags and overrides into one mapping and calls the function of `reinlm.api`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

import reinlm
from reinlm.cli.app import command, one_thread
from reinlm.cli.compare import print_comparison
from reinlm.cli.messages import complain
from reinlm.cli.options import (
    Arguments,
    AsJson,
    Data,
    Debug,
    Environment,
    EvalData,
    Explain,
    MaxNewTokens,
    Model,
    Output,
    Overwrite,
    Quiet,
    Resume,
    Reward,
    Samples,
    Seed,
    Seeds,
    Steps,
    Temperature,
    whole_number,
)
from reinlm.cli.tables import print_evaluation, print_result
from reinlm.cli.words import recipe_and_overrides
from reinlm.errors import InputError
from reinlm.hub import missing_data, missing_model
from reinlm.places import model_folder
from reinlm.program import command_line


@command()
def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="The run's folder.")] = Path("runs/quickstart"),
    seed: Annotated[int, typer.Option(help="Seed of everything random.", min=0)] = 0,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """A tiny model from scratch: SFT, RL, a report; 1.5 minutes."""
    from reinlm.quickstart import run_quickstart

    run_quickstart(output, seed=seed, overwrite=overwrite, quiet=quiet)


@command()
def sft(
    arguments: Arguments = None,
    model: Model = None,
    data: Data = None,
    eval_data: EvalData = None,
    output: Output = None,
    steps: Steps = None,
    seed: Seed = None,
    seeds: Seeds = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    explain: Explain = False,
    debug: Debug = False,
) -> None:
    """Supervised fine-tuning: imitate completions.

    Rows have prompt + completion, messages, or text.
    """
    flags = _flags(model, data, eval_data=eval_data, steps=steps, seed=seed, output=output)
    tree = _tree("sft", arguments, flags, explain=explain)
    if explain:
        _check_seeds(seeds)
        typer.echo(reinlm.explain("sft", recipe=tree, resume=resume), nl=False)
        return
    one_thread()
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "command": _command()}
    _show(reinlm.sft(recipe=tree, **options, **_given({"seeds": seeds})))


@command()
def rl(
    arguments: Arguments = None,
    model: Model = None,
    data: Data = None,
    reward: Reward = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", "-a", help="A name; see `reinlm algorithms`.")] = None,
    environment: Environment = None,
    eval_data: EvalData = None,
    output: Output = None,
    steps: Steps = None,
    seed: Seed = None,
    seeds: Seeds = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    explain: Explain = False,
    debug: Debug = False,
) -> None:
    """Reinforcement learning: improve a model against a reward.

    Rows have a prompt, or messages, and the columns that the reward reads (such as answer). An environment may give rewards
    of its own; then --reward may be left out.
    """
    flags = _flags(model, data, reward=reward, eval_data=eval_data, steps=steps, seed=seed, output=output)
    tree = _tree("rl", arguments, flags | _given({"algorithm": algorithm, "environment": environment}), explain=explain)
    if explain:
        _check_seeds(seeds)
        typer.echo(reinlm.explain("rl", recipe=tree, resume=resume), nl=False)
        return
    one_thread()
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "command": _command()}
    _show(reinlm.rl(recipe=tree, **options, **_given({"seeds": seeds})))


@command("eval")
def evaluate(
    arguments: Arguments = None,
    model: Model = None,
    data: Data = None,
    reward: Reward = None,
    environment: Environment = None,
    samples: Samples = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSONL file for all answers.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing --output.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    explain: Explain = False,
    debug: Debug = False,
) -> None:
    """Score a model: accuracy with its interval, pass@k, length.

    reward.KEY, environment and rollout.KEY (engine, limits) are as in `reinlm rl`.
    """
    settings = _given({"samples": samples, "temperature": temperature, "max_new_tokens": max_new_tokens})
    flags = _flags(model, data, reward=reward, environment=environment, evaluation=settings or None, seed=seed)
    tree = _tree("eval", arguments, flags | _given({"output": output and str(output)}), explain=explain)
    if explain:
        typer.echo(reinlm.explain("eval", recipe=tree), nl=False)
        return
    one_thread()
    result = reinlm.evaluate(recipe=tree, overwrite=overwrite, quiet=quiet)
    for note in result.notes:
        complain(note, None, "note: ")
    if as_json:
        typer.echo(json.dumps(result.metrics))
    else:
        print_evaluation(result.metrics, len(result.groups))


@command()
def generate(
    arguments: Arguments = None,
    model: Model = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="May be repeated; - reads standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt, for chat models.")] = None,
    environment: Environment = None,
    samples: Samples = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    explain: Explain = False,
    debug: Debug = False,
) -> None:
    """Sample from a model.

    environment and rollout.KEY (engine, limits) are as in `reinlm rl`.
    """
    sampling = _given({"temperature": temperature, "max_new_tokens": max_new_tokens})
    flags = _flags(model, None, environment=environment, sampling=sampling or None, samples=samples, seed=seed)
    prompts = [sys.stdin.read().strip() if text == "-" else text for text in prompt or ()]
    flags |= _given({"system_prompt": system, "prompts": prompts or None})
    tree = _tree("generate", arguments, flags, explain=explain)
    if explain:
        typer.echo(reinlm.explain("generate", recipe=tree), nl=False)
        return
    one_thread()
    for answers in reinlm.generate(recipe=tree, quiet=quiet):
        for completion, end, failed in zip(answers.completions, answers.ends, answers.failed, strict=True):
            if as_json:
                row = {"prompt": answers.prompt, "completion": completion, "end": end, "failed": failed}
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(completion)
                if failed:
                    complain(f"this episode ended by an error: {end}", None, "note: ")


@command("create-model")
def create_model(
    arguments: Arguments = None,
    data: Data = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The model's folder.")] = None,
    seed: Seed = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the model in --output.")] = False,
    debug: Debug = False,
) -> None:
    """A small model from scratch, with a tokenizer of its own.

    The weights are random; the tokenizer is trained on the data that sft will imitate.

    \b
    reinlm create-model -d train.jsonl -o models/small layers=4 hidden_size=256 context=512
    """
    flags = _flags(None, data, seed=seed) | _given({"output": output and str(output)})
    made = reinlm.create_model(recipe=_tree("create-model", arguments, flags), overwrite=overwrite)
    context = made.policy.context_length
    typer.echo(f"model  {made.folder}: {made.parameters:,} parameters, {len(made.policy.tokenizer):,} tokens")
    typer.echo(
        f"data   {made.fitting:,} of {made.rows:,} rows fit its context of {context}; the longest has {made.longest}"
    )


@command()
def report(
    folder: Annotated[Path | None, typer.Argument(metavar="RUN", help="The run's folder.")] = None,
    debug: Debug = False,
) -> None:
    """Write the report of a run again, and print its path.

    The run may be finished, failed or still running, of rl, sft, quickstart or classical.
    """
    from reinlm.errors import nearest

    if folder is None:
        raise InputError("which run?", hint=f"write {command_line('report', 'runs/NAME')}")
    if not folder.is_dir():
        near = (
            nearest(folder.name, (entry.name for entry in folder.parent.iterdir())) if folder.parent.is_dir() else None
        )
        raise InputError(
            f"no such run folder: {folder}", hint=f"did you mean {str(folder.parent / near)!r}?" if near else None
        )
    from reinlm.insight.report import write_report
    from reinlm.metrics import METRICS

    typer.echo(write_report(folder, metrics=METRICS))


@command()
def classical(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="An algorithm (see --list), or a recipe, as a run's config.yaml."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Of the algorithm (discount=0.9), or of the environment (env.sab=true)."
        ),
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", "-e", help="A Gymnasium id, such as CartPole-v1, or file.py:CLASS.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of the environment for each seed.", parser=whole_number, metavar="<int>"),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option(help="Or episodes for each seed.", parser=whole_number, metavar="<int>")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Independent runs [default: 1].")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first one [default: 0].")] = None,
    evaluate: Annotated[int | None, typer.Option(help="Greedy episodes after training [default: 100].")] = None,
    render: Annotated[str | None, typer.Option(help="text or video: watch the learned policy.")] = None,
    output: Output = None,
    as_json: AsJson = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Mirror the metrics of each seed to TensorBoard.")
    ] = False,
    as_list: Annotated[bool, typer.Option("--list", help="List all algorithms.")] = False,
    show_settings: Annotated[
        bool, typer.Option("--settings", help="Show the settings of NAME with their values, and run nothing.")
    ] = False,
    resume: Resume = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Classical algorithms on control tasks, Monte Carlo to PPO.

    \b
    reinlm classical sarsa --env CliffWalking-v1 --episodes 3000 --seeds 10
    """
    from reinlm.classical.command import list_algorithms, run_command
    from reinlm.classical.command import show_settings as print_settings
    from reinlm.insight.report import REPORT_FILE
    from reinlm.insight.tracker import ReportTracker

    if as_list:
        list_algorithms(as_json=as_json)
        return
    if show_settings:
        if name is None:
            raise InputError("--settings of which algorithm?", hint=command_line("classical", "ppo", "--settings"))
        print_settings(name, settings or [], as_json=as_json)
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
    one_thread()
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


# ------------------------------------------------------------------------------------------------ command line to settings


def _flags(
    model: str | None,
    data: str | None,
    *,
    reward: list[str] | None = None,
    eval_data: str | None = None,
    steps: int | None = None,
    output: Path | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The flags as configuration sections; `others` keep their names."""
    return _given(
        {
            "model": model,
            "data": data,
            "reward": (reward[0] if len(reward) == 1 else reward) if reward else None,
            "evaluation": {"data": {"eval": {"path": eval_data}}} if eval_data else None,
            "training": {"steps": steps} if steps is not None else None,
            "run": {"output": str(output)} if output else None,
        }
        | others
    )


def _tree(verb: str, arguments: list[str] | None, flags: dict[str, Any], *, explain: bool = False) -> dict[str, Any]:
    """Merge recipe, flags and overrides; later ones take precedence. Each value keeps what gave it."""
    from reinlm.recipe import over, override, read

    recipe, overrides = recipe_and_overrides(arguments or (), verb)
    tree = read(recipe)
    for section, value in flags.items():
        keys = value if isinstance(value, dict) else {"": None}
        for key in keys:
            given = {key: keys[key]} if key else value
            tree = over(tree, {section: given}, _flag(section, key))
    tree = override(tree, overrides)
    if not explain:
        _refuse_missing(tree)
    return tree


def _flag(section: str, key: str) -> str:
    """The flag that gives a key of a section."""
    name = f"{section}.{key}" if key else section
    return _FLAGS.get(name, "--" + (key or section).replace("_", "-"))


_FLAGS = {
    "evaluation.data": "--eval-data",
    "run.output": "--output",
    "system_prompt": "--system",
    "prompts": "--prompt",
}
"""Sections and keys whose flag has another name."""


def _refuse_missing(tree: Mapping[str, Any]) -> None:
    """Raise InputError for a model's folder or a file of data that is not there, before anything heavy is imported."""
    run = tree.get("run")
    if isinstance(run, Mapping) and run.get("output") and (Path(str(run["output"])) / "config.yaml").is_file():
        return  # what is resumed has paths relative to the directory that it was started in
    for section, find in (("model", lambda text: missing_model(model_folder(text))), ("data", missing_data)):
        value = tree.get(section)
        path = value.get("path") if isinstance(value, Mapping) else value
        for place in [path] if isinstance(path, str) else path if isinstance(path, list) else ():
            refused = find(place) if isinstance(place, str) and place.strip() else None
            if refused is not None:
                raise refused


def _check_seeds(seeds: int | None) -> None:
    from reinlm.grid import check_seeds

    if seeds is not None:
        check_seeds(seeds)


def _show(result: Any) -> None:
    """What a run reached, or with --seeds the comparison of its runs."""
    if hasattr(result, "groups"):
        print_comparison(result)
    else:
        print_result(result)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _command() -> str:
    return command_line(*sys.argv[1:])
