"""What a run is given, in two parts: rows and paths are checked before a model is loaded, and tokenised after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reinlm.data import Examples, Judged, load_examples, load_tasks
from reinlm.data.columns import Kind
from reinlm.data.loading import Found, find_rows, refuse_order
from reinlm.data.preference_checks import describe
from reinlm.data.rows import Loaded, counted
from reinlm.errors import InputError
from reinlm.models import Policy
from reinlm.models.loading import check_model_folder
from reinlm.records import Task
from reinlm.rewards import RewardSet
from reinlm.runs import Progress
from reinlm.training.config import RLConfig, RunVerbConfig, SFTConfig
from reinlm.training.dpo_config import DPOConfig
from reinlm.training.rejection.config import RFTConfig
from reinlm.training.rejection.sampling import hinted_task
from reinlm.training.rejection.stored import StoredAnswers, find_stored, load_stored
from reinlm.training.setup import check_stops, prompt_room


class Inputs:
    """The rows of a run.

    Attributes:
        found: those to train on.
        held_out: those of each evaluation set.
        text: the data-set text of rl, where there is any.
    """

    found: Found
    held_out: dict[str, Found]
    text: Found | None = None


class SFTInputs(Inputs):
    """The rows of supervised fine-tuning; `samples` says whether those of its evaluation are prompts or examples.

    Raises InputError for data, columns or rows that cannot be used.
    """

    def __init__(self, config: SFTConfig, *, samples: bool) -> None:
        refuse_orders(config)
        self._samples = samples
        self.found = find_rows(config.data, "example")
        kind: Kind = "prompt" if samples else "example"
        self.held_out = {name: find_rows(data, kind) for name, data in config.evaluation.data.items()}

    def load(
        self, config: SFTConfig, policy: Policy, rewards: RewardSet | None, progress: Progress
    ) -> tuple[Examples, dict[str, Examples], dict[str, Sequence[Task]]]:
        """The examples, and the evaluation sets as examples or as tasks; `config` says how prompts are rendered."""
        tokenizer = policy.tokenizer
        limit = config.max_tokens or policy.context_length
        check_stops(policy, config.rollout.stop_token_ids, "rollout.stop_token_ids")
        examples = load_examples(config.data, tokenizer, max_tokens=limit, found=self.found)
        say_skipped(progress, examples.skipped)
        held_out: dict[str, Examples] = {}
        tasks: dict[str, Sequence[Task]] = {}
        for name, data in config.evaluation.data.items():
            found = self.held_out[name]
            if not self._samples:
                held_out[name] = load_examples(data, tokenizer, max_tokens=limit, found=found)
                continue
            tasks[name] = load_tasks(data, tokenizer, max_prompt_tokens=limit, found=found).items
            if rewards is not None:
                check_set(rewards, name, tasks[name])
        return examples, held_out, tasks


class PromptInputs(Inputs):
    """The prompts of a run that samples answers to them in every step, and the path of its reference.

    Raises InputError for data, columns, rows or a model folder that cannot be used, and for fewer prompts than a batch.
    """

    def __init__(self, config: RLConfig | DPOConfig) -> None:
        refuse_orders(config)
        if config.reference is not None:
            check_model_folder(config.reference.path, "reference.path")
        self.found = find_rows(config.data, "prompt")
        _check_batch(config, len(self.found.rows))
        self.held_out = {name: find_rows(data, "prompt") for name, data in config.evaluation.data.items()}

    def load(
        self, config: Any, policy: Policy, rewards: RewardSet | None, progress: Progress
    ) -> tuple[Sequence[Task], dict[str, Sequence[Task]], Examples | None]:
        """The tasks, the evaluation sets, and no text."""
        longest = config.rollout.longest
        key = "max_new_tokens" if longest == config.rollout.max_new_tokens else "max_new_tokens_end"
        room = prompt_room(policy, longest, f"rollout.{key}")
        check_stops(policy, config.rollout.stop_token_ids, "rollout.stop_token_ids")
        tasks = load_tasks(config.data, policy.tokenizer, max_prompt_tokens=room, found=self.found)
        sets = _evaluation_tasks(config, policy, room, self.held_out)
        if rewards is not None:
            rewards.check(tasks.items)
            for name, items in sets.items():
                check_set(rewards, name, items)
        _check_batch(config, len(tasks.items))
        say_skipped(progress, tasks.skipped)
        return tasks.items, sets, None


class RLInputs(PromptInputs):
    """The rows of reinforcement learning, and the paths of its further models. Raises as `PromptInputs` does."""

    def __init__(self, config: RLConfig) -> None:
        if config.teacher is not None:
            check_model_folder(config.teacher.path, "teacher.path")
        if config.critic is not None and config.critic.path is not None:
            check_model_folder(config.critic.path, "critic.path")
        super().__init__(config)
        self.text = None if config.text is None else find_rows(config.text.data, "example")

    def load(
        self, config: RLConfig, policy: Policy, rewards: RewardSet | None, progress: Progress
    ) -> tuple[Sequence[Task], dict[str, Sequence[Task]], Examples | None]:
        """The tasks, the evaluation sets, and the data-set text where there is any."""
        tasks, sets, text = super().load(config, policy, rewards, progress)
        if config.text is not None:
            limit = policy.context_length
            text = load_examples(config.text.data, policy.tokenizer, max_tokens=limit, found=self.text, key="text.data")
            say_skipped(progress, text.skipped)
        return tasks, sets, text


class RFTInputs(Inputs):
    """The rows of rejection sampling. Raises InputError for data, columns or rows that cannot be used."""

    def __init__(self, config: RFTConfig) -> None:
        refuse_orders(config)
        self.found = find_rows(config.data, "prompt") if config.answers == "model" else find_stored(config.data)
        self.held_out = {name: find_rows(data, "prompt") for name, data in config.evaluation.data.items()}

    def load(
        self, config: RFTConfig, policy: Policy, rewards: RewardSet | None, progress: Progress
    ) -> tuple[Sequence[Task], dict[str, Sequence[Task]], int | None, StoredAnswers | None]:
        """The tasks, the evaluation sets, how many tokens a prompt may have, and the answers that the data hold."""
        check_stops(policy, config.rollout.stop_token_ids, "rollout.stop_token_ids")
        room, stored = policy.context_length, None
        if config.answers == "model" or config.evaluation.data:
            room = prompt_room(policy, config.rollout.max_new_tokens, "rollout.max_new_tokens")
        if config.answers == "data":
            rewarded, context = rewards is not None, policy.context_length
            stored = load_stored(config.data, policy, max_tokens=context, rewarded=rewarded)
            tasks = Loaded(tuple(stored.tasks), stored.skipped)
        else:
            tasks = load_tasks(config.data, policy.tokenizer, max_prompt_tokens=room, found=self.found)
        sets = _evaluation_tasks(config, policy, room, self.held_out)
        if rewards is not None:
            rewards.check(tasks.items)
            for name, items in sets.items():
                check_set(rewards, name, items)
        if config.hint is not None:
            hinted_task(tasks.items[0], config.hint)  # a column that it names and no row has ends the run here
        say_skipped(progress, tasks.skipped)
        return tasks.items, sets, room, stored


def _evaluation_tasks(
    config: RLConfig | RFTConfig | DPOConfig, policy: Policy, room: int | None, held_out: Mapping[str, Found]
) -> dict[str, Sequence[Task]]:
    return {
        name: load_tasks(data, policy.tokenizer, max_prompt_tokens=room, found=held_out[name]).items
        for name, data in config.evaluation.data.items()
    }


def check_set(rewards: RewardSet, name: str, tasks: Sequence[Task], key: str = "") -> None:
    """Raise InputError, with the set's name and the key of the rewards, where a reward needs a column that it lacks."""
    try:
        rewards.check(tasks)
    except InputError as error:
        raise InputError(f"evaluation set {name!r}: {key}{error.message}", hint=error.hint) from error


def refuse_orders(config: RunVerbConfig) -> None:
    """Raise InputError for an order of the rows of evaluation sets, which are read once each."""
    for name, data in config.evaluation.data.items():
        refuse_order(data, f"evaluation.data.{name}")
    if isinstance(config, RLConfig) and config.text is not None:
        refuse_order(config.text.data, "text.data")


def _check_batch(config: RLConfig | DPOConfig, prompts: int) -> None:
    if config.rollout.groups > prompts:
        raise InputError(
            f"a batch of {config.rollout.groups} groups needs as many prompts, and the data hold {prompts}",
            hint="lower rollout.batch_size, raise rollout.group_size, or give more data",
        )


def say_skipped(progress: Progress, skipped: Mapping[str, int]) -> None:
    """Say how many rows were left out, by reason."""
    for line in skipped_lines(skipped):
        progress.say(line)


def skipped_lines(skipped: Mapping[str, int]) -> list[str]:
    """How many rows were left out, a line for each reason."""
    return [f"skipped {counted(count, 'rows')}: {reason}" for reason, count in skipped.items()]


def say_judged(progress: Progress, name: str, judged: Judged) -> None:
    """Say what was left out of judged answers or shortened, and what to know of them before training."""
    say_skipped(progress, judged.skipped)
    if judged.shortened:
        progress.say(f"{name}: left out the beginning of the prompts of {counted(judged.shortened, judged.kind)}")
    for line in describe(judged):
        progress.say(f"{name}, {line}")
