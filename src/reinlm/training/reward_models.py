"""How a learned reward reads what the policy writes: by its tokens or its text, in which chat template, within which context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reinlm.data import build_renderer
from reinlm.errors import InputError
from reinlm.models import ModelConfig, Policy
from reinlm.models.loading import load_tokenizer, stated_context
from reinlm.records import Task
from reinlm.rewards import RewardConfig
from reinlm.rewards.spec import read_spec
from reinlm.training.config import RLConfig


def reading_notes(config: RLConfig, policy: Policy, tasks: Sequence[Task]) -> list[str]:
    """What a user should know of the reward models of a run: another tokenizer, another chat template, prompts that are cut.

    Raises InputError where an answer may be longer than a reward model's context.
    """
    notes: dict[str, None] = {}
    for rewards in (config.reward, config.scores_evaluation):
        for path in _paths(rewards):
            notes |= dict.fromkeys(_of_model(path, config, policy, tasks))
    return list(notes)


def _paths(rewards: RewardConfig | None) -> list[Any]:
    sources = [choice.source for choice in read_spec(rewards.functions)] if rewards is not None else []
    return [source.options["path"] for source in sources if source is not None and source.function == "model"]


def _of_model(given: Any, config: RLConfig, policy: Policy, tasks: Sequence[Task]) -> list[str]:
    model = ModelConfig(path=given)
    path = model.path
    tokenizer = load_tokenizer(model)
    template = tokenizer.chat_template
    if not policy.tokenizer.get_vocab().items() <= tokenizer.get_vocab().items():
        how = "with its own chat template" if template is not None else "without a chat template"
        return [f"reward model {path} has another tokenizer than the policy: it scores answers by their text, {how}"]
    notes = []
    if template != policy.tokenizer.chat_template:
        what = "has no chat template, and the policy has one" if template is None else "has another chat template"
        notes.append(
            f"reward model {path} {what}: it scores prompts and answers as the policy renders them, as it has the same tokens"
        )
    limit, longest = stated_context(model), config.rollout.longest
    if limit is None:
        return notes
    if longest >= limit:
        raise InputError(
            f"reward model {path} reads {limit} tokens, and an answer of rollout.max_new_tokens {longest} would not fit",
            hint=f"set rollout.max_new_tokens below {limit}, or take a reward model with a longer context",
        )
    if policy.context_length is None or limit < policy.context_length:
        renderer = build_renderer(config.data, policy.tokenizer)
        cut = sum(len(renderer.prompt(task.content, task.id)) + longest > limit for task in tasks)
        if cut:
            notes.append(
                f"reward model {path} reads {limit} tokens: with the longest answers {cut} of {len(tasks)} prompts lose their "
                "beginning there (rewards/NAME/logged/cut says how many did)"
            )
    return notes
