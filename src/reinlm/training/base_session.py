"""What the trainers of the verbs that train share: load data and models of a run, then run it stepwise or completely."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from reinlm.algorithms import Algorithm
from reinlm.data import build_renderer
from reinlm.data.loading import row_order
from reinlm.environments import MakeEnvironment
from reinlm.errors import InputError
from reinlm.loop import Callback, Loop, RunResult
from reinlm.models import ModelConfig, Policy, TokenModel, load_policy
from reinlm.models.heads import unwrap
from reinlm.models.matmul import has_bfloat16
from reinlm.places import checkpoint_note
from reinlm.recipe import is_model_placeholder, read_run, resolved_of
from reinlm.records import Task
from reinlm.rollouts import EpisodeConfig
from reinlm.rollouts.config import SamplesAnswers
from reinlm.runs import Progress, RunFolder
from reinlm.runs.ledger import Entry, console_lines, to_json
from reinlm.runs.progress import silenced
from reinlm.sources import Key
from reinlm.training.computing import Computing
from reinlm.training.config import RunVerbConfig
from reinlm.training.dumping import dump_defaults
from reinlm.training.episodes import EpisodeSetup, open_rewards
from reinlm.training.evaluation import Evaluator, evaluation_sampling
from reinlm.training.in_force import given_lines, same_parts, settings_tree, source_files, spelled_out, value_sources
from reinlm.training.inputs import Inputs
from reinlm.training.ledger import Resident, ledger, rewards_of
from reinlm.training.policy import training_policy
from reinlm.training.prompts import RunPrompts, first_prompt, prompt_line, settle_run
from reinlm.training.setup import (
    as_begun,
    autocast,
    changed_files,
    check_folder,
    check_resolved,
    check_steps,
    checkpoint_policy,
    loop_settings,
    may_change,
    observers,
    resumed_with,
    seed_everything,
)

_THERE = {
    "save_model": "save() writes a checkpoint, and reinlm.save_policy(trainer.policy, FOLDER) the model alone",
    "push_to_hub": "nothing is uploaded: checkpoints/last is a Hugging Face folder that `hf upload` takes",
    "model": "the model is trainer.policy.model",
    "tokenizer": "the tokenizer is trainer.policy.tokenizer",
    "processing_class": "the tokenizer is trainer.policy.tokenizer",
    "add_callback": "give callbacks=[…] when the trainer is made",
    "learn": "train() runs it to its end",
    "predict": "reinlm.generate(trainer.policy, prompt=…) answers",
    "args": "the settings are trainer.config",
    "state": "step() returns the metrics of a step, and metrics.jsonl in trainer.path holds all of them",
}
"""What trainers of TRL and transformers have -> what to use."""


class Session(ABC):
    """A run that is loaded and ready: `train()` runs it to its end, `step()` makes one step of it.

    What needs no model is checked before a model is loaded; the run's folder is made by the first step. Use it as a context
    manager, or call `close()`, where it is not run to its end. A step that raises closes it.

    Args:
        config: all that is configured.
        model: a loaded model, or (model, tokenizer), in place of `config.model`.
        callbacks: the user's, in the order in which they are called.
        reports: further callbacks, after them.
        resume: go on from the newest checkpoint in the run's folder.
        overwrite: start again in an existing folder.
        sources: what gave the values of `config`, by key, for config.yaml and the console.
    """

    kind: str
    config: RunVerbConfig
    run: Any
    """What the loop drives."""
    algorithm: Algorithm | None = None
    samples = True
    """Whether evaluation gives an accuracy, as of sampled answers; otherwise it measures a loss."""

    def __init__(
        self,
        config: RunVerbConfig,
        *,
        model: Any = None,
        callbacks: Sequence[Callback] = (),
        reports: Sequence[Callback] = (),
        command: str = "",
        resume: bool = False,
        overwrite: bool = False,
        progress: Progress | None = None,
        sources: Mapping[Key, str] | None = None,
    ) -> None:
        self.config = config
        self.sources = dict(sources or {})
        """What gave the values of `config`, by key."""
        self.progress = progress or Progress(quiet=True)
        self.notes: list[str] = []
        """What a user should know of the run: in the console, run.json and the report."""
        self._loop: Loop | None = None  # before the folder is made
        self._stack = contextlib.ExitStack()
        self._running = ""
        """Which of the public methods is running; empty between two calls."""
        self._closed = False
        self._result: RunResult | None = None
        self._observers = observers(config, self._watches(), callbacks, reports)
        self._check()
        self.resumed = resume
        allowed = may_change(config, resume=resume)
        tree = settings_tree(config, self.algorithm)
        if resume:
            tree = as_begun(config, tree)
        self.path = check_folder(config, self.kind, tree, resume=resume, overwrite=overwrite)
        """The run's folder."""
        if model is None and is_model_placeholder(config.model.path):
            model = checkpoint_policy(self.path, config.model, self._why_start(), self._load_config)
        inputs: Any = self._read()
        for line in given_lines(self.sources, tree, read_run(self.path) if resume else None):
            self.progress.say(line)
        if model is None and (note := checkpoint_note(config.model.path)):
            self.progress.say(note)
        seed_everything(config.seed)
        with contextlib.ExitStack() as stack:
            self.rewards = open_rewards(config.scores_answers, stack)
            self.gold = open_rewards(config.scores_evaluation, stack)
            policy = self._load(model)
            self.config, prompts = settle_run(config, policy, inputs.found, inputs.held_out, inputs.text)
            self.policy: Policy = replace(policy, prompt_format=prompts.format)
            load = inputs.load(self.config, self.policy, self.rewards, self.progress)
            self.progress.say(prompt_line(prompts.settled, inputs.found, load[0], self.policy))
            resolved, files = self._resolved(), source_files(tree)
            if resume:
                check_resolved(self.path, resolved)
            items: Any = load[0]
            ids = items.ids if hasattr(items, "ids") else [task.id for task in items]
            self._order = row_order(self.config.data, inputs.found, ids, seed=config.seed)
            self._computing = self._choose_computing()
            with self._computing.in_force():
                self.run = self._make(load)
            self.models = self._count_models()
            self._note_slow_paths(self.run.model)
            if resume:
                check_steps(self.path, self.run.total_steps)
                said = resumed_with(self.path, config, tree, self.run.total_steps) + changed_files(self.path, files)
                self.notes += said
                for text in said:
                    self.progress.say(text)
            self._stack = stack.pop_all()
        self._folder: dict[str, Any] = {
            "kind": self.kind,
            "config": tree | {"resolved": resolved | self._stated(prompts, load[0]) | self._files(files)},
            "sources": value_sources(tree, self.sources) | self._in_force(),
            "defaults": dump_defaults(type(config)),
            "spelled_out": lambda saved: same_parts(spelled_out(saved), tree),
            "command": command,
            "resume": resume,
            "overwrite": overwrite,
            "may_change": allowed,
            "notes": self.notes,
            "models": to_json(self.models),
        }

    @abstractmethod
    def _check(self) -> None:
        """Refuse settings that contradict one another."""

    def _load(self, model: Any) -> Policy:
        """What is trained, from a loaded model or the configured one."""
        return training_policy(self.config.model, model)

    def _load_config(self, config: ModelConfig) -> Policy:
        """A checkpoint of such a run, in place of a loaded model that it began from."""
        return load_policy(config)

    def _watches(self) -> list[Callback]:
        """What warns of figures that this kind of run logs."""
        return []

    def _why_start(self) -> str | None:
        """What needs the model as it was before training; None where nothing does."""
        return None

    def _in_force(self) -> dict[Key, str]:
        """What stands for settings that are null, by path: comments for config.yaml."""
        return {}

    @abstractmethod
    def _read(self) -> Inputs:
        """Read and check what needs no model."""

    @abstractmethod
    def _make(self, loaded: Any) -> Any:
        """What the loop drives."""

    def _note_slow_paths(self, model: TokenModel) -> None:
        """Say once what cannot be computed the fastest way."""
        lm = unwrap(model.lm)
        if model.asked_packing == "auto" and model.packing == "pad":
            self._note(
                f"sequences are padded: {type(lm).__name__} with attention {lm.config._attn_implementation!r} cannot share "
                "prefixes (training.packing); model.attention=sdpa may"
            )
        dtype = autocast(self.config.training, self.policy)
        if dtype == torch.bfloat16 and model.device.type == "cpu" and not has_bfloat16():
            self._note(
                "this processor has no instructions for bfloat16, and computes with training.autocast=bfloat16 more slowly "
                "than without"
            )

    def _count_models(self) -> list[Entry]:
        """The ledger of the models in memory; says it."""
        residents: list[Resident] = self.run.residents()
        for role, rewards in (("reward", self.rewards), ("gold", self.gold)):
            residents += rewards_of(role, rewards.models) if rewards is not None else []
        found = ledger(residents)
        for line in console_lines(found):
            self.progress.say(line)
        return found

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.progress.say(f"note: {text}")

    def _choose_computing(self) -> Computing:
        """What computes the run: chosen now, or that of the run that is resumed."""
        if self.resumed:
            begun = resolved_of(read_run(self.path))
            found = Computing.as_begun(begun, self.policy.model, self.progress.say)
        else:
            found = Computing.chosen(self.policy.model)
        if (line := found.line(self.policy.model)) is not None:
            self.progress.say(line)
        return found

    def _stated(self, prompts: RunPrompts, items: Any) -> dict[str, Any]:
        """What is in force and not checked on resume."""
        shown = {"prompts": prompts.format, "first_prompt": first_prompt(items, self.config.data, self.policy)}
        return (shown if prompts.stated else {}) | {
            "packing": self.run.model.packing,
            **self._computing.to_json(),
            "directory": os.getcwd(),
        }

    def _files(self, files: Mapping[str, str]) -> dict[str, Any]:
        """The files of parts with their hashes, as they were when the run was begun."""
        begun = resolved_of(read_run(self.path)).get("files") if self.resumed else None
        found = {**files, **(begun or {})}
        return {"files": found} if found else {}

    def _resolved(self) -> dict[str, Any]:
        """What is in force beside what was configured, checked on resume."""
        return {"renderer": build_renderer(self.config.data, self.policy.tokenizer).identity}

    @property
    def loop(self) -> Loop:
        """The loop of the run. The first access to it or to `folder` creates the run folder."""
        if self._loop is None:
            self._check_open()
            folder = self._stack.enter_context(RunFolder.create(self.path, **self._folder))
            self._loop = Loop(
                self.run, loop_settings(self.config, samples=self.samples), folder, self.progress, self._observers
            )
        return self._loop

    @property
    def folder(self) -> RunFolder:
        """The run's folder, which this trainer alone writes."""
        return self.loop.folder

    # ------------------------------------------------------------------------------------------ what users call

    def train(self) -> RunResult:
        """Run to the end, also after some steps; a second call returns the same result.

        Raises Interrupted after Ctrl-C or SIGTERM, with everything saved, and InputError where the trainer was closed before
        its end.
        """
        with self._calling("train"):
            if self._result is not None and self.over:
                return self._result
            self._check_open()
            try:
                self._result = self.loop.run()
            finally:
                self._close()
            return self._result

    def step(self) -> Mapping[str, float]:
        """Make one step and return its metrics. The first call evaluates a new run, or restores one that is resumed.

        Raises InputError where no step is left, or the trainer is closed: also by a step that raised.
        """
        with self._calling("step"):
            loop = self._begun()
            if loop.over:
                why = loop.stopped or f"all {self.run.total_steps} steps are made"
                raise InputError(f"there is no step left to make: {why}", hint="ask `over` before `step()`")
            try:
                return loop.step()
            except BaseException:
                self._close()
                raise

    @property
    def over(self) -> bool:
        """Whether no step is left to make. Of a run that is resumed this restores it."""
        if self.resumed and self._loop is None and not self._closed:
            self._begun()
        return self._loop is not None and self._loop.over

    def evaluate(self) -> dict[str, float]:
        """Metrics of the evaluation sets, with the weights as they are; those of its checkpoint in a resumed run."""
        with self._calling("evaluate"):
            self._check_open()
            if self.resumed:
                self._begun()
            metrics, _ = self.run.evaluate(self._done)
            return dict(metrics)

    def save(self) -> Path:
        """Write a checkpoint of the steps made so far, and return its folder."""
        with self._calling("save"):
            return self._begun().save()

    def close(self) -> None:
        """End the run where it is: save it, write its summary and report, end the processes of its rewards.

        Closing twice does nothing.
        """
        with self._calling("close"):
            self._close()

    def _close(self) -> None:
        self._closed = True
        try:
            if self._loop is not None and self._loop.running:
                self._result = self._loop.finish()
        finally:
            self._stack.close()

    @contextlib.contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        """Refuse a call from within another one, as from a callback or a reward function."""
        if self._running:
            raise InputError(
                f"trainer.{method}() was called while trainer.{self._running}() is running",
                hint="a callback asks with control.stop(…); evaluation.every and run.save_every say when to evaluate and save",
            )
        self._running = method
        try:
            with silenced(quiet=self.progress.quiet), self._computing.in_force():
                yield
        finally:
            self._running = ""

    def _begun(self) -> Loop:
        """The loop, started."""
        self._check_open()
        loop = self.loop
        if not loop.running:
            try:
                loop.start()
            except BaseException:
                self._close()
                raise
        return loop

    @property
    def _done(self) -> int:
        return self._loop.done if self._loop is not None else 0

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(
                f"this trainer is closed, after step {self._done} of {self.run.total_steps}",
                hint=f"make a new one with resume=True and output={str(self.path)!r} to go on",
            )

    if not TYPE_CHECKING:  # type checkers know which attributes there are

        def __getattr__(self, name: str) -> Any:
            there = f"; {_THERE[name]}" if name in _THERE else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{there}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ shared parts

    def _setup(
        self, rollout: EpisodeConfig, environment: MakeEnvironment, sampled: Policy | None = None
    ) -> EpisodeSetup:
        """Engine and environment; `sampled` is sampled from in place of the policy."""
        dtype = autocast(self.config.training, self.policy)
        return EpisodeSetup(rollout, environment, sampled or self.policy, seed=self.config.seed, autocast=dtype)

    def _evaluator(
        self,
        setup: EpisodeSetup,
        sets: Mapping[str, Sequence[Task]],
        rollout: SamplesAnswers,
    ) -> Evaluator | None:
        if not sets:
            return None
        settings = self.config.evaluation
        sampling = evaluation_sampling(settings, self.policy.stops, rollout)
        episodes = {name: (setup.episodes(settings.data[name], sampling), tasks) for name, tasks in sets.items()}
        return Evaluator(
            episodes,
            self.rewards,
            samples=settings.samples,
            correct_above=settings.correct_above,
            choosing=settings.choosing,
            gold=self.gold,
            engine=setup.engine,
        )
