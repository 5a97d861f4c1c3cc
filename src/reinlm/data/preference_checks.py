"""What is wrong with judged answers as a whole, or worth knowing of them before training; and filters by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    """Every unit that another one contradicts: the same two answers in the other order, or equal there, or one answer with both
    labels."""
    if judged.kind not in ("pairs", "labels"):
        return
    said: dict[tuple[bytes, bytes], int] = {}
    keys = [_key(judged, unit) for unit in range(len(judged))]
    ties = {unit for unit in range(len(judged)) if judged.label is None and _is_tie(judged, unit)}
    tied: dict[tuple[bytes, bytes], int] = {}
    for unit, key in enumerate(keys):
        (tied if unit in ties else said).setdefault(key, unit)
    for unit, key in enumerate(keys):
        turned = key[::-1]
        if unit not in ties and key[0] != key[1] and (other := said.get(turned)) is not None:
            what = "the same pair is judged both ways" if judged.kind == "pairs" else "the same answer has both labels"
        else:
            others = said if unit in ties else tied
            other = others.get(key, others.get(turned))
            what = "the same pair is judged a tie and no tie"
        if other is not None:
            yield BadRow(judged.ids[unit], what, f", also in {judged.ids[other]}")


def _key(judged: Judged, unit: int) -> tuple[bytes, bytes]:
    """What a unit says, so that the reverse contradicts it."""
    first = int(judged.starts[unit])
    tokens = judged.examples[first].token_ids.tobytes()
    if judged.label is not None:
        return (tokens, b"") if judged.label[first] else (b"", tokens)
    return tokens, judged.examples[first + 1].token_ids.tobytes()


def _is_tie(judged: Judged, unit: int) -> bool:
    first = int(judged.starts[unit])
    return bool(judged.rank[first] == judged.rank[first + 1])


def circles(judged: Judged) -> list[int]:
    """Units of pairs or rankings that contradict others of their prompt together, though no two of them do: A is better than B,
    B than C, and C than A, or as good as A.

    Those are the units between two answers each of which is, by a chain of judgements, at least as good as the other, where
    some judgement of the chains is no tie.
    """
    if judged.kind not in ("pairs", "rankings"):
        return []
    number: dict[bytes, int] = {}
    edges: list[tuple[int, int, int, bool]] = []  # unit, at least as good, the other one, whether they tie
    for unit, (start, size) in enumerate(zip(judged.starts.tolist(), judged.sizes.tolist(), strict=True)):
        nodes = [
            number.setdefault(judged.examples[place].token_ids.tobytes(), len(number))
            for place in range(start, start + size)
        ]
        for place in range(size - 1):
            tie = bool(judged.rank[start + place] == judged.rank[start + place + 1])
            edges.append((unit, nodes[place], nodes[place + 1], tie))
    below: list[list[int]] = [[] for _ in number]
    for _, better, worse, tie in edges:
        below[better].append(worse)
        if tie:
            below[worse].append(better)
    component = _components(below)
    strict = {component[better] for _, better, worse, tie in edges if not tie and component[better] == component[worse]}
    found = {
        unit
        for unit, better, worse, _ in edges
        if component[better] == component[worse] and component[better] in strict
    }
    return sorted(found)


def _components(below: Sequence[Sequence[int]]) -> list[int]:
    """The strongly connected component of each node of a graph: Tarjan's algorithm (1972), without recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    component = [-1] * len(below)
    open_: list[int] = []
    for root in range(len(below)):
        if root in order:
            continue
        order[root] = low[root] = len(order)
        open_.append(root)
        path = [(root, iter(below[root]))]
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == order[node]:
                    while component[node] < 0:
                        component[open_.pop()] = node
            elif following not in order:
                order[following] = low[following] = len(order)
                open_.append(following)
                path.append((following, iter(below[following])))
            elif component[following] < 0:
                low[node] = min(low[node], order[following])
    return component


def similarity(judged: Judged) -> Array:
    """[units] float64 in [0, 1]: of a pair the share of token trigrams that both answers have, of all that either has (Jaccard,
    each trigram counted as often as it stands); of a ranking that of its two best answers.

    Where an answer has fewer than three tokens, pairs of tokens or tokens are compared; 1 is of equal answers alone.
    """
    found = np.zeros(len(judged))
    for unit, (start, size) in enumerate(zip(judged.starts.tolist(), judged.sizes.tolist(), strict=True)):
        if size > 1:
            one, other = (judged.examples[place] for place in (start, start + 1))
            found[unit] = _jaccard(one, other)
    return found


def _jaccard(one: Example, other: Example) -> float:
    answers = [example.token_ids[example.trained].tolist() for example in (one, other)]
    if answers[0] == answers[1]:
        return 1.0
    size = min(_GRAM, *(len(answer) for answer in answers))
    left, right = (Counter(tuple(answer[i : i + size]) for i in range(len(answer) - size + 1)) for answer in answers)
    every = (left | right).total()
    return min((left & right).total() / every, 1.0 - 1.0 / (every + 1))


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
    if found := circles(judged):
        shown = ", ".join(judged.ids[unit] for unit in found[:3])
        lines.append(
            f"circles: {len(found)} of {len(judged)} {judged.kind} contradict others of their prompt in a circle "
            f"(A over B, B over C, C over A), such as {shown}"
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
