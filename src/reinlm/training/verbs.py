"""The verb `generate`, which does not train."""

from __future__ import annotations

import contextlib
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
from reinlm.objectives import best_of_n_kl
from reinlm.records import Message, ScoredGroup
from reinlm.rewards import TrainerState
from reinlm.rollouts import sample_groups
from reinlm.rollouts.unrewarded import check_rewarded
from reinlm.training.choosing import Chosen, choose
from reinlm.training.computing import Computing
from reinlm.training.config import GenerateConfig
from reinlm.training.episodes import EpisodeSetup, open_rewards, resolve_environment
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
    rewards: tuple[float | None, ...] = ()
    """The reward of each, where one was chosen by it."""
    votes: tuple[int, ...] = ()
    """How many of `majority_vote` answers say the same as each."""

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
    size, vote = config.chosen_from, config.majority_vote is not None
    with contextlib.ExitStack() as stack:
        rewards = open_rewards(config.reward, stack)
        if rewards is not None:
            rewards.check(tasks.items)
        stack.enter_context(Computing.chosen(policy.model).in_force())
        state = TrainerState(evaluating=True)
        count = config.samples * size
        sampled = sample_groups(episodes, tasks.items, group_size=count, tag="generate", rewards=rewards, state=state)
        if config.best_of is not None:
            check_rewarded("generate", sampled.groups, sampled.messages, functions=True)
            say(
                f"best of {size} by {' + '.join(rewards.names if rewards else ())}: at most {best_of_n_kl(size):.2f} nats an "
                "answer from the model, log n - (n - 1)/n"
            )
        for name, text in sampled.messages.items():
            say(f"note: reward {name}: {text}")
        return Answers(_generated(scored, choose(scored, size, rewards, vote=vote)) for scored in sampled.groups)


def _generated(scored: ScoredGroup, chosen: Sequence[Chosen]) -> Generated:
    rollouts = [scored.group.rollouts[one.place] for one in chosen]
    return Generated(
        prompt=scored.group.task.content,
        completions=tuple(_text(rollout.completion) for rollout in rollouts),
        ends=tuple(rollout.reason for rollout in rollouts),
        failed=tuple(rollout.failed for rollout in rollouts),
        rewards=tuple(one.reward for one in chosen) if any(scored.events) else (),
        votes=tuple(one.votes for one in chosen if one.votes is not None),
    )


def _of_prompts(error: InputError) -> InputError:
    """What is wrong with rows of data, said of `prompts`, which has no options for data."""
    cause = error.__cause__
    hint = cause.hint if isinstance(cause, BadRow) else (error.hint or "").partition(", or set data.on_long_prompt")[0]
    return InputError(re.sub(r"\bdata(?=\[\d+\]|: )", "prompts", error.message), hint=hint or None)


def _text(completion: str | Sequence[Message]) -> str:
    return completion if isinstance(completion, str) else "".join(str(message["content"]) for message in completion)
