"""Read judged rows: what was answered, and how good each answer was said to be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from reinlm.data.columns import content_column, contents_column, number_column, truth
from reinlm.data.rows import BadRow, Row
from reinlm.records import Content, Message

JudgedKind = Literal["pairs", "rankings", "labels", "ratings", "steps"]
"""What a data set says of its answers: which of two is better, the order of several, whether each is good, how good each is by
criteria, or whether each step of it is right."""

_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True)
class Judgement:
    """One row: a prompt, its answers, the best first, and what was said of them.

    Example:
        Judgement("data[0]", "12+30=", ("42", "41"), rank=(0, 1))
    """

    where: str
    prompt: Content
    answers: tuple[Content, ...]
    rank: tuple[int, ...] = (0,)
    """The place of each answer from 0; equal ones tie."""
    label: bool | None = None
    ratings: Mapping[str, float] = field(default_factory=dict)
    """By criterion."""
    steps: tuple[str, ...] = ()
    """The steps of the answer, where they are labelled."""
    step_labels: tuple[bool, ...] = ()
    margin: float | None = None
    weight: float | None = None
    plain: bool = False
    """Whether the prompt is what two texts begin with: it is not a user's message, and stays plain text."""


def kind_of(names: Sequence[str]) -> JudgedKind:
    """What the rows with these columns hold; `names` is one of `CONVENTIONS["judged"]`, or of "rated"."""
    if "chosen" in names:
        return "pairs"
    last = names[-1]
    kinds: dict[str, JudgedKind] = {"answers": "rankings", "labels": "steps", "label": "labels"}
    return kinds.get(last, "ratings")


def judgement(row: Row, names: Sequence[str], criteria: Sequence[str] | None, *, strength: str | None) -> Judgement:
    """What a row says.

    Args:
        row: with the columns of `names`.
        names: the columns that serve.
        criteria: the columns of numbers that rate an answer, where the user named them.
        strength: the column that says by how much the better answer is better, where the data have one.

    Raises:
        BadRow: a judgement that is malformed or contradicts itself.
    """
    kind = kind_of(names)
    if kind == "pairs":
        found = _pair(row, names)
    elif kind == "rankings":
        found = _ranking(row)
    elif kind == "steps":
        found = _steps(row)
    else:
        found = Judgement(row.where, content_column(row, "prompt"), (content_column(row, "completion"),))
        if kind == "labels":
            found = replace(found, label=truth(row, "label", row.columns.get("label")))
        else:
            found = replace(found, ratings=_ratings(row, criteria))
    found = _one_conversation(found)
    if len(found.answers) > 1 and len(set(map(repr, found.answers))) < len(found.answers):
        what = "chosen and rejected are equal" if kind == "pairs" else "the ranking repeats an answer"
        raise BadRow(row.where, what)
    return replace(
        found,
        margin=None if strength is None else _strength(row, strength),
        weight=_weight(row),
    )


def _strength(row: Row, column: str) -> float:
    """By how much the better answer is better, in data of which some row says it."""
    if row.columns.get(column) is None:
        what = "null" if column in row.columns else "missing"
        raise BadRow(
            row.where, f"column {column!r} is {what}", ", which other rows have", "give it in every row, or in none"
        )
    return number_column(row, column)


def _pair(row: Row, names: Sequence[str]) -> Judgement:
    chosen, rejected = content_column(row, "chosen"), content_column(row, "rejected")
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise BadRow(row.where, "one of chosen and rejected is text and the other chat messages")
    rank = (0, 0) if "tie" in row.columns and truth(row, "tie", row.columns["tie"]) else (0, 1)
    if "prompt" in names:
        return Judgement(row.where, content_column(row, "prompt"), (chosen, rejected), rank)
    if isinstance(chosen, str) and isinstance(rejected, str):
        return _implicit_text(row.where, chosen, rejected, rank)
    assert not isinstance(chosen, str)
    assert not isinstance(rejected, str)
    shared = _shared(chosen, rejected)
    while shared and chosen[shared - 1]["role"] == "assistant":
        shared -= 1
    if not shared:
        raise BadRow(row.where, "chosen and rejected share no prompt", hint="give the prompt as a column of its own")
    return Judgement(row.where, chosen[:shared], (chosen[shared:], rejected[shared:]), rank)


def _implicit_text(where: str, chosen: str, rejected: str, rank: tuple[int, int]) -> Judgement:
    """A prompt that both sides repeat: of a transcript all before its last answer, else what they have in common."""
    if is_transcript(chosen) and is_transcript(rejected):
        (before, good), (other, bad) = split_transcript(chosen), split_transcript(rejected)
        if before != other:
            raise BadRow(where, "chosen and rejected answer different transcripts")
        for name, answer in (("chosen", good), ("rejected", bad)):
            if not answer.strip():
                raise BadRow(where, f"column {name!r} ends with an empty answer")
        return Judgement(where, before, (good, bad), rank)
    shared = _shared(chosen, rejected)
    if 0 < shared < max(len(chosen), len(rejected)) and chosen[shared - 1] == " ":
        shared -= 1
    if not chosen[:shared].strip():
        raise BadRow(where, "chosen and rejected share no prompt", hint="give the prompt as a column of its own")
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if chosen != rejected and not side[shared:].strip():
            raise BadRow(where, f"column {name!r} is all prompt", hint="give the prompt as a column of its own")
    return Judgement(where, chosen[:shared], (chosen[shared:], rejected[shared:]), rank, plain=True)


def _shared(left: Sequence[object], right: Sequence[object]) -> int:
    """How many items both begin with."""
    differ = (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differ, min(len(left), len(right)))


def _ranking(row: Row) -> Judgement:
    answers = contents_column(row, "answers")
    if len(answers) < 2:
        raise BadRow(row.where, "the ranking has fewer than two answers")
    rank = tuple(range(len(answers)))
    given = row.columns.get("ranks")
    if given is not None:
        if not isinstance(given, list | tuple) or len(given) != len(answers):
            raise BadRow(row.where, "column 'ranks' does not give one rank to each answer")
        values = [number_column(Row(row.where, {"ranks": item}), "ranks") for item in given]
        if wrong := [value for value in values if value < 1 or value != int(value)]:
            hint = "ranks are 1, 2, …, and 1 is the best; scores go the other way"
            raise BadRow(row.where, "column 'ranks' holds what is no rank", f": {wrong[0]:g}", hint)
        order = sorted(range(len(answers)), key=values.__getitem__)
        levels = sorted(set(values))
        answers = tuple(answers[index] for index in order)
        rank = tuple(levels.index(values[index]) for index in order)
    return Judgement(row.where, content_column(row, "prompt"), answers, rank)


def _steps(row: Row) -> Judgement:
    steps = contents_column(row, "completions")
    labels = row.columns.get("labels")
    if not isinstance(labels, list | tuple) or len(labels) != len(steps):
        raise BadRow(row.where, "column 'labels' does not give one label to each step")
    texts = tuple(step for step in steps if isinstance(step, str))
    if len(texts) < len(steps):
        raise BadRow(row.where, "column 'completions' holds steps that are not text")
    marks = tuple(truth(row, "labels", label) for label in labels)
    prompt = content_column(row, "prompt")
    return Judgement(row.where, prompt, ("\n".join(texts),), steps=texts, step_labels=marks)


def _ratings(row: Row, criteria: Sequence[str] | None) -> dict[str, float]:
    if criteria is not None:
        return {name: number_column(row, name) for name in criteria}
    given = row.columns.get("ratings")
    if given is None:
        return {"rating": number_column(row, "rating")}
    if not isinstance(given, Mapping):
        raise BadRow(row.where, "column 'ratings' is not a mapping of criteria to numbers")
    known = {str(name): value for name, value in given.items() if value is not None}
    if not known:
        raise BadRow(row.where, "column 'ratings' is empty")
    return {name: number_column(Row(row.where, {name: value}), name) for name, value in known.items()}


def _weight(row: Row) -> float | None:
    if "weight" not in row.columns:
        return None
    weight = number_column(row, "weight")
    if weight <= 0:
        raise BadRow(row.where, "column 'weight' is not above 0", f": {weight:g}")
    return weight


def _one_conversation(found: Judgement) -> Judgement:
    """Answers that repeat the prompt as messages without it; a chat prompt with text answers as it is."""
    answers = tuple(_without_prompt(found.where, found.prompt, answer) for answer in found.answers)
    return replace(found, answers=answers)


def _without_prompt(where: str, prompt: Content, answer: Content) -> Content:
    if isinstance(answer, str) or answer[0]["role"] in ("assistant", "tool"):
        return answer
    texts = [message.get("content") for message in answer if message["role"] == "user"]
    if isinstance(prompt, str):
        start = next((index for index, message in enumerate(answer) if message["role"] == "assistant"), 0)
        repeats = len(texts) > 0 and texts[0] == prompt and start > 0
    else:
        start = len(prompt)
        repeats = tuple(answer[:start]) == tuple(prompt)
    if not repeats or start >= len(answer):
        raise BadRow(where, "an answer begins with messages that are not the prompt's")
    return answer[start:]


# ------------------------------------------------------------------------------------------------ transcripts


def is_transcript(text: str) -> bool:
    """Whether a text is a dialogue as in HH-RLHF: turns after `Human:` and `Assistant:`, the first one a human's.

    Source: Bai et al. 2022, arXiv 2204.05862.
    """
    turns = _SPEAKER.findall(text)
    return bool(turns) and text.lstrip().startswith("Human:") and "Assistant" in turns


def split_transcript(text: str) -> tuple[str, str]:
    """A dialogue up to and with its last `Assistant:`, and the answer after it."""
    last = [found for found in _SPEAKER.finditer(text) if found.group(1) == "Assistant"][-1]
    return text[: last.end()], text[last.end() :]


def transcript_messages(text: str) -> tuple[Message, ...]:
    """The messages of a dialogue; an `Assistant:` at its end, which the model is to continue, is left out.

    Example:
        >>> transcript_messages("\\n\\nHuman: 1+1?\\n\\nAssistant:")
        ({'role': 'user', 'content': '1+1?'},)
    """
    turns = list(_SPEAKER.finditer(text))
    ends = [*(turn.start() for turn in turns[1:]), len(text)]
    said = [(_ROLES[turn.group(1)], text[turn.end() : end].strip()) for turn, end in zip(turns, ends, strict=True)]
    if said and said[-1] == ("assistant", ""):
        said.pop()
    return tuple({"role": role, "content": content} for role, content in said)


def strength_column(present: set[str]) -> str | None:
    """The column that says by how much the better answer is better: `margin`, or `strength`."""
    return next((name for name in ("margin", "strength") if name in present), None)
