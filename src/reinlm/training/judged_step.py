"""What a loss of judged answers compares in a step: pairs of sequences, or labelled ones; and what is measured of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from reinlm.batches import TokenBatch, example_batch
from reinlm.data import Examples, Judged
from reinlm.errors import InputError
from reinlm.objectives import Labelled, Layout, Pairs, k3
from reinlm.objectives.calibration import auc

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from reinlm.algorithms import PreferenceAlgorithm
    from reinlm.records import Array

EQUAL = 1e-4
"""Rewards of policy and reference that are no further apart count as equal: float32 sums of log-probabilities are no finer."""
_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Items:
    """The pairs, or the single answers, of some sequences.

    Example: one pair, sequence 0 better than sequence 1:
        Items(first=tensor([0]), second=tensor([1]), weight=tensor([1.0]), margin=None, desirable=None)
    """

    first: Int[Tensor, " items"]
    """The better sequence of each pair, or the labelled one."""
    second: Int[Tensor, " items"] | None
    """The other one of each pair; None for labelled answers."""
    weight: Float[Tensor, " items"]
    """The share of each in the loss of the step: they sum to 1."""
    margin: Float[Tensor, " items"] | None
    desirable: Bool[Tensor, " items"] | None

    def within(self, sequences: Int[Tensor, " chosen"]) -> Items:
        """Those among some of the sequences, numbered as they stand there."""
        place = torch.full((int(self.last) + 1,), -1)
        known = sequences <= self.last
        place[sequences[known]] = torch.arange(len(sequences))[known]
        kept = place[self.first] >= 0
        if self.second is not None:
            kept &= place[self.second] >= 0
        return Items(
            place[self.first[kept]],
            None if self.second is None else place[self.second[kept]],
            self.weight[kept],
            None if self.margin is None else self.margin[kept],
            None if self.desirable is None else self.desirable[kept],
        )

    @property
    def last(self) -> Int[Tensor, ""]:
        """The highest sequence among them."""
        ends = [x.max() for x in (self.first, self.second) if x is not None and len(x)]
        return torch.stack([*ends, torch.tensor(-1)]).max()

    def compared(
        self,
        sums: Float[Tensor, " sequences"],
        reference: Float[Tensor, " sequences"] | None,
        lengths: Int[Tensor, " sequences"],
        mismatched: Float[Tensor, " sequences"] | None = None,
    ) -> Any:
        """What the loss is given, `Pairs` or `Labelled`, from Σ log π of every sequence, on the device of `sums`."""

        def at(values: Tensor | None, places: Tensor) -> Any:
            return None if values is None else values.to(sums.device)[places.to(sums.device)]

        if self.second is None:
            assert self.desirable is not None
            return Labelled(
                at(sums, self.first),
                at(reference, self.first),
                at(lengths, self.first),
                self.desirable.to(sums.device),
                mismatched,
            )
        return Pairs(
            at(sums, self.first),
            at(sums, self.second),
            at(reference, self.first),
            at(reference, self.second),
            at(lengths, self.first),
            at(lengths, self.second),
            None if self.margin is None else self.margin.to(sums.device, sums.dtype),
        )


def compared_of(judged: Judged, takes: Literal["pairs", "labels"]) -> Items:
    """The items of judged answers: of a ranking all pairs whose places differ, which share the weight of their unit; of pairs
    where labels are taken both answers."""
    own = np.ones(len(judged)) if judged.weight is None else judged.weight
    if takes == "labels":
        good = judged.rank == 0 if judged.label is None else judged.label
        share = (own / judged.sizes)[judged.unit]
        first = torch.arange(len(judged.examples))
        return Items(first, None, _normalized(share), None, torch.tensor(np.asarray(good, np.bool_)))
    pairs: list[tuple[int, int, int]] = []
    for unit, (start, size) in enumerate(zip(judged.starts.tolist(), judged.sizes.tolist(), strict=True)):
        rank = judged.rank[start : start + size]
        pairs += [(start + i, start + j, unit) for i in range(size) for j in range(i + 1, size) if rank[i] < rank[j]]
    better, worse, unit_of = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    share = (own / np.bincount(unit_of, minlength=len(judged)).clip(min=1))[unit_of]
    margin = None if judged.margin is None else torch.tensor(judged.margin[unit_of])
    return Items(torch.tensor(better), torch.tensor(worse), _normalized(share), margin, None)


def usable_units(judged: Judged, takes: Literal["pairs", "labels"], name: str) -> tuple[Judged, int]:
    """The units that a loss can learn from, and how many say nothing: pairs and rankings where all tie.

    Raises InputError for judgements of another kind, and where none is left.
    """
    kinds = {"pairs": ("pairs", "rankings"), "labels": ("labels", "pairs")}[takes]
    if judged.kind not in kinds:
        needs = {"pairs": "prompt+chosen+rejected, or prompt+answers", "labels": "prompt+completion+label, or pairs"}
        raise InputError(
            f"algorithm {name} learns from {' or '.join(kinds)}, and the data hold {judged.kind}",
            hint=f"give rows of {needs[takes]}, or take an algorithm for {judged.kind} (reinlm algorithms)"
            if judged.kind in ("labels", "rankings")
            else f"give rows of {needs[takes]}",
        )
    if judged.kind == "labels":
        return judged, 0
    least, most = (ufunc.reduceat(judged.rank, judged.starts) for ufunc in (np.minimum, np.maximum))
    kept = np.flatnonzero(least < most)
    if not len(kept):
        raise InputError("no pair is left: every one of them is a tie", hint="give pairs of which one is better")
    return (judged if len(kept) == len(judged) else judged.take(kept.tolist())), len(judged) - len(kept)


def mismatched_examples(judged: Judged, limit: int | None) -> Examples:
    """Every prompt with the answer of the next sequence that has another prompt, for KTO's baseline: [sequences].

    Sources: KTO, arXiv 2402.01306 §4.1, which takes the answers of the batch; a fixed choice lets the reference be computed once,
    as TRL does. Tokens over the limit are left out at the end.

    Raises InputError where all prompts are the same.
    """
    examples = judged.examples
    count = len(examples)
    begins = [int(np.argmax(examples[index].trained)) for index in range(count)]
    prompts = [examples[index].token_ids[: begins[index]].tobytes() for index in range(count)]
    if len(set(prompts)) < 2:
        raise InputError(
            "kto compares answers to different prompts, and the data have one prompt", hint="give more data"
        )
    following = [0] * count
    nearest = next(index for index in range(count) if prompts[index] != prompts[-1])
    for index in reversed(range(count)):
        if index + 1 < count and prompts[index + 1] != prompts[index]:
            nearest = index + 1
        elif prompts[nearest] == prompts[index]:
            nearest = next(other for other in range(count) if prompts[other] != prompts[index])
        following[index] = nearest
    tokens, trained, offsets = [], [], [0]
    for index, other in enumerate(following):
        answer = slice(begins[other], None)
        ids = np.concatenate([examples[index].token_ids[: begins[index]], examples[other].token_ids[answer]])[:limit]
        marks = np.concatenate([np.zeros(begins[index], np.bool_), examples[other].trained[answer]])[:limit]
        tokens.append(ids)
        trained.append(marks)
        offsets.append(offsets[-1] + len(ids))
    return Examples(examples.ids, np.concatenate(tokens), np.concatenate(trained), np.array(offsets))


def examples_batch(examples: Examples, unit: Array | None = None) -> TokenBatch:
    """The examples as a batch."""
    return example_batch(examples.token_ids, examples.trained, examples.offsets, unit)


def _normalized(share: Array) -> Float[Tensor, " items"]:
    return torch.tensor(share / share.sum())


# ------------------------------------------------------------------------------------------------ figures


def figures(
    algorithm: PreferenceAlgorithm,
    items: Items,
    compared: Any,
    constants: Mapping[str, float],
    logprobs: Float[Tensor, " tokens"],
    reference: Float[Tensor, " tokens"] | None,
    layout: Layout,
) -> dict[str, float]:
    """What is logged of judged answers, from log-probabilities without a gradient.

    Of labelled answers `chosen` are the desirable ones, and the accuracy is the share of pairs of a desirable and an undesirable
    answer that the rewards order rightly. An equal pair counts half.
    """
    found: dict[str, float] = {"loss": float((items.weight * algorithm.loss(compared, constants).double()).sum())}
    if items.second is None:
        good, bad = compared.desirable, ~compared.desirable
        rewards = algorithm.loss.rewards(compared)
        sides = {"chosen": (rewards[good], items.first[good]), "rejected": (rewards[bad], items.first[bad])}
        right = float(auc(rewards[good], rewards[bad]))
    else:
        chosen, rejected = algorithm.loss.rewards(compared)
        sides = {"chosen": (chosen, items.first), "rejected": (rejected, items.second)}
        right = float(outcomes(chosen, rejected).mean())
    counts = layout.count("sequence")
    sums = layout.sum(logprobs, by="sequence")
    ratios = None if reference is None else sums - layout.sum(reference, by="sequence")
    for name, (rewards, places) in sides.items():
        if not len(places):
            continue
        found[f"rewards/{name}"] = float(rewards.double().mean())
        found[f"logprobs/{name}"] = float(sums[places].double().mean())
        found[f"completions/{name}_length"] = float(counts[places].double().mean())
        if ratios is not None:
            found[f"log_ratios/{name}"] = float(ratios[places].double().mean())
    if "rewards/chosen" in found and "rewards/rejected" in found:
        found["rewards/margins"] = found["rewards/chosen"] - found["rewards/rejected"]
        found["rewards/accuracies"] = right
    if reference is not None:
        found["kl/answers"] = float(k3(logprobs, reference).double().mean())
    return found


def outcomes(chosen: Float[Tensor, " pairs"], rejected: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """1 where the chosen answer has the higher reward, ½ where both are equal but for rounding (`EQUAL`), else 0."""
    margin = chosen - rejected
    return torch.where(margin.abs() <= EQUAL, 0.5, (margin > 0).double())


def with_interval(values: Float[Tensor, " pairs"]) -> tuple[float, float, float]:
    """The mean with its 95 % interval over pairs, by the normal approximation, within [0, 1]."""
    mean = float(values.mean())
    spread = float(values.std(correction=1)) if len(values) > 1 else 0.0
    half = _Z * spread / math.sqrt(len(values))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def slices_of(judged: Judged, units: Sequence[int]) -> dict[str, Array]:
    """By `COLUMN=VALUE`: which of these units belong there, [units] of bool."""
    found: dict[str, Array] = {}
    chosen = np.asarray(units, np.int64)
    for column, values in judged.slices.items():
        for value in sorted(set(values.tolist())):
            found[f"{column}={value}"] = values[chosen] == value
    return found
