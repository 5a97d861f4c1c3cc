"""A run: one algorithm in one environment with several seeds, in a run folder that can be resumed and reported on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reinlm.classical.metrics  # declares those of their own
import reinlm.composition.metrics  # noqa: F401  # declares those of critics
from reinlm.classical.agent import BLOCKS, Agent
from reinlm.classical.config import ClassicalConfig
from reinlm.classical.environment_errors import environment_error
from reinlm.classical.evaluation import evaluate
from reinlm.classical.pictures import picture
from reinlm.classical.registry import find
from reinlm.classical.sb3 import settings_of
from reinlm.classical.seeds import summarise, write_mean_curve
from reinlm.classical.stored import STATE, read_description
from reinlm.errors import InputError
from reinlm.importing import refuse_while_importing
from reinlm.loop import Callback, Loop, LoopSettings, StepContext, StepReport, Updated, build_trackers
from reinlm.loop.delivery import send_event
from reinlm.loop.events import Reason, RunEnded
from reinlm.loop.run import ALONE
from reinlm.program import command_line
from reinlm.runs import Checkpoints, Progress, RunFolder, load_state, read_metrics
from reinlm.runs.files import stamped_folder
from reinlm.runs.state import read_state

__all__ = ["ClassicalConfig", "ClassicalResult", "Control", "run_classical"]

SAVES = 10
"""Checkpoints in a run, of which the newest is kept."""


@dataclass(frozen=True)
class ClassicalResult:
    """What a run leaves: its folder, the figures of summary.json, and the agents."""

    folder: Path
    summary: dict[str, Any]
    agents: tuple[Agent, ...]


class Control:
    """The run that the loop drives: an agent, up to so many steps or episodes."""

    kind = "classical"
    version = None

    def __init__(self, agent: Agent, config: ClassicalConfig) -> None:
        self.agent = self.policy = agent
        self.config = config
        agent.begin(config.steps, episodes=config.episodes)
        self.total_steps = agent.goal
        """Of batches the last that fits ends here."""

    def step(self, step: int, context: StepContext = ALONE) -> StepReport:
        metrics = self.agent.advance(step)
        context.send(Updated(self.agent.done, metrics))
        return StepReport(metrics, done=self.agent.done)

    def set_learning_rate(self, value: float) -> None:
        raise InputError("a classical run's learning rate is one of its algorithm's settings and stays as it is")

    def scale_learning_rate(self, factor: float) -> None:
        self.set_learning_rate(factor)

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Greedy episodes, once all is learned."""
        if step < self.total_steps:
            return {}, []
        found = evaluate(self.agent, episodes=self.config.evaluation_episodes)
        return {"eval/greedy/return": found.mean_return, "eval/greedy/return_std": found.std_return}, []

    def save(self, folder: Path) -> None:
        self.agent.save(folder)

    def restore(self, folder: Path) -> None:
        self.agent.load_state_dict(read_state(folder, STATE))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def run_classical(
    config: ClassicalConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    command: str = "",
    reports: Sequence[Callback] = (),
    **others: Any,
) -> ClassicalResult:
    """Learn with every seed, and write the folder: `seeds/N/` with metrics and checkpoints of each, the mean curve, summary.json.

    `reports` get `RunEnded` when the whole of it has ended, however it ends. Raises InputError for what cannot be run, before
    anything is written.
    """
    refuse_while_importing("run_classical")
    for name in others:
        known = name in ClassicalConfig.model_fields
        raise InputError(
            f"run_classical has no {name}",
            hint=f"write ClassicalConfig({name}=…)"
            if known
            else "it has resume, overwrite, progress, command and reports",
        )
    if not isinstance(config, ClassicalConfig):
        raise InputError(
            f"run_classical takes a ClassicalConfig, not {config!r:.60}",
            hint='run_classical(ClassicalConfig(algorithm="ppo", env="CartPole-v1", steps=100_000))',
        )
    progress = progress or Progress(quiet=True)
    path = Path(config.output) if config.output else stamped_folder(config.algorithm)
    config, goal = _resolved(_as_begun(config, path) if resume else config)  # every complaint comes before the folder
    stored = config.model_dump(mode="json")
    create: dict[str, Any] = {
        "kind": "classical",
        "config": stored,
        "may_change": ("output", "tensorboard"),
        "defaults": {"settings": stored["settings"]},
    }
    RunFolder.check(path, **create, resume=resume, overwrite=overwrite)
    create["command"] = command
    with RunFolder.create(path, **create, resume=resume, overwrite=overwrite) as folder:
        seeds = range(config.seed, config.seed + config.seeds)
        if all(_finished(path / "seeds" / str(seed)) is not None for seed in seeds):
            progress.say(f"nothing to do, {path} is finished; a longer run is one of its own, in another folder")
        curves = [path / "seeds" / str(seed) for seed in seeds]
        try:
            results = [_one_seed(config, seed, folder.path, progress, create) for seed in seeds]
        except BaseException as error:
            write_mean_curve(folder.path, curves, goal, _stride(goal))
            reason: Reason = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            theirs = environment_error(error, config.env) if isinstance(error, Exception) else None
            send_event(reports, RunEnded(reason, 0, str(theirs or error), path), error)
            if theirs is not None:
                raise theirs from error
            raise
        write_mean_curve(folder.path, curves, goal, _stride(goal))
        agents = tuple(agent for agent, _ in results)
        summary = summarise(config.algorithm, config.env, [summary for _, summary in results])
        folder.write_summary(summary)
        drawn = picture(agents[0])
        if drawn is not None:
            (path / "picture.svg").write_text(drawn.svg(), encoding="utf-8")
        send_event(reports, RunEnded("finished", summary["steps"], None, path))
    return ClassicalResult(path, summary, agents)


def _agent(config: ClassicalConfig, seed: int) -> Agent:
    kind = find(config.algorithm)
    settings = settings_of(kind, None, config.settings)
    agent = kind(config.env, seed=seed, env_arguments=config.env_arguments, **settings)
    agent.begin(config.steps, episodes=config.episodes)
    return agent


def _resolved(config: ClassicalConfig) -> tuple[ClassicalConfig, int]:
    """With all settings of the algorithm; and the steps or episodes that a seed reaches.

    Raises InputError for what cannot be run.
    """
    agent = _agent(config, config.seed)
    return config.model_copy(update={"settings": agent.settings.model_dump(mode="json")}), agent.goal


def _stride(goal: int) -> int:
    """Steps or episodes from one line of metrics to the next, or fewer at the end."""
    return max(goal // BLOCKS, 1)


def _as_begun(config: ClassicalConfig, folder: Path) -> ClassicalConfig:
    """With the settings of the newest checkpoint for those that are not given: defaults may have been others then."""
    newest = next(iter(sorted(folder.glob("seeds/*/checkpoints/last"))), None)
    if newest is None:
        return config
    given = settings_of(find(config.algorithm), None, config.settings)
    return config.model_copy(update={"settings": {**read_description(newest)["settings"], **given}})


def _one_seed(
    config: ClassicalConfig, seed: int, folder: Path, progress: Progress, create: Mapping[str, Any]
) -> tuple[Agent, dict[str, Any]]:
    """Learn with one seed, or take what is there of it where the run is resumed."""
    path = folder / "seeds" / str(seed)
    agent = _agent(config, seed)
    done = _finished(path)
    if done is not None:
        load_state(done)  # refuses a checkpoint of another version
        agent.load_state_dict(read_state(done, STATE))
        return agent, json.loads((path / "summary.json").read_text(encoding="utf-8"))
    run = Control(agent, config)
    stride = _stride(run.total_steps)
    settings = LoopSettings(
        higher_is_better=True,
        stride=stride,
        evaluate_every=0,
        save_every=stride * (BLOCKS // SAVES) if run.total_steps >= BLOCKS else 0,
        keep_last=1,
        resume_command=command_line("classical", "--resume", "--output", folder),
    )
    trackers = build_trackers(["tensorboard"] if config.tensorboard else [])
    with RunFolder.create(path, **create, resume=(path / "run.json").is_file()) as inner:
        result = Loop(run, settings, inner, progress, trackers).run()
        greedy = read_metrics(path / "metrics.jsonl")[-1]
        summary = {
            "seed": seed,
            "steps": agent.steps,
            "episodes": len(agent.episodes),
            "online_return": agent.episodes.recent(),
            "greedy_return": greedy["eval/greedy/return"],
            "greedy_return_std": greedy["eval/greedy/return_std"],
            "seconds": result.summary["train_seconds"],
            **_selected(agent),
        }
        inner.write_summary(summary)
    return agent, summary


def _finished(path: Path) -> Path | None:
    """The last checkpoint of a seed that has learned all and was evaluated; None of any other."""
    summary = path / "summary.json"
    if not summary.is_file() or "greedy_return" not in json.loads(summary.read_text(encoding="utf-8")):
        return None
    return Checkpoints(path / "checkpoints", keep_last=1, keep_best=None).newest()


def _selected(agent: Agent) -> dict[str, Any]:
    """Which weights were kept, and the steps of the environment that it took to find out; empty without `eval_freq`."""
    kept = getattr(agent, "kept", None)
    if kept is None:
        return {}
    return {"kept_step": kept.step, "kept_return": kept.mean_return, "evaluation_steps": agent.evaluation_steps}  # type: ignore[attr-defined]
