"""What a reward model's scores of held-out judgements say, with intervals over the prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from reinlm.data import Judged
from reinlm.objectives.calibration import auc, brier_score, calibration_error
from reinlm.objectives.intervals import bootstrap_counts, bootstrap_interval, clustered_mean_interval, wilson_interval
from reinlm.objectives.reward_losses import comparisons

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

RESAMPLES = 1000
"""Bootstrap samples of the prompts of a set."""
BINS = 10
"""Of a reliability plot and of the calibration error."""
_AT_ONCE = 4_000_000
"""Weights of cases that are held at once, in bootstrap samples."""


@dataclass(frozen=True, eq=False)
class Cases:
    """What was judged, and what the scores say of each.

    Of pairs and rankings a case is two answers of one unit that were not judged equal, the better one first. Of labels and steps
    a case is an answer or a step.
    """

    score: Float[Tensor, " scores"]
    """Of every answer or step."""
    outcome: Float[Tensor, " cases"]
    """1 for a better answer before a worse one, and for what is good; else 0."""
    cluster: Int[Tensor, " cases"]
    """The prompt of each, from 0: what intervals take to be drawn independently."""
    unit: Int[Tensor, " cases"]
    answers: tuple[Int[Tensor, " cases"], Int[Tensor, " cases"]] | None = None
    """The better answers and the worse ones, where two are compared."""

    @cached_property
    def difference(self) -> Float[Tensor, " cases"]:
        """The score of the better answer less that of the worse one; of single answers the score."""
        return self.score if self.answers is None else self.score[self.answers[0]] - self.score[self.answers[1]]

    @cached_property
    def right(self) -> Float[Tensor, " cases"]:
        """1 for a case in the right order, ½ for equal scores."""
        sign = torch.where(self.outcome > 0.5, self.difference, -self.difference)
        return (sign > 0).double() + 0.5 * (sign == 0).double()

    @property
    def least(self) -> float:
        """The least chance that can be predicted: that the answer with the higher score is the better one is at least ½."""
        return 0.0 if self.answers is None else 0.5

    @property
    def predicted(self) -> Float[Tensor, " cases"]:
        """The chance σ(|d|) that the answer with the higher score is the better one; of single answers σ(score)."""
        return torch.sigmoid(self.difference if self.answers is None else self.difference.abs())

    @property
    def observed(self) -> Float[Tensor, " cases"]:
        """What came of the prediction."""
        return self.outcome if self.answers is None else self.right

    def share(self, values: Float[Tensor, " cases"], members: Bool[Tensor, " cases"]) -> tuple[float, float, float]:
        """The mean of values from 0 to 1 over some of the cases, and Wilson's interval of it over their prompts."""
        return float(values[members].mean()), *wilson_interval(*_by_cluster(values[members], self.cluster[members]))


def _by_cluster(
    values: Float[Tensor, " cases"], cluster: Int[Tensor, " cases"]
) -> tuple[Float[Tensor, " clusters"], Float[Tensor, " clusters"]]:
    """The sum and the number of the values of each cluster that has some."""
    count, total = cluster.bincount().double(), cluster.bincount(weights=values)
    return total[count > 0], count[count > 0]


def cases_of(judged: Judged, score: Float[Tensor, " scores"]) -> Cases | None:
    """The judgements with the scores of the answers, or of the steps; None of ratings, which give a loss alone."""
    unit, prompt = torch.tensor(judged.unit), torch.tensor(prompts_of(judged))
    score = score.double().cpu()
    if judged.kind in ("labels", "steps"):
        steps = judged.steps
        owner = unit if steps is None else unit[torch.tensor(steps.sequence)]
        good = torch.tensor(judged.label if steps is None else steps.label)
        return Cases(score, good.double(), prompt[owner], owner)
    if judged.kind == "ratings":
        return None
    found = comparisons(unit, torch.tensor(judged.rank))
    better, worse = found.first[~found.tied], found.second[~found.tied]
    owner = unit[better]
    return Cases(score, torch.ones_like(score[better]), prompt[owner], owner, (better, worse))


def prompts_of(judged: Judged) -> np.ndarray:
    """[units] int64: the number of each unit's prompt, from 0; units with the same tokens before their answers share it."""
    known: dict[bytes, int] = {}
    found = []
    for start in judged.starts.tolist():
        example = judged.examples[start]
        prompt = example.token_ids[: int(np.argmax(example.trained))].tobytes()
        found.append(known.setdefault(prompt, len(known)))
    return np.asarray(found, np.int64)


def held_out_figures(
    judged: Judged,
    score: Float[Tensor, " scores"],
    spread: Float[Tensor, " scores"],
    losses: Float[Tensor, " units"],
    *,
    seed: int = 0,
    brief: bool = False,
) -> dict[str, float]:
    """Accuracy, AUC, ECE and Brier score with 95 % intervals, shares of ties, by length difference and by slice.

    Intervals are over prompts: Wilson's of accuracies, bias-corrected bootstrap intervals of the others.

    Args:
        score: of each answer, or of each step.
        losses: of each unit.
        brief: loss and accuracy alone, with their intervals.
    """
    sums = _by_cluster(losses.double().cpu(), torch.tensor(prompts_of(judged)))
    found = _with_interval("loss", float(losses.double().mean()), clustered_mean_interval(*sums))
    found["score/mean"] = float(score.double().mean())
    if float(spread.max()) > 0:
        found["score/spread"] = float(spread.double().mean())
    cases = cases_of(judged, score)
    if cases is None or not len(cases.unit):
        return found
    everything = torch.ones_like(cases.right, dtype=torch.bool)
    found |= _accuracy("accuracy", cases, everything)
    if brief:
        return found
    found |= _bootstrapped(cases, seed)
    if cases.answers is not None:
        found["ties"] = float((cases.difference == 0).double().mean())
        found["accuracy_strict"] = float((cases.right == 1.0).double().mean())
        gap = length_gap(judged, cases)
        for name, members in (("shorter", gap < 0), ("equal", gap == 0), ("longer", gap > 0)):
            found |= _accuracy(f"accuracy_{name}", cases, members)
        found["longer"] = float((gap > 0).double().mean())
    for column, values in judged.slices.items():
        for value in sorted(set(values.tolist())):
            mean = _accuracy("accuracy", cases, torch.tensor(values == value)[cases.unit])
            found |= {f"{name}/{column}={value}": figure for name, figure in mean.items()}
    return found


def _with_interval(name: str, value: float, ends: tuple[float, float]) -> dict[str, float]:
    return {name: value, f"{name}_low": ends[0], f"{name}_high": ends[1]}


def _accuracy(name: str, cases: Cases, members: Bool[Tensor, " cases"]) -> dict[str, float]:
    """Nothing where there is no such case."""
    if not bool(members.any()):
        return {}
    mean, low, high = cases.share(cases.right, members)
    return _with_interval(name, mean, (low, high))


def length_gap(judged: Judged, cases: Cases) -> Int[Tensor, " cases"]:
    """By how many tokens the better answer is longer."""
    assert cases.answers is not None
    lengths = torch.tensor(judged.answer_lengths)
    return lengths[cases.answers[0]] - lengths[cases.answers[1]]


def _bootstrapped(cases: Cases, seed: int) -> dict[str, float]:
    """AUC, ECE and Brier score, each with its interval over bootstrap samples of the prompts."""
    prompts, cluster = cases.cluster.unique(return_inverse=True)
    drawn = bootstrap_counts(len(prompts), RESAMPLES, seed)
    at_once = max(1, _AT_ONCE // len(cases.cluster))
    whole = _weighted(cases, torch.ones(1, len(cases.cluster), dtype=torch.float64))
    parts = [_weighted(cases, counts[:, cluster]) for counts in drawn.split(at_once)]
    found: dict[str, float] = {}
    for name, value in whole.items():
        estimate = float(value)
        if not np.isnan(estimate):
            sampled = torch.cat([part[name] for part in parts])
            found |= _with_interval(name, estimate, bootstrap_interval(estimate, sampled))
    return found


def _weighted(cases: Cases, weight: Float[Tensor, "samples cases"]) -> dict[str, Float[Tensor, " samples"]]:
    """The figures where each case counts as often as each sample has it; of two answers AUC compares those of all prompts."""
    if cases.answers is None:
        good = cases.outcome > 0.5
        area = auc(cases.score[good], cases.score[~good], weight[:, good], weight[:, ~good])
    else:
        better, worse = cases.answers
        area = auc(cases.score[better], cases.score[worse], weight, weight)
    return {
        "auc": area,
        "ece": calibration_error(cases.predicted, cases.observed, BINS, cases.least, weight),
        "brier": brier_score(torch.sigmoid(cases.difference), cases.outcome, weight),
    }
