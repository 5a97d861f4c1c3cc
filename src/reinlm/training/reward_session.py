"""The trainer of reward models without its arguments: what it reads, checks and hands to the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reinlm.data import DataConfig, Examples, Judged, load_examples, load_judged
from reinlm.data.loading import Found, find_rows, refuse_order
from reinlm.data.preferences import find_judged
from reinlm.data.rows import counted
from reinlm.errors import InputError
from reinlm.loop import Callback, Control, Evaluated, RunStarted
from reinlm.models import ModelConfig, Policy, RewardModel, new_reward_model
from reinlm.models.reward_model import classifier_policy
from reinlm.rewards import RewardSet
from reinlm.runs import Progress
from reinlm.runs.files import write_json
from reinlm.runs.folder import HELD_OUT_FILE
from reinlm.training.base_session import Session
from reinlm.training.inputs import Inputs, say_judged
from reinlm.training.reward_config import RewardModelConfig
from reinlm.training.reward_loss import learnable, settled_loss
from reinlm.training.reward_training import RewardRun


class RewardInputs(Inputs):
    """The judged rows of a run, and the answers to normalise by.

    Raises InputError for data, columns or rows that cannot be used.
    """

    def __init__(self, config: RewardModelConfig) -> None:
        self.found = find_judged(config.data)
        self.held_out = {name: find_judged(data) for name, data in config.evaluation.data.items()}
        for name, data in config.evaluation.data.items():
            refuse_order(data, f"evaluation.data.{name}")
        settings = config.normalize
        self.reference: Found | None = None
        if settings is not None and settings.path is not None:
            self.reference = find_rows(DataConfig(path=settings.path), "example")

    def load(
        self, config: RewardModelConfig, policy: Policy, rewards: RewardSet | None, progress: Progress
    ) -> tuple[Judged, dict[str, Judged], Examples | None]:
        """The judged answers, those of each evaluation set, and the reference set where one is named."""
        limit = config.max_tokens or policy.context_length
        judged = load_judged(config.data, policy.tokenizer, max_tokens=limit, found=self.found)
        say_judged(progress, "data", judged)
        check_heads(config, judged)
        judged, told = learnable(config.loss, judged)
        for text in told:
            progress.say(f"note: {text}")
        sets: dict[str, Judged] = {}
        for name, data in config.evaluation.data.items():
            sets[name] = load_judged(data, policy.tokenizer, max_tokens=limit, found=self.held_out[name])
            say_judged(progress, f"evaluation.data.{name}", sets[name])
        for name, one in sets.items():
            if one.kind != judged.kind:
                raise InputError(f"evaluation.data.{name} holds {one.kind}, and the training data {judged.kind}")
            if list(one.ratings) != list(judged.ratings):
                raise InputError(
                    f"evaluation.data.{name} rates {', '.join(one.ratings)}, and the training data {', '.join(judged.ratings)}",
                    hint="name the same criteria, in data.ratings and evaluation.data.NAME.ratings",
                )
        reference = None
        if config.normalize is not None and config.normalize.path is not None:
            names = ("chat", "chat_template_kwargs", "renderer", "system_prompt", "settled")
            rendering = {name: getattr(config.data, name) for name in names if hasattr(config.data, name)}
            answers = DataConfig(path=config.normalize.path).model_copy(update=rendering)
            reference = load_examples(answers, policy.tokenizer, max_tokens=limit, found=self.reference)
        return judged, sets, reference


class RewardSession(Session):
    """Learning a reward model from judged answers; see `reinlm.reward` for what it takes."""

    kind = "reward"
    config: RewardModelConfig
    run: RewardRun

    def _check(self) -> None:
        if self.config.data.slices:
            raise InputError(
                f"data.slices {self.config.data.slices} has no effect: figures are reported of evaluation sets",
                hint="set evaluation.data.NAME.slices",
            )
        for name in ("rollouts_every", "rollouts_max"):
            if self.config.run.changed(name) and self.config.run.rollouts_every:
                raise InputError(
                    f"run.{name} has no effect: reward has no rollouts to write", hint=f"leave run.{name} out"
                )

    def _read(self) -> RewardInputs:
        return RewardInputs(self.config)

    def _load(self, model: Any) -> Policy:
        config = self.config.model
        if model is None and config.dtype == "auto":
            config = config.model_copy(update={"dtype": "float32"})
        return classifier_policy(config if model is None else model)

    def _load_config(self, config: ModelConfig) -> Policy:
        return classifier_policy(config)

    def _make(self, loaded: tuple[Judged, dict[str, Judged], Examples | None]) -> RewardRun:
        judged, held_out, reference = loaded
        config = self.config
        criteria = tuple(judged.ratings) or ("reward",)
        heads = config.head.heads(criteria, steps=judged.steps is not None)
        reward = new_reward_model(self.policy, heads, seed=config.seed, packing=config.training.packing)
        self.samples = judged.kind != "ratings"
        run = RewardRun(config, reward, judged, held_out, reference, self._order, self.progress.say)
        self._observers.insert(0, _Tables(run))
        self.progress.say(f"reward: {run.loss.name} of {counted(len(judged), judged.kind)}, {_heads(reward)}")
        if heads.pooling == "mean":
            self.notes.append(
                "head.pooling mean: transformers and TRL read the last token of this model, which scores otherwise there"
            )
        for text in self.notes:
            self.progress.say(f"note: {text}")
        return run


class _Tables(Callback):
    """Writes `held_out.json` after each evaluation."""

    def __init__(self, run: RewardRun) -> None:
        self._run = run
        self._folder: Path | None = None

    def on_run_started(self, event: RunStarted, control: Control) -> None:
        self._folder = event.folder

    def on_evaluated(self, event: Evaluated, control: Control) -> None:
        if self._folder is not None:
            write_json(self._folder / HELD_OUT_FILE, self._run.tables)


def _heads(reward: RewardModel) -> str:
    heads = reward.heads
    criteria = len(heads.criteria)
    count = f"{heads.members} x {criteria}" if heads.members > 1 and criteria > 1 else str(heads.members * criteria)
    noun = "head" if heads.members * criteria == 1 else "heads"
    return f"{count} {noun} ({', '.join(heads.criteria)}), read at {heads.pooling}"


def check_heads(config: RewardModelConfig, judged: Judged) -> None:
    """Raises InputError for settings of heads, length or a loss that these data cannot follow."""
    settled_loss(config.loss, judged)
    if config.head.weights is not None and set(config.head.weights) != set(judged.ratings):
        raise InputError(
            f"head.weights names {', '.join(config.head.weights)}, and the data rate {', '.join(judged.ratings) or 'nothing'}",
            hint="give each criterion of the data its weight",
        )
    length = config.training.length
    if length == "balanced" and (judged.sizes < 2).any():
        raise InputError(
            f"training.length balanced balances pairs, and the data hold {judged.kind}", hint="leave it out"
        )
    if length == "balanced" and config.data.weights is not None:
        raise InputError("training.length balanced has an order of its own beside data.weights", hint="leave one out")
    if judged.steps is not None:
        if length != "ignore":
            raise InputError(f"training.length {length} has no effect on steps", hint="leave it out")
        if config.head.pooling == "mean":
            raise InputError(
                "head.pooling mean has no effect on steps, which are read at their ends", hint="leave it out"
            )
        if config.changed("normalize") and config.normalize is not None:
            raise InputError("normalize has no effect on steps, whose scores are logits", hint="leave normalize out")
