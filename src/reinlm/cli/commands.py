"""The verbs: each merges recipe, flags and overrides (`cli.settings`) and calls the function of `reinlm.api`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import reinlm
from reinlm.cli.app import command, one_thread
from reinlm.cli.compare import print_comparison
from reinlm.cli.messages import print_error
from reinlm.cli.options import (
    Arguments,
    AsJson,
    ClassicalName,
    ClassicalSettings,
    ControlEnv,
    ControlSeed,
    ControlSeeds,
    ControlSteps,
    Data,
    Debug,
    Environment,
    Episodes,
    EvalData,
    EvaluationEpisodes,
    Explain,
    MaxNewTokens,
    Model,
    Models,
    Output,
    Overwrite,
    Quiet,
    Render,
    Resume,
    Reward,
    Samples,
    Seed,
    Seeds,
    Sets,
    ShowSettings,
    Steps,
    Temperature,
    Texts,
    ToTensorBoard,
)
from reinlm.cli.settings import named_or_one, sections_of_flags, settings_tree, typed_command, without_none
from reinlm.cli.tables import print_evaluation, print_result
from reinlm.errors import InputError
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
    flags = sections_of_flags(model, data, eval_data=eval_data, steps=steps, seed=seed, output=output)
    tree = settings_tree("sft", arguments, flags, explain=explain)
    if explain:
        _check_seeds(seeds)
        typer.echo(reinlm.explain("sft", recipe=tree, resume=resume), nl=False)
        return
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "command": typed_command()}
    _show(reinlm.sft(recipe=tree, **options, **without_none({"seeds": seeds})))


@command()
def dpo(
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
    """Learn from judged answers: DPO and its family.

    Rows have prompt + chosen + rejected, prompt + answers (the best first), or prompt + completion + label.
    With --reward they are prompts as in `reinlm rl`: each step samples answers and has them judged (online DPO).
    """
    flags = sections_of_flags(model, data, reward=reward, eval_data=eval_data, steps=steps, seed=seed, output=output)
    tree = settings_tree(
        "dpo", arguments, flags | without_none({"algorithm": algorithm, "environment": environment}), explain=explain
    )
    if explain:
        _check_seeds(seeds)
        typer.echo(reinlm.explain("dpo", recipe=tree, resume=resume), nl=False)
        return
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "command": typed_command()}
    _show(reinlm.dpo(recipe=tree, **options, **without_none({"seeds": seeds})))


@command()
def reward(
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
    """Train a reward model on judged answers.

    Rows have prompt + chosen + rejected, prompt + answers (the best first), or prompt + completion with a label or ratings.
    """
    flags = sections_of_flags(model, data, eval_data=eval_data, steps=steps, seed=seed, output=output)
    tree = settings_tree("reward", arguments, flags, explain=explain)
    if explain:
        _check_seeds(seeds)
        typer.echo(reinlm.explain("reward", recipe=tree, resume=resume), nl=False)
        return
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "command": typed_command()}
    _show(reinlm.reward(recipe=tree, **options, **without_none({"seeds": seeds})))


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
    flags = sections_of_flags(model, data, reward=reward, eval_data=eval_data, steps=steps, seed=seed, output=output)
    tree = settings_tree(
        "rl", arguments, flags | without_none({"algorithm": algorithm, "environment": environment}), explain=explain
    )
    if explain:
        _check_seeds(seeds)
        typer.echo(reinlm.explain("rl", recipe=tree, resume=resume), nl=False)
        return
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "command": typed_command()}
    _show(reinlm.rl(recipe=tree, **options, **without_none({"seeds": seeds})))


@command()
def rft(
    arguments: Arguments = None,
    model: Model = None,
    data: Data = None,
    reward: Reward = None,
    method: Annotated[str | None, typer.Option(help="rft, raft, rest_em or star.")] = None,
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
    """Rejection sampling: sample answers, imitate the good ones.

    Rows are as in `reinlm rl`. samples/ of the run's folder holds every answer, and which were kept and why.
    """
    flags = sections_of_flags(model, data, reward=reward, eval_data=eval_data, steps=steps, seed=seed, output=output)
    tree = settings_tree(
        "rft", arguments, flags | without_none({"method": method, "environment": environment}), explain=explain
    )
    if explain:
        _check_seeds(seeds)
        typer.echo(reinlm.explain("rft", recipe=tree, resume=resume), nl=False)
        return
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "quiet": quiet, "command": typed_command()}
    _show(reinlm.rft(recipe=tree, **options, **without_none({"seeds": seeds})))


@command("eval")
def evaluate(
    arguments: Arguments = None,
    model: Models = None,
    data: Sets = None,
    text: Texts = None,
    reward: Reward = None,
    environment: Environment = None,
    samples: Samples = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    against: Annotated[
        str | None,
        typer.Option(help="A model, a run or a file of answers: the win rate over it, by the reward or --judge."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="file.py:function that sees both answers, in place of the reward of --against.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A JSONL file for all answers.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing --output.")] = False,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    explain: Explain = False,
    debug: Debug = False,
) -> None:
    """Score a model: accuracy, pass@k, win rate, loss on text.

    Several models or sets give a table, with --json a line of JSON for each model and set. reward.KEY, environment and
    rollout.KEY (engine, limits) are as in `reinlm rl`.
    """
    settings = without_none({"samples": samples, "temperature": temperature, "max_new_tokens": max_new_tokens})
    (one, models), (file, sets) = named_or_one("--model", model), named_or_one("--data", data)
    settings |= {} if sets is None else {"data": sets}
    one_text, texts = named_or_one("--text", text)
    held_out = {"data": texts} if texts else one_text
    flags = sections_of_flags(
        one, file, models=models, reward=reward, environment=environment, evaluation=settings or None, seed=seed
    )
    tree = settings_tree(
        "eval",
        arguments,
        flags | without_none({"text": held_out, "output": output and str(output), "against": against, "judge": judge}),
        explain=explain,
    )
    if explain:
        typer.echo(reinlm.explain("eval", recipe=tree), nl=False)
        return
    result: Any = reinlm.evaluate(recipe=tree, overwrite=overwrite, quiet=quiet)
    for note in result.notes:
        print_error(note, None, "note: ")
    if not as_json:
        print_evaluation(result)
        return
    for row in [result.metrics] if hasattr(result, "metrics") else result.rows():
        typer.echo(json.dumps(row, ensure_ascii=False))


@command()
def generate(
    arguments: Arguments = None,
    model: Model = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="May be repeated; - reads standard input.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system prompt, for chat models.")] = None,
    reward: Reward = None,
    environment: Environment = None,
    samples: Samples = None,
    best_of: Annotated[int | None, typer.Option(help="Give the best of so many answers by --reward.", min=2)] = None,
    majority_vote: Annotated[
        int | None, typer.Option(help="Give an answer that says what most of so many say.", min=2)
    ] = None,
    temperature: Temperature = None,
    max_new_tokens: MaxNewTokens = None,
    seed: Seed = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    explain: Explain = False,
    debug: Debug = False,
) -> None:
    """Sample from a model, or choose among what it samples.

    environment and rollout.KEY (engine, limits) are as in `reinlm rl`.
    """
    sampling = without_none({"temperature": temperature, "max_new_tokens": max_new_tokens})
    flags = sections_of_flags(
        model,
        None,
        reward=reward,
        environment=environment,
        sampling=sampling or None,
        samples=samples,
        best_of=best_of,
        majority_vote=majority_vote,
        seed=seed,
    )
    prompts = [sys.stdin.read().strip() if text == "-" else text for text in prompt or ()]
    flags |= without_none({"system_prompt": system, "prompts": prompts or None})
    tree = settings_tree("generate", arguments, flags, explain=explain)
    if explain:
        typer.echo(reinlm.explain("generate", recipe=tree), nl=False)
        return
    for answers in reinlm.generate(recipe=tree, quiet=quiet):
        shown = zip(answers.completions, answers.ends, answers.failed, strict=True)
        for place, (completion, end, failed) in enumerate(shown):
            if as_json:
                row: dict[str, Any] = {"prompt": answers.prompt, "completion": completion, "end": end, "failed": failed}
                row |= {"reward": answers.rewards[place]} if answers.rewards else {}
                row |= {"votes": answers.votes[place]} if answers.votes else {}
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(completion)
                if failed:
                    print_error(f"this episode ended by an error: {end}", None, "note: ")


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
    flags = sections_of_flags(None, data, seed=seed) | without_none({"output": output and str(output)})
    made = reinlm.create_model(recipe=settings_tree("create-model", arguments, flags), overwrite=overwrite)
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

    The run may be finished, failed or still running, of rl, sft, dpo, quickstart or classical.
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
    name: ClassicalName = None,
    settings: ClassicalSettings = None,
    env: ControlEnv = None,
    steps: ControlSteps = None,
    episodes: Episodes = None,
    seeds: ControlSeeds = None,
    seed: ControlSeed = None,
    evaluate: EvaluationEpisodes = None,
    render: Render = None,
    output: Output = None,
    as_json: AsJson = False,
    tensorboard: ToTensorBoard = False,
    as_list: Annotated[bool, typer.Option("--list", help="List all algorithms.")] = False,
    show_settings: ShowSettings = False,
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
    given = without_none(
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
        command=typed_command(),
        reports=[ReportTracker()],
    )
    typer.echo(json.dumps(result.summary) if as_json else f"report  {result.folder / REPORT_FILE}")


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
