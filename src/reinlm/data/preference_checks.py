"""What is wrong with judged answers as a whole, or worth knowing of them before training; and filters by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from reinlm.data.examples import Example, Examples
from reinlm.data.rows import BadRow
from reinlm.records import Array

if TYPE_CHECKING:
    from reinlm.data.preferences import Judged

ALIKE = 0.9
"""Pairs whose answers are at least this similar are counted as near-duplicates."""
_GRAM = 3


def contradictions(judged: Judged) -> Iterator[BadRow]:
    """Every unit that another one contradicts: the same two answers in the other order, or one answer with both labels."""
    if judged.kind not in ("pairs", "labels"):
        return
    said: dict[tuple[bytes, bytes], int] = {}
    keys = [_key(judged, unit) for unit in range(len(judged))]
    for unit, key in enumerate(keys):
        if key is not None:
            said.setdefault(key, unit)
    for unit, key in enumerate(keys):
        other = None if key is None else said.get(key[::-1])
        if other is not None and key is not None and key[0] != key[1]:
            what = "the same pair is judged both ways" if judged.kind == "pairs" else "the same answer has both labels"
            yield BadRow(judged.ids[unit], what, f", also in {judged.ids[other]}")


def _key(judged: Judged, unit: int) -> tuple[bytes, bytes] | None:
    """What a unit says, so that the reverse contradicts it; None of a tie."""
    first = int(judged.starts[unit])
    tokens = judged.examples[first].token_ids.tobytes()
    if judged.label is not None:
        return (tokens, b"") if judged.label[first] else (b"", tokens)
    if judged.rank[first] == judged.rank[first + 1]:
        return None
    return tokens, judged.examples[first + 1].token_ids.tobytes()


def similarity(judged: Judged) -> Array:
    """[units] float64 in [0, 1]: of a pair the share of token trigrams that both answers have, of all that either has (Jaccard);
    of a ranking that of its two best answers. Answers of fewer than three tokens are compared token by token."""
    found = np.zeros(len(judged))
    for unit, (start, size) in enumerate(zip(judged.starts.tolist(), judged.sizes.tolist(), strict=True)):
        if size > 1:
            one, other = (judged.examples[place] for place in (start, start + 1))
            found[unit] = _jaccard(one, other)
    return found


def _jaccard(one: Example, other: Example) -> float:
    answers = [example.token_ids[example.trained].tolist() for example in (one, other)]
    size = min(_GRAM, *(len(answer) for answer in answers))
    left, right = ({tuple(answer[i : i + size]) for i in range(len(answer) - size + 1)} for answer in answers)
    return len(left & right) / len(left | right)


def cut_prompts(judged: Judged, limit: int, front: int) -> tuple[Judged, int]:
    """Units over the limit with the beginning of their prompt left out, as much of each answer's; and how many those are.

    The first `front` tokens (BOS) and the last token of the prompt stay; a unit whose answers alone are too long stays as it is.
    """
    examples, lengths = judged.examples, judged.examples.lengths
    excess = (np.maximum.reduceat(lengths, judged.starts) - limit).clip(min=0)
    begins = np.array([int(np.argmax(one.trained)) for one in examples], np.int64)
    room = np.minimum.reduceat(begins, judged.starts) - front - 1
    excess[excess > room] = 0
    if not excess.any():
        return judged, 0
    gone = excess[judged.unit]
    kept = np.ones(len(examples.token_ids), np.bool_)
    for start, count in zip(examples.offsets[:-1].tolist(), gone.tolist(), strict=True):
        kept[start + front : start + front + count] = False
    offsets = np.concatenate([[0], np.cumsum(lengths - gone)])
    shorter = Examples(examples.ids, examples.token_ids[kept], examples.trained[kept], offsets, examples.skipped)
    steps = judged.steps
    if steps is not None:
        steps = replace(steps, end=steps.end - gone[steps.sequence])
    return replace(judged, examples=shorter, steps=steps), int((excess > 0).sum())


def describe(judged: Judged) -> list[str]:
    """What to know of judged answers before training, a line each: lengths, ties, repeated and similar answers, slices."""
    lines = []
    if judged.kind in ("pairs", "rankings"):
        lines += _of_order(judged)
    if judged.label is not None:
        good = int(judged.label.sum())
        lines.append(f"labels: {good} good, {len(judged.label) - good} bad")
    repeated = _repeated(judged)
    if repeated:
        count, example = repeated
        lines.append(
            f"repeated: {count} of {len(judged)} {judged.kind} say what an earlier row says, such as {example}"
        )
    for column, values in judged.slices.items():
        lines.append(f"by {column}: {_counts(Counter(values.tolist()))}")
    return lines


def _of_order(judged: Judged) -> list[str]:
    lengths, best = judged.answer_lengths, judged.starts
    worst = best + judged.sizes - 1
    ordered = judged.rank[best] < judged.rank[worst]
    longer = lengths[best][ordered] > lengths[worst][ordered]
    lines = []
    if len(longer):
        means = lengths[best][ordered].mean(), lengths[worst][ordered].mean()
        lines.append(
            f"length: the best answers have {means[0]:.1f} tokens, the worst {means[1]:.1f}; the best is the longer one in "
            f"{longer.mean():.0%}"
        )
    alike = similarity(judged)
    near = np.flatnonzero(alike >= ALIKE)
    if len(near):
        lines.append(
            f"near-duplicates: {len(near)} of {len(judged)} {judged.kind} have answers that are alike by {ALIKE:.0%} or more, "
            f"such as {judged.ids[near[0]]} (data.max_similarity leaves them out)"
        )
    if judged.margin is not None:
        low, middle, high = np.quantile(judged.margin, [0.0, 0.5, 1.0])
        lines.append(f"margin: {low:g} to {high:g}, median {middle:g} (data.min_margin leaves small ones out)")
    return lines


def _repeated(judged: Judged) -> tuple[int, str] | None:
    seen: set[bytes] = set()
    again = []
    for unit, (start, size) in enumerate(zip(judged.starts.tolist(), judged.sizes.tolist(), strict=True)):
        tokens = b"|".join(judged.examples[place].token_ids.tobytes() for place in range(start, start + size))
        (again.append(unit) if tokens in seen else seen.add(tokens))
    return (len(again), judged.ids[again[0]]) if again else None


def _counts(counted: Mapping[str, int], most: int = 8) -> str:
    shown = sorted(counted.items(), key=lambda item: -item[1])
    rest = f", and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(f"{value} {count}" for value, count in shown[:most]) + rest
