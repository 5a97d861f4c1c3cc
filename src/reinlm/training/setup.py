"""Helpers of the training verbs: folders, seeds, number of steps, phase timing."""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reinlm.config import differences, merge, read_recipe, redact
from reinlm.display import cut
from reinlm.errors import InputError
from reinlm.loop import Callback, LoopSettings, build_trackers, check_callbacks
from reinlm.models import ModelConfig, Policy, load_policy
from reinlm.models.saving import ADAPTER
from reinlm.recipe import loaded_from, resolved_of
from reinlm.rollouts import Sampling
from reinlm.runs import RunFolder
from reinlm.runs.checkpoints import load_step, newest_checkpoint
from reinlm.runs.files import stamped_folder
from reinlm.runs.folder import CHECKPOINTS
from reinlm.training.config import RunVerbConfig
from reinlm.training.dumping import dump_defaults
from reinlm.training.gold import TRIGGERS, GoldWatch
from reinlm.training.in_force import same_parts, spelled_out
from reinlm.training.sections import TrainingConfig

MAY_CHANGE = (
    *("run", "imports", "resolved", "training.micro_batch_tokens", "training.logprob_chunk"),
    *("training.steps", "training.epochs", "evaluation.every", "evaluation.stop_at", "evaluation.patience"),
    *(
        f"reward.{name}"
        for name in ("time_limit", "workers", "on_reward_error", "retries", "retry_delay", "one_by_one")
    ),
    *("reward.concurrency", "reward.max_failed_steps"),
    *(f"gold.{name}" for name in TRIGGERS),
    "evaluation.data.+",
)
"""Keys that a resumed run may change: where it is kept, what moves no result beyond rounding, how long it goes on, what becomes
of rewards that fail, when a fallen gold score is told, and further evaluation sets."""
_OF_EVALUATION = ("samples", "temperature", "top_p", "top_k", "max_new_tokens")


def may_change(config: RunVerbConfig, *, resume: bool) -> tuple[str, ...]:
    """What a run may change where it is resumed: how it is evaluated too, if it had no evaluation set so far."""
    file = Path(config.run.output or "") / "config.yaml"
    if not resume or not file.is_file() or (read_recipe(file).get("evaluation") or {}).get("data"):
        return MAY_CHANGE
    return (*MAY_CHANGE, *(f"evaluation.{name}" for name in _OF_EVALUATION))


def resumed_with(path: Path, config: RunVerbConfig, tree: Mapping[str, Any], total: int) -> list[str]:
    """What differs from the run that is resumed, one line each: its length with what that means for schedules, the rest as
    `evaluation.every: 0 -> 10`. `tree` is what its config.yaml would hold."""
    newest, _ = newest_checkpoint(path / CHECKPOINTS)
    done = load_step(newest) if newest is not None else 0
    old = read_recipe(path / "config.yaml")
    before = merge(dump_defaults(type(config)), old)
    if before["training"].get("steps") is not None:
        del before["training"]["epochs"]  # it has no effect beside steps, and `tree` does not have it
    changed = differences(same_parts(spelled_out(before), tree), redact(tree))
    own = ("run", "resolved", "imports", "training.steps", "training.epochs")
    lines = [line for line in changed if not any(line.startswith((f"{key}:", f"{key}.")) for key in own)]
    sets = tree["evaluation"]["data"]
    added = {f"evaluation.data.{name}: None ": name for name in sets}
    said = []
    for line in lines:
        name = next((name for start, name in added.items() if line.startswith(start)), None)
        what = line if name is None else f"a further evaluation set: {name} ({cut(str(sets[name]['path']), 100)})"
        said.append(f"resumed after step {done} with {what}")
    if any(line.startswith(("training.steps:", "training.epochs:")) for line in changed):
        moving = _schedules(config)
        effect = (
            "no schedule of optimizer or rollout depends on it, so that the steps are those of a run of that length"
        )
        if moving:
            effect = f"{' and '.join(moving)} from here on as in a run of that length, which differs from the steps made so far"
        if (tree.get("rollout") or {}).get("async_level") and before["training"].get("steps") == done:
            effect += f"; but step {done + 1} samples from the weights as they are, as no batch was sampled beside step {done}"
        said.insert(0, f"resumed after step {done}, to go on to step {total}: {effect}")
    return said


def _schedules(config: RunVerbConfig) -> list[str]:
    """What moves with the length of the run."""
    found = []
    if config.optimizer.schedule != "constant":
        found.append(f"the learning rate goes ({config.optimizer.schedule})")
    for name in ("temperature", "max_new_tokens"):
        if getattr(getattr(config, "rollout", None), f"{name}_end", None) is not None:
            found.append(f"rollout.{name} goes")
    return found


def as_begun(config: RunVerbConfig, tree: dict[str, Any]) -> dict[str, Any]:
    """`tree` of a run that is resumed, with the model in the words of its config.yaml where both mean the same one: the file goes
    on saying whether the run began from a path or from a loaded model."""
    file = Path(config.run.output or "") / "config.yaml"
    saved = (read_recipe(file).get("model") or {}).get("path") if file.is_file() else None
    path = tree["model"]["path"]
    return tree if not saved or loaded_from(saved) != loaded_from(path) else merge(tree, {"model": {"path": saved}})


def checkpoint_policy(
    path: Path,
    config: ModelConfig,
    why_start: str | None,
    load: Callable[[ModelConfig], Policy] = load_policy,
) -> Policy:
    """The model of a resumed run that began from a loaded one: that of its newest checkpoint, in its dtype.

    Args:
        path: the run's folder.
        config: the run's own, whose path names no folder.
        why_start: what needs the model as it was before training; None where nothing does.
        load: reads a checkpoint.

    Raises:
        InputError: where the checkpoint does not suffice: something needs the start, the model has an adapter, or there is none.
    """
    newest, _ = newest_checkpoint(path / CHECKPOINTS)
    reason = why_start
    if newest is None:
        reason = f"{path} has no checkpoint"
    elif (newest / ADAPTER).is_dir():
        reason = "the checkpoint holds an adapter, and not the model below it"
    if newest is None or reason:
        raise InputError(
            f"model.path was given in Python and is not in the file: {config.path}; {reason}",
            hint="give the model as it was before training again: model=…, or --model PATH",
        )
    policy = load(config.model_copy(update={"path": str(newest), "dtype": "float32"}))
    stored = json.loads((newest / "config.json").read_text(encoding="utf-8")).get("dtype") or "float32"
    policy.model.to(getattr(torch, stored))  # the weights themselves are restored with the run
    return policy


def loop_settings(config: RunVerbConfig, *, samples: bool) -> LoopSettings:
    """What the loop needs to know: runs whose evaluation `samples` answers, or orders judged ones, are judged by accuracy, others
    by their loss."""
    return LoopSettings(
        higher_is_better=samples,
        evaluate_every=config.evaluation.every,
        stop_at=getattr(config.evaluation, "stop_at", None),
        patience=config.evaluation.patience,
        save_every=config.run.save_every,
        keep_last=config.run.keep_last,
    )


def observers(
    config: RunVerbConfig, watches: Sequence[Callback], callbacks: Any, reports: Sequence[Callback]
) -> list[Callback]:
    """The run's trackers, what warns of its figures, the user's callbacks, and what the caller adds, in this order.

    Raises InputError for what cannot be used, before anything is loaded.
    """
    gold = getattr(config, "gold", None)
    scores = [] if gold is None else [GoldWatch(gold, config.evaluation.data)]
    return [*build_trackers(config.run.chosen_trackers), *scores, *watches, *check_callbacks(callbacks), *reports]


def check_folder(config: RunVerbConfig, kind: str, tree: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Path:
    """Refuse a run folder that cannot be used before anything slow happens. `tree` is what its config.yaml would hold."""
    if resume and config.run.output is None:
        raise InputError("--resume needs the run's folder", hint="add --output runs/NAME")
    path = Path(config.run.output) if config.run.output else stamped_folder(kind)
    RunFolder.check(
        path,
        kind=kind,
        config=tree,
        resume=resume,
        overwrite=overwrite,
        may_change=may_change(config, resume=resume),
        defaults=dump_defaults(type(config)),
        spelled_out=lambda saved: same_parts(spelled_out(saved), tree),
    )
    return path


def check_resolved(path: Path, resolved: Mapping[str, Any]) -> None:
    """Raises InputError where a resumed run would read other tokens than it did."""
    saved = resolved_of(read_recipe(path / "config.yaml"))
    for name, value in resolved.items():
        if name in saved and saved[name] != value:
            changed = "; ".join(differences(saved[name], value, name))
            raise InputError(
                f"{path} was made with another {name}: {changed}",
                hint="resume with the packages, the tokenizer and the chat template of the run",
            )


def changed_files(path: Path, files: Mapping[str, str]) -> list[str]:
    """A note where files of parts are others than those that a resumed run was begun with; `files` are those of now."""
    begun = resolved_of(read_recipe(path / "config.yaml")).get("files") or {}
    changed = [file for file, digest in begun.items() if files.get(file, digest) != digest]
    if not changed:
        return []
    have = "has" if len(changed) == 1 else "have"
    return [f"{', '.join(changed)} {have} changed since the run was begun: its parts are those of the file as it is"]


def check_steps(path: Path, total: int) -> None:
    """Raises InputError where a resumed run has made more steps than it is to have."""
    newest, _ = newest_checkpoint(path / CHECKPOINTS)
    done = load_step(newest) if newest is not None else 0
    if done > total:
        raise InputError(
            f"cannot resume {path} with training.steps={total}: {newest} has {done} steps already",
            hint=f"set training.steps to {done} or more, or start another run",
        )


def autocast(config: TrainingConfig, policy: Policy) -> torch.dtype | None:
    """The dtype to compute in, or None for that of the weights."""
    float32 = policy.model.dtype == torch.float32
    if config.autocast == "bfloat16" or (config.autocast == "auto" and float32 and policy.device.type == "cuda"):
        return torch.bfloat16
    return None


def prompt_room(policy: Policy, max_new_tokens: int, key: str) -> int | None:
    """The longest prompt, in tokens, that leaves room for an answer; None where the context has no limit.

    Raises InputError where there is none; it names `key`, which says how long answers may be.
    """
    if policy.context_length is None:
        return None
    room = policy.context_length - max_new_tokens
    if room < 1:
        raise InputError(
            f"{key} {max_new_tokens} leaves no room for a prompt in a context of {policy.context_length} tokens",
            hint=f"set {key} below {policy.context_length}",
        )
    return room


def answer_limit(policy: Policy, sampling: Sampling, key: str, *, given: bool) -> tuple[Sampling, int | None]:
    """The sampling settings, and the longest prompt in tokens (None: no limit), where answers are not trained on.

    A limit of tokens that was not `given` is lowered to what the context holds, and an answer then ends where its context
    ends. Raises InputError, as `prompt_room` does, for a given one that leaves no room for a prompt.
    """
    context = policy.context_length
    if given or context is None:
        return sampling, prompt_room(policy, sampling.max_new_tokens, key)
    room = max(context - 1, 1)
    return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, room)), room


def check_stops(policy: Policy, token_ids: Sequence[int], key: str) -> None:
    """Raises InputError for stop tokens outside the model's vocabulary; `key` is where they are given."""
    vocabulary: int = policy.model.config.get_text_config(decoder=True).vocab_size
    for token in token_ids:
        if token >= vocabulary:
            raise InputError(
                f"{key}: token {token} is outside the model's vocabulary of {vocabulary}",
                hint=f"ids are from 0 up to {vocabulary - 1}",
            )


def seed_everything(seed: int) -> None:
    """Python's, NumPy's and torch's random numbers."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def total_steps(config: TrainingConfig, items: int, per_step: int) -> int:
    """`steps`, or as many as `epochs` passes over the data take."""
    return config.steps or max(1, math.ceil(config.epochs * items / per_step))


TRACED = {"rollout": "sampling", "reward": "rewards"}
"""Phase -> its name in a trace, where that is another one."""


class Phases:
    """Seconds by phase of a step: `time/rollout`, `time/update`, …; in a trace of torch's profiler they have their names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            with torch.profiler.record_function(TRACED.get(name, name)):
                yield
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        finally:
            key = f"time/{name}"
            self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - started
