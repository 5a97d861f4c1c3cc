"""`reinlm classical`: from words to a run, and its figures as a table, a picture or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from reinlm.classical.agent import Agent
from reinlm.classical.budget import RECENT
from reinlm.classical.environments import arguments_of
from reinlm.classical.pictures import picture
from reinlm.classical.registry import catalogue, find
from reinlm.classical.rendering import check_rendering, record_video, show_text
from reinlm.classical.run import ClassicalConfig, ClassicalResult, run_classical
from reinlm.classical.sb3 import settings_of
from reinlm.classical.tabular.dynamic_programming import Planner
from reinlm.classical.tabular.td import TD
from reinlm.config import apply_overrides, build, dump_yaml, merge, read_recipe
from reinlm.errors import InputError, ReinlmError
from reinlm.keys import keys_of
from reinlm.loop import Callback
from reinlm.program import command_line
from reinlm.runs import Progress


def list_algorithms(*, as_json: bool = False) -> None:
    """Print what there is to learn with."""
    cards = catalogue()
    if as_json:
        print(json.dumps([asdict(card) for card in cards], ensure_ascii=False))
        return
    console = Console()
    for card in cards:
        console.print(f"[bold]{card.name}[/bold]  [dim]{card.family}; {card.actions} actions[/dim]")
        for line in (card.equation, card.source, card.use):
            console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)


def show_settings(name: str, words: Sequence[str], *, as_json: bool = False) -> None:
    """Print the settings of an algorithm with the values in force: what `words` (KEY=VALUE) set, else the defaults.

    Raises InputError for an unknown algorithm, an unknown setting or a value that does not fit.
    """
    kind = find(name)
    given = settings_of(kind, None, apply_overrides({}, [word for word in words if not word.startswith("env.")]))
    values = build(kind.Settings, given).model_dump(mode="json")
    if as_json:
        print(json.dumps({"algorithm": kind.name, "settings": values}, ensure_ascii=False))
        return
    keys = {key.key: key for key in keys_of("classical") if kind.name in key.algorithms}
    console = Console(highlight=False)
    table = Table("setting", "value", "range", "what it is", title=f"settings of {kind.name}")
    for key, value in values.items():
        shown = escape(dump_yaml(value, one_line=True)) + (" (given)" if key in given else "")
        known = keys.get(key)
        table.add_row(key, shown, escape(known.type if known else ""), escape(known.doc if known else ""))
    console.print(table)


def run_command(
    given: Mapping[str, Any],
    words: Sequence[str],
    *,
    render: str | None,
    as_json: bool,
    resume: bool,
    overwrite: bool,
    quiet: bool,
    command: str,
    reports: Sequence[Callback] = (),
) -> ClassicalResult:
    """Run what the words ask for, and show it.

    `given["algorithm"]` may be a recipe instead, such as a run's config.yaml. A run that is resumed takes what is not given
    from its folder. Raises InputError for what is missing or wrong.
    """
    if render not in (None, "text", "video"):
        raise InputError(f"--render is text or video, not {render!r}")
    config: ClassicalConfig = build(ClassicalConfig, _tree(given, words, resume))
    if render is not None:
        check_rendering(config.env, config.env_arguments, render)
    options: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "command": command, "reports": reports}
    result = run_classical(config, progress=Progress(quiet=quiet), **options)
    agent = result.agents[0]
    try:
        if render == "text":
            show_text(agent, Console(stderr=as_json).out)
        elif render == "video":
            video = record_video(agent, result.folder)
            Console(stderr=as_json).print(f"video   {video}", markup=False, highlight=False, soft_wrap=True)
    except ReinlmError as error:
        saved = f"the run is saved in {result.folder}"
        raise type(error)(error.message, hint=f"{error.hint}; {saved}" if error.hint else saved) from error
    if not as_json:
        _show(result.summary, agent, result.folder)
    return result


def _tree(given: Mapping[str, Any], words: Sequence[str], resume: bool) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    if resume:
        if "output" not in given:
            raise InputError("--resume needs the run's folder", hint="add --output runs/NAME")
        saved = Path(given["output"]) / "config.yaml"
        tree = read_recipe(saved) if saved.is_file() else {}
    if is_recipe(given.get("algorithm")):
        tree = merge(tree, read_recipe(given["algorithm"]))
        given = {key: value for key, value in given.items() if key != "algorithm"}
        if given.keys() & {"steps", "episodes"}:  # one budget replaces the other
            tree = {key: value for key, value in tree.items() if key not in ("steps", "episodes")}
    tree = merge(tree, given)
    if "algorithm" not in tree:
        raise InputError("which algorithm?", hint=f"{command_line('classical', '--list')} shows what there is")
    if not isinstance(tree["algorithm"], str):
        raise InputError(
            f"algorithm: {tree['algorithm']!r:.60} is no name of a classical algorithm",
            hint="a recipe with model and data is one of the verb rl",
        )
    for word in (tree["algorithm"], *words):
        if "=" not in word and word in gymnasium.registry:
            raise InputError(f"{word!r} is an environment, not an algorithm or a setting", hint=f"write --env {word}")
    if (Path(tree["algorithm"]) / "config.yaml").is_file():
        raise InputError(
            f"{tree['algorithm']} is a run folder, not an algorithm",
            hint=f"its recipe is {Path(tree['algorithm']) / 'config.yaml'}",
        )
    find(tree["algorithm"])
    if "env" not in tree:
        raise InputError("in which environment?", hint="add --env, such as --env CartPole-v1 or --env FrozenLake-v1")
    if "=" in tree["algorithm"]:
        raise InputError(f"{tree['algorithm']!r} is a setting; the algorithm comes first")
    kind = find(tree["algorithm"])
    settings: dict[str, Any] = {}
    for word in words:
        changed = apply_overrides({}, [word])
        inner = changed.pop("env", {})
        if inner and not isinstance(inner, Mapping):
            raise InputError(f"{word!r}: an argument of the environment is env.NAME=value; its id is --env")
        _refuse_misplaced(kind, tree["env"], word)
        settings = merge(settings, changed)
        tree = merge(tree, {"env_arguments": inner} if inner else {})
    before = settings_of(kind, None, tree.get("settings") or {})
    return {**tree, "settings": {**before, **settings_of(kind, None, settings, before)}}


def _refuse_misplaced(kind: type[Agent], env: Any, word: str) -> None:
    """Raise InputError for an argument of the environment among the settings of the algorithm."""
    name = word.partition("=")[0]
    if name not in kind.Settings.model_fields and name in arguments_of(env):
        raise InputError(f"{name} is an argument of {env}, not a setting of {kind.name}", hint=f"write env.{word}")


def is_recipe(word: Any) -> bool:
    """Whether the first word is a YAML file and not an algorithm."""
    return isinstance(word, str) and word.endswith((".yaml", ".yml"))


_SHOWN_STATES = 100
"""States whose values are printed."""


def _values(agent: Agent, *, drawn: bool) -> list[str]:
    """Lines on the values: whose policy's they are, those that no picture shows, and the limit of steps that a model lacks."""
    lines = []
    if isinstance(agent, TD):
        lines.append("V, the value of the policy that was followed: every legal action with the same probability")
        shown = [] if drawn else [f"{state}: {value:.3f}" for state, value in enumerate(agent.v[:_SHOWN_STATES])]
        lines += ["  ".join(shown[start : start + 10]) for start in range(0, len(shown), 10)]
        if not drawn and agent.states > _SHOWN_STATES:
            lines.append(f"… and {agent.states - _SHOWN_STATES} further states")
    if isinstance(agent, Planner) and agent.env.spec is not None and agent.env.spec.max_episode_steps is not None:
        lines.append(
            f"the start is worth {agent.start_value():.3f} in the model, which has no limit of steps; "
            f"{agent.env_name} ends an episode after {agent.env.spec.max_episode_steps} steps, so that its returns may be lower"
        )
    return lines


def _show(summary: Mapping[str, Any], agent: Agent, folder: Path) -> None:
    console = Console()
    title = f"{summary['algorithm']} in {summary['env']}: {summary['seeds']} seed{'s' if summary['seeds'] > 1 else ''}"
    several = summary["seeds"] > 1
    table = Table("", "mean", *(["std over seeds"] if several else []), title=title)
    last = f"last {RECENT}" if min(run["episodes"] for run in summary["runs"]) >= RECENT else "all"
    for label, name, std in (
        (f"online return, {last} episodes", "mean_return", "std_return"),
        ("greedy return", "greedy_return", "greedy_return_std"),
    ):
        if summary[name] is not None:
            table.add_row(label, f"{summary[name]:.3f}", *([f"{summary[std]:.3f}"] if several else []))
    table.add_row("steps of the environment", f"{summary['steps']:,}")
    table.add_row("episodes", f"{summary['episodes']:,}")
    table.add_row("seconds, all seeds", f"{summary['seconds']:.1f}")
    console.print(table)
    drawn = picture(agent)
    if drawn is not None:
        console.print(drawn.text(), markup=False, highlight=False, soft_wrap=True)
    for line in _values(agent, drawn=drawn is not None):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    policy = folder / "seeds" / str(agent.seed) / "checkpoints" / "last"
    console.print(f"policy  {policy}", markup=False, highlight=False, soft_wrap=True)
