"""Convert judged rows to sequences: pairs, rankings, labels, ratings and labelled steps, all in flat arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reinlm.data.batching import Plan, usable
from reinlm.data.columns import require_column
from reinlm.data.config import JudgedDataConfig
from reinlm.data.examples import Examples, Piece, chat_plan, columns_of, piece
from reinlm.data.judgements import (
    JudgedKind,
    Judgement,
    is_transcript,
    judgement,
    kind_of,
    strength_column,
    transcript_messages,
)
from reinlm.data.loading import Found, drop_long, find_rows
from reinlm.data.preference_checks import contradictions, cut_prompts, similarity
from reinlm.data.rendering import UNKNOWN_CHARACTERS, Renderer
from reinlm.data.rows import BadRow, Row, tally
from reinlm.data.sources import source_name
from reinlm.data.tasks import PromptShaper, prepare_rows
from reinlm.errors import InputError
from reinlm.records import Array, Content

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from reinlm.batches import TokenBatch

STEP_END = "\n"
"""Ends each of the steps of a labelled answer."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The labelled steps of answers, in flat arrays.

    Example: sequence 0 has two steps that end at its tokens 4 and 7, of which the second is wrong:
        Steps(sequence=np.array([0, 0]), end=np.array([4, 7]), label=np.array([True, False]))
    """

    sequence: Array
    """[steps] int64: the sequence that each belongs to, ascending."""
    end: Array
    """[steps] int64: the place of its last token in that sequence."""
    label: Array
    """[steps] bool: whether it is right."""


@dataclass(frozen=True, eq=False)
class Judged:
    """Judged answers: every sequence is a prompt with one answer, and those that were judged together are a unit.

    The sequences of a unit stand together, the best first. A unit is never split: not by a batch, nor by a micro-batch.

    Example: two pairs:
        Judged("pairs", examples, unit=np.array([0, 0, 1, 1]), ids=["a.jsonl:1", "a.jsonl:2"], rank=np.array([0, 1, 0, 1]))
    """

    kind: JudgedKind
    examples: Examples
    """[sequences]: prompt and answer; the answer's tokens with their stop tokens are marked as trained."""
    unit: Array
    """[sequences] int64: which pair, ranking or single answer each belongs to; from 0, ascending, without a gap."""
    ids: Sequence[str]
    """[units]: where each comes from, such as FILE:LINE."""
    rank: Array
    """[sequences] int64: the place of an answer in its unit, from 0; equal ones tie."""
    margin: Array | None = None
    """[units] float64: by how much the better answer is better, where the data say it."""
    weight: Array | None = None
    """[units] float64 above 0: the unit's share in a loss, where the data say it."""
    slices: Mapping[str, Array] = field(default_factory=dict)
    """[units] of text by column: the slice of the data that a unit belongs to."""
    label: Array | None = None
    """[sequences] bool: whether an answer is good; of kind "labels"."""
    ratings: Mapping[str, Array] = field(default_factory=dict)
    """[sequences] float64 by criterion, NaN where a row does not rate it; of kind "ratings"."""
    steps: Steps | None = None
    """Of kind "steps"."""
    shortened: int = 0
    """How many units had the beginning of their prompt left out (`on_long_prompt: cut`)."""

    def __post_init__(self) -> None:
        for name, dtype in (("unit", np.int64), ("rank", np.int64)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype))
        sequences, units = len(self.examples), len(self.ids)
        if len(self.unit) != sequences or len(self.rank) != sequences:
            raise ValueError(f"{len(self.unit)} units and {len(self.rank)} ranks for {sequences} sequences")
        if not np.array_equal(np.unique(self.unit), np.arange(units)) or np.any(np.diff(self.unit) < 0):
            raise ValueError(f"unit must ascend from 0 to {units - 1} without a gap")

    def __len__(self) -> int:
        """How many units there are."""
        return len(self.ids)

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many rows were left out, by reason."""
        return self.examples.skipped

    @property
    def sizes(self) -> Array:
        """[units] int64: the sequences of each."""
        return np.bincount(self.unit, minlength=len(self))

    @property
    def starts(self) -> Array:
        """[units] int64: the first sequence of each, which is the best."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def answer_lengths(self) -> Array:
        """[sequences] int64: the answer's tokens."""
        offsets = self.examples.offsets
        counted = np.concatenate([[0], np.cumsum(self.examples.trained)])
        return np.asarray(counted[offsets[1:]] - counted[offsets[:-1]], np.int64)

    def take(self, units: Sequence[int]) -> Judged:
        """Those units, in this order, copied."""
        chosen = np.asarray(units, np.int64)
        sizes = self.sizes[chosen]
        sequences = _ranges(self.starts[chosen], sizes)
        return replace(
            self,
            examples=self.examples.take(sequences.tolist()),
            unit=np.repeat(np.arange(len(chosen)), sizes),
            ids=[self.ids[index] for index in chosen],
            rank=self.rank[sequences],
            margin=None if self.margin is None else self.margin[chosen],
            weight=None if self.weight is None else self.weight[chosen],
            slices={name: values[chosen] for name, values in self.slices.items()},
            label=None if self.label is None else self.label[sequences],
            ratings={name: values[sequences] for name, values in self.ratings.items()},
            steps=None if self.steps is None else _steps_of(self.steps, sequences),
        )

    def batch(self, units: Sequence[int]) -> TokenBatch:
        """The sequences of those units, each unit a group; only the tokens of answers are scored."""
        from reinlm.batches import example_batch  # it loads torch

        part = self.take(units)
        return example_batch(part.examples.token_ids, part.examples.trained, part.examples.offsets, part.unit)


def _ranges(starts: Array, sizes: Array) -> Array:
    """start, start + 1, …, start + size - 1 for every pair, concatenated."""
    ends = np.cumsum(sizes)
    return np.asarray(np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - sizes), sizes), np.int64)


def _steps_of(steps: Steps, sequences: Array) -> Steps:
    found = [np.flatnonzero(steps.sequence == sequence) for sequence in sequences]
    places = np.concatenate([np.zeros(0, np.int64), *found])
    owner = np.repeat(np.arange(len(found)), [len(part) for part in found])
    return Steps(owner, steps.end[places], steps.label[places])


# ------------------------------------------------------------------------------------------------ reading


def find_judged(config: JudgedDataConfig) -> Found:
    """Read and check the rows of a data set: all that can be said of it without a tokenizer.

    Raises InputError for data, columns or rows that cannot be used, as `config` says.
    """
    found = find_rows(config, "judged" if config.ratings is None else "rated")
    present, source = {name for row in found.rows for name in row.columns}, source_name(config.path)
    for option in ("ratings", "slices"):
        for name in getattr(config, option) or ():
            require_column(name, present, source, f"data.{option}")
    kept: list[Row] = []
    for row in found.rows:
        try:
            _judge(row, found.names, config, present)
            kept.append(row)
        except BadRow as bad:
            found.bad_rows.add(bad)
    found.bad_rows.require_some(kept, source)
    return replace(found, rows=kept)


def _judge(row: Row, names: Sequence[str], config: JudgedDataConfig, present: set[str]) -> Judgement:
    return judgement(row, names, config.ratings, strength=strength_column(present))


class _Unit(NamedTuple):
    """A unit before it is copied into the arrays."""

    judgement: Judgement
    row: Row
    pieces: tuple[Piece, ...]
    step_ends: tuple[int, ...]


def load_judged(
    config: JudgedDataConfig,
    tokenizer: PreTrainedTokenizerBase | Renderer,
    *,
    max_tokens: int | None = None,
    found: Found | None = None,
) -> Judged:
    """The judged answers of a data set, in the order of its rows.

    The layouts are those of TRL, and some more:
    - `prompt`+`chosen`+`rejected`, each text or chat messages; or `chosen`+`rejected` that both begin with the prompt: chat
      messages, texts, or transcripts of HH-RLHF (`Human:`, `Assistant:`). A true `tie` says that neither is better.
    - `prompt`+`answers`: the best first, or in any order with `ranks` (1 is best; equal ones tie).
    - `prompt`+`completion`+`label`: whether the completion is good.
    - `prompt`+`completion`+`ratings` (criteria with numbers) or `rating` (one number).
    - `prompt`+`completions`+`labels`: the steps of one answer, and whether each is right. A step ends with a line break.
    Of each, `margin` (or `strength`) says by how much the better is better, and `weight` how much the row counts.

    Args:
        config: the data; see `JudgedDataConfig`.
        tokenizer: the model's, or a renderer around it.
        max_tokens: the most tokens a prompt with one answer may have; None for no limit.
        found: the rows, where they were read before (`find_judged`), to be used once.

    Raises:
        InputError: data, columns, rows or options that cannot be used, or sequences over the limit, as `config` says.
    """
    found = find_judged(config) if found is None else found
    present = {name for row in found.rows for name in row.columns}
    rows, names, bad_rows, shaper, renderer = prepare_rows(config, "judged", tokenizer, found)
    source = source_name(config.path)
    plans = (_plan(row, _judge(row, names, config, present), shaper, renderer) for row in rows)
    units = list(usable(rows, plans, renderer.encode, bad_rows))
    bad_rows.require_some(units, source)
    judged = _judged(kind_of(names), units, config)
    wrong = {bad.where: bad for bad in contradictions(judged)}
    for bad in wrong.values():
        bad_rows.add(bad)
    fine = [unit for unit, where in enumerate(judged.ids) if where not in wrong]
    bad_rows.require_some(fine, source)
    judged = judged.take(fine) if wrong else judged
    skipped = dict(bad_rows.counts)
    judged = _filtered(judged, config, source, skipped)
    return _of_length(judged, config, max_tokens, source, skipped, renderer.front_length)


def _filtered(judged: Judged, config: JudgedDataConfig, source: str, skipped: dict[str, int]) -> Judged:
    """The units that pass `min_margin` and `max_similarity`; those that do not are counted in `skipped`."""
    kept = np.ones(len(judged), np.bool_)
    if config.min_margin is not None:
        if judged.margin is None:
            raise InputError(
                f"data.min_margin {config.min_margin:g} reads the column margin or strength, and {source} has neither",
                hint="map one with data.columns: {margin: YOUR_COLUMN}",
            )
        kept = judged.margin >= config.min_margin
        skipped[f"margin below {config.min_margin:g}"] = int((~kept).sum())
    if config.max_similarity is not None:
        if judged.kind not in ("pairs", "rankings"):
            raise InputError(
                f"data.max_similarity has no effect: it compares two answers, and {source} holds {judged.kind}",
                hint="leave data.max_similarity out",
            )
        alike = kept & (similarity(judged) > config.max_similarity)
        skipped[f"answers more alike than {config.max_similarity:g}"] = int(alike.sum())
        kept = kept & ~alike
    if not kept.any():
        raise InputError(
            f"{source}: no row is left: {tally(skipped)}", hint="lower data.min_margin, or raise data.max_similarity"
        )
    for reason in [reason for reason, count in skipped.items() if not count]:
        del skipped[reason]
    return judged if kept.all() else judged.take(np.flatnonzero(kept).tolist())


def _of_length(
    judged: Judged, config: JudgedDataConfig, limit: int | None, source: str, skipped: dict[str, int], front: int
) -> Judged:
    """The units whose sequences all fit."""
    shortened = 0
    if limit is not None:
        if config.on_long_prompt == "cut":
            judged, shortened = cut_prompts(judged, limit, front)
        longest = np.maximum.reduceat(judged.examples.lengths, judged.starts).tolist()
        kept = drop_long(
            longest,
            judged.ids,
            limit=limit,
            what=judged.kind,
            on_long="stop" if config.on_long_prompt == "stop" else "skip",
            source=source,
        )
        if len(kept) < len(judged):
            skipped[f"longer than {limit} tokens"] = len(judged) - len(kept)
            judged = judged.take(kept)
    return replace(judged, shortened=shortened, examples=replace(judged.examples, skipped=skipped))


def _judged(kind: JudgedKind, units: Sequence[_Unit], config: JudgedDataConfig) -> Judged:
    said = [unit.judgement for unit in units]
    sizes = [len(unit.pieces) for unit in units]
    criteria = list(dict.fromkeys(name for one in said for name in one.ratings))
    steps = None
    if kind == "steps":
        owner = np.repeat(np.arange(len(units)), [len(unit.step_ends) for unit in units])
        ends = np.array([end for unit in units for end in unit.step_ends], np.int64)
        steps = Steps(owner, ends, np.array([mark for one in said for mark in one.step_labels], np.bool_))
    return Judged(
        kind=kind,
        examples=columns_of(unit.pieces for unit in units),
        unit=np.repeat(np.arange(len(units)), sizes),
        ids=[unit.row.where for unit in units],
        rank=np.array([place for one in said for place in one.rank], np.int64),
        margin=_numbers([one.margin for one in said]),
        weight=_numbers([one.weight for one in said], missing=1.0),
        slices={name: np.array([str(unit.row.columns.get(name)) for unit in units]) for name in config.slices},
        label=np.array([one.label for one in said], np.bool_) if kind == "labels" else None,
        ratings={name: np.array([one.ratings.get(name, np.nan) for one in said]) for name in criteria},
        steps=steps,
    )


def _numbers(values: Sequence[float | None], missing: float = np.nan) -> Array | None:
    """None where no value is given."""
    if all(value is None for value in values):
        return None
    return np.array([missing if value is None else value for value in values], np.float64)


# ------------------------------------------------------------------------------------------------ tokens


def _plan(row: Row, said: Judgement, shaper: PromptShaper, renderer: Renderer) -> Plan[_Unit]:
    """The sequences of a row: one for each answer, after the same tokens of the prompt."""
    if said.steps:
        found, ends = yield from _steps_plan(row, said, shaper, renderer)
        return _Unit(said, row, (found,), ends)
    pieces: list[Piece] = []
    for number, answer in enumerate(said.answers, start=1):
        name = row.where if len(said.answers) == 1 else f"{row.where}#{number}"
        pieces.append((yield from _answer_plan(name, row, said, answer, shaper, renderer)))
    if len({tuple(found.token_ids) for found in pieces}) < len(pieces):
        raise BadRow(row.where, "two of its answers have the same tokens")
    return _Unit(said, row, tuple(pieces), ())


def _answer_plan(
    name: str, row: Row, said: Judgement, answer: Content, shaper: PromptShaper, renderer: Renderer
) -> Plan[Piece]:
    prompt = _shaped(row, said, shaper, as_chat=not isinstance(answer, str))
    if isinstance(prompt, str):
        assert isinstance(answer, str)
        before, after = yield from renderer.text_turn_plan(prompt, answer)
        if len(before) <= renderer.front_length:
            raise BadRow(row.where, "the prompt has no tokens", hint=UNKNOWN_CHARACTERS)
        if len(after) < 2:
            raise BadRow(row.where, "an answer has no tokens", hint=UNKNOWN_CHARACTERS)
        return piece(name, before, after)
    if isinstance(answer, str):
        answer = ({"role": "assistant", "content": answer.strip() if _dialogue(said) else answer},)
    found = yield from chat_plan(row.where, (*prompt, *answer), len(prompt), renderer)
    if len(found) > 1:
        raise BadRow(row.where, "the chat template rewrites earlier turns of an answer of several turns")
    return found[0]._replace(id=name)


def _dialogue(said: Judgement) -> bool:
    return isinstance(said.prompt, str) and is_transcript(said.prompt)


def _shaped(row: Row, said: Judgement, shaper: PromptShaper, *, as_chat: bool) -> Content:
    """The prompt as it is rendered: a transcript becomes messages where text does, what two texts begin with stays text."""
    prompt, settled = said.prompt, shaper.config
    if isinstance(prompt, str) and settled.chat == "always" and _dialogue(said):
        prompt = transcript_messages(prompt)
    elif isinstance(prompt, str) and said.plain and settled.settled and not as_chat:
        return prompt
    return shaper.shape(row, prompt, as_chat=as_chat)


def _steps_plan(
    row: Row, said: Judgement, shaper: PromptShaper, renderer: Renderer
) -> Plan[tuple[Piece, tuple[int, ...]]]:
    """Prompt and steps, each tokenised alone with the line break that ends it, and the place of each one's last token."""
    prompt = yield from renderer.prompt_plan(row.where, _shaped(row, said, shaper, as_chat=False))
    if len(prompt) <= renderer.front_length:
        raise BadRow(row.where, "the prompt has no tokens", hint=UNKNOWN_CHARACTERS)
    parts: Any = yield [step + STEP_END for step in said.steps]
    if not all(parts):
        raise BadRow(row.where, "a step has no tokens", hint=UNKNOWN_CHARACTERS)
    ends = np.cumsum([len(part) for part in parts]) + len(prompt) - 1
    return piece(row.where, prompt, [token for part in parts for token in part]), tuple(ends.tolist())
