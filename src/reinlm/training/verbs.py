"""The verb `generate`, which does not train."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reinlm.data import DataConfig, load_tasks
from reinlm.data.loading import find_rows
from reinlm.data.prompts import settle
from reinlm.data.rows import BadRow
from reinlm.display import cut, html_table
from reinlm.errors import InputError
from reinlm.records import Message
from reinlm.rollouts import sample_groups
from reinlm.training.computing import Computing
from reinlm.training.config import GenerateConfig
from reinlm.training.episodes import EpisodeSetup, resolve_environment
from reinlm.training.evaluating import load_model, silent
from reinlm.training.evaluation import text_of
from reinlm.training.prompts import prompt_line
from reinlm.training.setup import answer_limit, check_stops


@dataclass(frozen=True)
class Generated:
    """Answers to one prompt."""

    prompt: str | Sequence[Any]
    completions: tuple[str, ...]
    ends: tuple[str, ...]
    """How each episode ended; of a failed one what the error said."""
    failed: tuple[bool, ...] = ()
    """Whether an error of the environment ended it, under `rollout.on_environment_error: skip`."""

    def __str__(self) -> str:
        asked = text_of(self.prompt)
        return "\n".join([cut(asked, 100), *(f"  → {text}" for text in self.completions)])

    def _repr_html_(self) -> str:
        return Answers([self])._repr_html_()


class Answers(list[Generated]):
    """A list of `Generated` that prints as a table: a prompt with its answers below it."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        rows = [
            (str(answers).splitlines()[0] if not number else "", text, end)
            for answers in self
            for number, (text, end) in enumerate(zip(answers.completions, answers.ends, strict=True))
        ]
        return html_table([("prompt", "answer", "end"), *rows])


def run_generation(config: GenerateConfig, *, model: Any = None, say: Callable[[str], None] = silent) -> Answers:
    """Sample answers to prompts. What the verb `generate` calls."""
    environment = resolve_environment(config.environment, config.rollout, None, needs_rewards=False)
    policy = load_model(config.model, model, say)
    rows = [prompt if isinstance(prompt, Mapping) else {"prompt": prompt} for prompt in config.prompts]
    data = DataConfig(path=rows, chat=config.chat, system_prompt=config.system_prompt)
    sampling, room = answer_limit(
        policy,
        config.sampling.sampling(policy.stops),
        "sampling.max_new_tokens",
        given="max_new_tokens" in config.sampling.model_fields_set,
    )
    check_stops(policy, config.sampling.stop_token_ids, "sampling.stop_token_ids")
    try:
        found = find_rows(data, "prompt")
        settled = settle(data, found, policy.tokenizer, policy.prompt_format)
        tasks = load_tasks(settled.config, policy.tokenizer, max_prompt_tokens=room, found=found)
    except InputError as error:
        raise _of_prompts(error) from error
    say(prompt_line(settled, found, tasks.items, policy))
    setup = EpisodeSetup(config.rollout, environment, policy, seed=config.seed)
    episodes = setup.episodes(settled.config, sampling)
    with Computing.chosen(policy.model).in_force():
        sampled = sample_groups(episodes, tasks.items, group_size=config.samples, tag="generate")
    return Answers(
        Generated(
            prompt=scored.group.task.content,
            completions=tuple(_text(rollout.completion) for rollout in scored.group.rollouts),
            ends=tuple(rollout.reason for rollout in scored.group.rollouts),
            failed=tuple(rollout.failed for rollout in scored.group.rollouts),
        )
        for scored in sampled.groups
    )


def _of_prompts(error: InputError) -> InputError:
    """What is wrong with rows of data, said of `prompts`, which has no options for data."""
    cause = error.__cause__
    hint = cause.hint if isinstance(cause, BadRow) else (error.hint or "").partition(", or set data.on_long_prompt")[0]
    return InputError(re.sub(r"\bdata(?=\[\d+\]|: )", "prompts", error.message), hint=hint or None)


def _text(completion: str | Sequence[Message]) -> str:
    return completion if isinstance(completion, str) else "".join(str(message["content"]) for message in completion)
