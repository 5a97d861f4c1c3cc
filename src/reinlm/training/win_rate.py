"""The win rate of a model's answers against those of another model, or against answers in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from reinlm.data import load_rows
from reinlm.errors import InputError
from reinlm.intervals import share_interval
from reinlm.models import Policy
from reinlm.objectives.win_rate import both_orders, first_position, outcomes
from reinlm.records import NO_TURN, Array, Rollout, RolloutGroup, ScoredGroup, Segment, Task
from reinlm.rewards import RewardSet, TrainerState
from reinlm.rewards.judging import Judge

T = TypeVar("T")

_FILES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".parquet")


def is_file_of_answers(place: str) -> bool:
    """Whether what a model is compared with is a file of answers, and no model."""
    return place.lower().endswith(_FILES)


def win_rate_metrics(ours: Sequence[ScoredGroup], theirs: Mapping[str, ScoredGroup]) -> dict[str, float]:
    """Answers to the same prompt compared by their weighted reward: the higher one wins, equal ones tie.

    Answer j of ours meets answer j of theirs, the fewer from the front again. A pair of which one has no reward is left out
    and counted in `unpaired`. The 95 % interval is Wilson's with each prompt as one cluster; a tie counts half, which makes it
    wider than it need be. Only `unpaired` where no pair is left.

    Args:
        theirs: by the id of the task.
    """
    rows: list[list[float]] = []
    unpaired = 0
    for group in ours:
        pairs = _paired(group.returns, theirs[group.group.task.id].returns)
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        unpaired += len(pairs) - len(known)
        if known:
            both = torch.tensor(known, dtype=torch.float64)
            rows.append(outcomes(both[:, 0], both[:, 1]).tolist())
    return {**_shares(rows), "unpaired": float(unpaired)}


def judged_metrics(judge: Judge, ours: Sequence[ScoredGroup], theirs: Mapping[str, ScoredGroup]) -> dict[str, float]:
    """Answers to the same prompt compared by a judge that sees both, in both orders; pairs as of `win_rate_metrics`.

    An answer wins where it is preferred in both orders; where they disagree the pair ties. With the win rate tie_rate, the
    share of ties; position_consistency, the share of pairs of which both orders say the same; first_position, how often the
    judge prefers the answer that it sees first. A pair of which one has ended by an error is counted in `unpaired`, one without a
    judgement in one of the orders in `unjudged`.

    Raises:
        RunError: the judge fails on a pair.
    """
    pairs = [_paired(group.group.rollouts, theirs[group.group.task.id].group.rollouts) for group in ours]
    whole = [[(a, b) for a, b in row if not (a.failed or b.failed)] for row in pairs]
    given = judge.judge(whole)
    known = [
        [(one.first, one.swapped) for one in row if one.first is not None and one.swapped is not None] for row in given
    ]
    left = {
        "unpaired": float(sum(map(len, pairs)) - sum(map(len, whole))),
        "unjudged": float(sum(map(len, whole)) - sum(map(len, known))),
    }
    rows = [torch.tensor(row, dtype=torch.float64) for row in known if row]
    if not rows:
        return left
    first, swapped = torch.cat(rows).unbind(1)
    found = _shares([both_orders(*row.unbind(1)).tolist() for row in rows])
    return {
        **found,
        "tie_rate": found["ties"] / len(first),
        "position_consistency": float((first == swapped).double().mean()),
        "first_position": first_position(first, swapped),
        **left,
    }


def _paired(mine: Sequence[T], other: Sequence[T]) -> list[tuple[T, T]]:
    """Answer j with answer j of the other model, the fewer from the front again."""
    return [(mine[j % len(mine)], other[j % len(other)]) for j in range(max(len(mine), len(other)))]


def _shares(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """The win rate with its interval, and the counts, of the outcomes of the pairs of each prompt; empty without any."""
    flat = [value for row in rows for value in row]
    if not flat:
        return {}
    low, high = share_interval(rows)
    return {
        "win_rate": sum(flat) / len(flat),
        "win_rate_low": low,
        "win_rate_high": high,
        "wins": float(flat.count(1.0)),
        "ties": float(flat.count(0.5)),
        "losses": float(flat.count(0.0)),
    }


class StoredAnswers:
    """The answers in a file (rows with prompt and completion, as `output` of eval writes them), by their prompt. An answer may be
    empty.

    Raises InputError for a file that is not there, a row without prompt or completion, and rows of several models.
    """

    def __init__(self, file: str) -> None:
        if not Path(file).is_file():
            raise InputError(
                f"against: no such file: {file}", hint="give a model, a run, or a file that eval --output wrote"
            )
        self.file = file
        self._known: dict[str, list[Any]] = {}
        models: dict[str, None] = {}
        for row in load_rows(file).items:
            if any(not isinstance(row.columns.get(name), str | list) for name in ("prompt", "completion")):
                raise InputError(
                    f"against: {row.where} needs prompt and completion, each text or messages",
                    hint="evaluate the other model with output=FILE, or write rows with both columns",
                )
            self._known.setdefault(_key(row.columns["prompt"]), []).append(row.columns["completion"])
            models[str(row.columns.get("model", ""))] = None
        if len(models) > 1:
            raise InputError(
                f"against: {file} holds answers of several models: {', '.join(filter(None, models))}",
                hint="keep the rows of one of them (the column model)",
            )

    def check(self, tasks: Sequence[Task]) -> None:
        """Raise InputError where a task has no answer here."""
        missing = [task for task in tasks if _key(task.content) not in self._known]
        if missing:
            raise InputError(
                f"against: {self.file} has no answer to {len(missing)} of {len(tasks)} prompts, the first: {missing[0].id}",
                hint="a row has prompt and completion; evaluate the other model on this set with output=FILE",
            )

    def scored(self, ours: Sequence[ScoredGroup], policy: Policy, rewards: RewardSet | None) -> dict[str, ScoredGroup]:
        """The answers to the tasks of groups, with their rewards, by the id of the task; for a judge there may be none. Their
        tokens are those of the policy's tokenizer."""
        groups = []
        for group in ours:
            task, first = group.group.task, group.group.rollouts[0].segments[0]
            prompt = first.token_ids[: int(first.positions[0])]
            answers = self._known[_key(task.content)]
            groups.append(RolloutGroup(task, tuple(_rollout(task, prompt, one, policy) for one in answers)))
        if rewards is None:
            return {group.task.id: ScoredGroup(group, ((),) * len(group.rollouts)) for group in groups}
        return {group.group.task.id: group for group in rewards.score(groups, TrainerState(evaluating=True)).groups}


def _rollout(task: Task, prompt: Array, answer: Any, policy: Policy) -> Rollout:
    """An answer as an episode of one turn, which ends with the stop token."""
    text = answer if isinstance(answer, str) else "".join(str(message["content"]) for message in answer)
    ids = [*policy.tokenizer(text, add_special_tokens=False)["input_ids"], policy.stops[0]]
    turns = np.array([NO_TURN] * len(prompt) + [0] * len(ids), np.int16)
    completion = answer if isinstance(answer, str) else tuple(answer)
    segment = Segment(np.concatenate([prompt, np.array(ids, np.int32)]), turns)
    return Rollout(task, (segment,), completion, terminated=True, truncated=False, reason="stored")


def _key(content: Any) -> str:
    """A prompt as one text; a single user message is its content."""
    if not isinstance(content, str) and len(content) == 1 and content[0].get("role") == "user":
        content = content[0]["content"]
    return json.dumps(content, ensure_ascii=False, sort_keys=True)
