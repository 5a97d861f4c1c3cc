"""Scoring a model: accuracy with an interval, pass@k, length, and the answers themselves."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from reinlm.config import Config
from reinlm.data import DataConfig
from reinlm.data.frames import named_sets
from reinlm.display import cut, figures, html_table, text_table
from reinlm.environments import is_question
from reinlm.intervals import share_interval
from reinlm.records import RewardEvent, Rollout, ScoredGroup, Task, total, unweighted
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rollouts import Engine, Episodes, EventLoop, Sampling, sample_groups
from reinlm.rollouts.config import SamplesAnswers, check_greedy
from reinlm.rollouts.engines import ready_to_sample
from reinlm.rollouts.groups import Sampled, token_ends_of
from reinlm.rollouts.unrewarded import FAILED, environment_errors, in_words, remedy, unrewarded
from reinlm.training.choosing import Choosing
from reinlm.training.gold import check_gold_scores, gold_metrics, score_gold, with_gold
from reinlm.training.sampled import usage_metrics

MAX_NEW_TOKENS = "evaluation.max_new_tokens"
"""The setting that limits the length of a turn in evaluation."""

NOTHING_CHOSEN = Choosing()


class EvaluationConfig(Config):
    """Scoring on prompts that training never sees."""

    data: dict[str, DataConfig] = Field(default_factory=dict)
    """Named sets: `{test: test.jsonl}`; a single path is the set `eval`."""
    every: int = Field(0, ge=0)
    """Steps between evaluations; 0: at the start and the end alone."""
    samples: int = Field(1, ge=1)
    """Answers to each prompt; pass@k up to this k."""
    temperature: float = Field(1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this mass; 1 is off."""
    top_k: int = Field(0, ge=0)
    """Sample from this many of the likeliest tokens; 0 is off."""
    best_of: str | None = Field(None, min_length=1)
    """Name of the reward that chooses the best of several answers, "sum" for the weighted sum: best_of@k says how often that one
    is right. Null: none."""
    majority_vote: bool = False
    """Whether to vote among several answers: maj@k says how often what most of k answers say is right."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Null: as in training, or as in the run of a checkpoint that is evaluated; else 256."""
    correct_above: float = Field(0.5, allow_inf_nan=False)
    """An answer counts as right where the first reward function gives more than this; for the filter `mixed_outcomes` on that
    reward too, where it says nothing itself."""
    stop_at: float | None = Field(None, ge=0, le=1)
    """End the run early once the first set's accuracy reaches this."""
    patience: int | None = Field(None, ge=1)
    """End the run early after this many evaluations without a better one."""

    @field_validator("data", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return named_sets(value)

    @model_validator(mode="after")
    def _greedy_draws_nothing(self) -> Self:
        check_greedy(self)
        return self

    @model_validator(mode="after")
    def _choose_among_several(self) -> Self:
        for name in ("best_of", "majority_vote"):
            if self.samples < 2 and getattr(self, name):
                raise ValueError(
                    f"{name} {getattr(self, name)} has no effect: it chooses among several answers; set samples"
                )
        return self

    @property
    def choosing(self) -> Choosing:
        """How one of several answers is chosen."""
        return Choosing(self.best_of, self.majority_vote)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The result of an evaluation on one set of prompts."""

    metrics: dict[str, float]
    """accuracy, accuracy_low, accuracy_high, pass@k, reward, rewards/NAME, mean_length, clipped_ratio, failed, unrewarded,
    environment_errors; of held-out text text/loss, text/perplexity, text/entropy, text/mean_token_accuracy, text/tokens."""
    groups: tuple[ScoredGroup, ...]
    correct: tuple[tuple[bool | None, ...], ...]
    """For every group, whether each answer is right; None where that cannot be said: an episode that an error ended, or one
    without a reward that was not truncated."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """By reward function that failed: what went wrong first."""
    notes: tuple[str, ...] = ()
    """What a user should know: the first error of each reward function and of environments, and why rewards are absent."""

    @property
    def measured_on(self) -> str:
        """What stands over the figures: how many prompts there are, or that there is text alone."""
        return f"{len(self.groups)} prompts" if self.groups else "held-out text"

    def __repr__(self) -> str:
        table = text_table(figures(self.metrics)) if self.metrics else "no figures"
        return "\n".join([self.measured_on, table, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        samples = [
            (
                cut(text_of(row["prompt"])),
                cut(text_of(row["completion"])),
                "" if row["reward"] is None else f"{row['reward']:.3g}",
            )
            for row in sample_rows(self, 5)
        ]
        shown = html_table([("figure", "value"), *figures(self.metrics)], self.measured_on)
        answers = html_table([("prompt", "answer", "reward"), *samples]) if samples else ""
        return f"<div>{shown}{answers}</div>"


def text_of(content: Any) -> str:
    """A prompt or an answer on one line: of a chat the last message."""
    return content if isinstance(content, str) else str(content[-1]["content"]) if content else ""


def evaluate_tasks(
    episodes: Episodes,
    tasks: Sequence[Task],
    rewards: RewardSet | None,
    *,
    samples: int,
    tag: str,
    correct_above: float = 0.5,
    choosing: Choosing = NOTHING_CHOSEN,
    state: TrainerState | None = None,
    loop: EventLoop | None = None,
) -> Evaluation:
    """Sample `samples` answers to every task and score them.

    An answer is right where the first reward (the first reward function's, or without any the environment's) is more than
    `correct_above`. Where rewards come from the environment alone, a truncated episode without that reward is not right: left
    out, it would make a model that writes up to the limit look better. An episode that an error ended is in no figure.
    The metrics begin with the accuracy, or with the mean reward where the first reward is not 0 or 1 throughout.
    The same seed and tag give the same answers from the same weights.
    """
    choosing.check(rewards)
    state = replace(state or TrainerState(), evaluating=True)
    found = sample_groups(episodes, tasks, group_size=samples, tag=tag, rewards=rewards, state=state, loop=loop)
    names = reward_names(found.groups, rewards)
    own = rewards is None and not is_question(episodes.environment)
    correct = _verdicts(found.groups, names, correct_above, own)
    accuracy, answers = accuracy_metrics(correct), answer_metrics(found.groups, names)
    metrics = {**accuracy, **answers} if _are_verdicts(found.groups, names) else {**answers, **accuracy}
    if missing := unrewarded(found.groups):
        metrics["unrewarded"] = float(sum(missing.values()))
    if errors := environment_errors(found.groups):
        metrics["environment_errors"] = float(len(errors))
    metrics |= choosing.metrics(found.groups, correct, rewards)
    metrics["failed"] = float(sum(found.failures.values()))
    metrics |= {name: value for name, value in usage_metrics(found.usage).items() if "/logged/" in name}
    return Evaluation(metrics, found.groups, correct, found.messages, _notes(found, own))


def reward_names(groups: Sequence[ScoredGroup], rewards: RewardSet | None) -> tuple[str, ...]:
    """Reward functions in their order, then what environments named, in order of appearance."""
    given = (event.name for group in groups for events in group.events for event in events)
    return tuple(dict.fromkeys([*(rewards.names if rewards is not None else ()), *given]))


def _verdicts(
    groups: Sequence[ScoredGroup], names: Sequence[str], correct_above: float, own: bool
) -> tuple[tuple[bool | None, ...], ...]:
    """Whether each answer is right by the first of the rewards; `own`: they come from the environment alone."""
    ended = any(rollout.terminated for group in groups for rollout in group.group.rollouts)
    scores = own and (bool(names) or not ended)  # an episode that ended without any reward shows that there are none

    def verdict(rollout: Rollout, events: Sequence[RewardEvent]) -> bool | None:
        value = unweighted(events, names[0]) if names else None
        if value is None:
            return False if scores and rollout.truncated else None
        return value > correct_above

    return tuple(tuple(map(verdict, group.group.rollouts, group.events)) for group in groups)


def _are_verdicts(groups: Sequence[ScoredGroup], names: Sequence[str]) -> bool:
    """Whether the first reward of every answer that has it is 0 or 1."""
    values = (unweighted(events, name) for group in groups for events in group.events for name in names[:1])
    return all(value in (None, 0.0, 1.0) for value in values)


def without_verdicts(found: Evaluation, rewards: RewardSet | None) -> Evaluation:
    """The evaluation without accuracy and pass@k where the first reward leaves 0 to 1, so that no bound says what is right."""
    names = reward_names(found.groups, rewards)
    values = [unweighted(events, name) for group in found.groups for events in group.events for name in names[:1]]
    if all(value is None or 0.0 <= value <= 1.0 for value in values):
        return found
    kept = {name: value for name, value in found.metrics.items() if not name.startswith(("accuracy", "pass@"))}
    bound = "evaluation.correct_above=X says above which an answer is right"
    note = f"no accuracy: rewards of {names[0]!r} lie outside 0 to 1; {bound}"
    return replace(found, metrics=kept, notes=(*found.notes, note))


def _notes(found: Sampled, own: bool) -> tuple[str, ...]:
    notes = list(found.messages.values())
    if errors := environment_errors(found.groups):
        notes.append(f"{len(errors)} episodes ended by an error, the first: {errors[0]}")
    missing = unrewarded(found.groups)
    if own and missing.keys() - {FAILED}:
        advice = remedy(missing, max_new_tokens=MAX_NEW_TOKENS)
        notes.append(f"no reward for some episodes ({in_words(missing)}): {advice}")
    return tuple(notes)


class Evaluator:
    """The evaluation sets of a run, and how they are sampled.

    Args:
        sets: tasks by the name of their set, with the episodes that render them.
        gold: scores the answers too, for `eval/SET/gold`; nothing is trained on it.
        engine: theirs, which takes the trainer's weights before each evaluation; None: it has them.
    """

    def __init__(
        self,
        sets: Mapping[str, tuple[Episodes, Sequence[Task]]],
        rewards: RewardSet | None,
        *,
        samples: int,
        correct_above: float,
        choosing: Choosing = NOTHING_CHOSEN,
        gold: RewardSet | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.sets = sets
        self.gold = gold
        self.engine = engine
        self.rewards = rewards
        self.samples = samples
        self.correct_above = correct_above
        self.choosing = choosing
        self.loop = EventLoop()

    def evaluate(
        self, state: TrainerState | None = None, *, version: int = 0
    ) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Metrics `eval/SET/…` of every set, and answers of the first one; `version` is that of the policy."""
        with ready_to_sample(self.engine, version) if self.engine is not None else contextlib.nullcontext():
            return self._evaluate(state)

    def _evaluate(self, state: TrainerState | None) -> tuple[dict[str, float], list[dict[str, Any]]]:
        metrics: dict[str, float] = {}
        samples: list[dict[str, Any]] = []
        for name, (episodes, tasks) in self.sets.items():
            found = evaluate_tasks(
                episodes,
                tasks,
                self.rewards,
                samples=self.samples,
                tag=f"eval/{name}",
                correct_above=self.correct_above,
                choosing=self.choosing,
                state=state,
                loop=self.loop,
            )
            rows, measured = sample_rows(found), found.metrics
            if self.gold is not None:
                groups = [group.group for group in found.groups]
                ends = token_ends_of(episodes)
                gold = score_gold(self.gold, groups, replace(state or TrainerState(), evaluating=True), ends)
                if not state or not state.global_step:
                    check_gold_scores(name, gold)
                rows, measured = with_gold(rows, gold.groups), measured | gold_metrics(gold, self.gold.names)
            metrics |= {f"eval/{name}/{key}": value for key, value in measured.items()}
            samples = samples or rows
        return metrics, samples


def evaluation_sampling(config: EvaluationConfig, stops: Sequence[int], rollout: SamplesAnswers) -> Sampling:
    """How evaluation samples: its own temperature and truncation; stops, and in training the length, as `rollout` has them."""
    base = rollout.sampling(stops)
    return replace(
        base,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=config.max_new_tokens or base.max_new_tokens,
    )


def accuracy_metrics(correct: Sequence[Sequence[bool | None]]) -> dict[str, float]:
    """accuracy with its 95 % interval, and the unbiased pass@k for k = 1, 2, 4, … up to the answers to a prompt.

    Answers without a verdict are left out. Empty where no answer has one.
    """
    rows = [[bool(c) for c in row if c is not None] for row in correct]
    rows = [row for row in rows if row]
    if not rows:
        return {}
    low, high = share_interval(rows)
    metrics = {"accuracy": sum(map(sum, rows)) / sum(map(len, rows)), "accuracy_low": low, "accuracy_high": high}
    fewest = min(map(len, rows))
    for k in (2**power for power in range(fewest.bit_length())):
        metrics[f"pass@{k}"] = sum(pass_at_k(len(row), sum(row), k) for row in rows) / len(rows)
    return metrics


def pass_at_k(n: int, correct: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n answers, drawn without replacement, hold a right one.

    Chen et al., arXiv 2107.03374 eq. 1.
    """
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def answer_metrics(groups: Sequence[ScoredGroup], names: Sequence[str]) -> dict[str, float]:
    """Means over answers: the weighted reward, every reward by name, length in tokens, share cut off.

    Failed episodes are left out.
    """
    rollouts = [rollout for group in groups for rollout in group.group.rollouts if not rollout.failed]
    events = [item for group in groups for item in group.events]
    metrics: dict[str, float] = {}
    totals = [value for item in events if (value := total(item)) is not None]
    if totals:
        metrics["reward"] = sum(totals) / len(totals)
    for name in names:
        values = [value for item in events if (value := unweighted(item, name)) is not None]
        if values:
            metrics[f"rewards/{name}"] = sum(values) / len(values)
    if rollouts:
        metrics["mean_length"] = sum(rollout.length for rollout in rollouts) / len(rollouts)
        metrics["clipped_ratio"] = sum(rollout.truncated for rollout in rollouts) / len(rollouts)
    return metrics


def sample_rows(evaluation: Evaluation, count: int = 16) -> list[dict[str, Any]]:
    """The first answer to each of the first prompts, for people to read."""
    rows = []
    for group, correct in list(zip(evaluation.groups, evaluation.correct, strict=True))[:count]:
        rollout = group.group.rollouts[0]
        rows.append(
            {
                "prompt": rollout.task.content,
                "completion": rollout.completion,
                "reward": group.returns[0],
                "correct": correct[0],
                "end": rollout.reason,
                "terminated": rollout.terminated,
                "truncated": rollout.truncated,
                "answer": rollout.task.columns.get("answer"),
            }
        )
    return rows
