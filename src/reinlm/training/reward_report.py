"""What a reward model's scores of held-out judgements say, with intervals over the units."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from reinlm.data import Judged
from reinlm.objectives.calibration import auc, brier_score, calibration_error
from reinlm.objectives.reward_losses import comparisons

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

RESAMPLES = 200
"""Bootstrap samples of the units of a set, whose 2.5 % and 97.5 % quantiles are an interval."""


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

    Of pairs and rankings a case is a pair of answers of one unit that were not judged equal; its prediction is σ(d). Of labels
    and steps a case is an answer or a step. Of ratings there is the loss.

    Args:
        score: of each answer, or of each step.
        losses: of each unit.
        brief: loss and accuracy alone, without intervals.
    """
    found = {"loss": float(losses.double().mean()), "score/mean": float(score.double().mean())}
    if float(spread.max()) > 0:
        found["score/spread"] = float(spread.double().mean())
    cases = _cases(judged, score.double().cpu())
    if cases is None or not len(cases.unit):
        return found
    found |= {"accuracy": float(cases.right.mean())}
    if brief:
        return found
    found |= _intervals(cases, len(judged), seed)
    if cases.pairs is not None:
        found["ties"] = float((cases.difference == 0).double().mean())
        found["accuracy_strict"] = float((cases.right == 1.0).double().mean())
        found |= _by_length(judged, cases)
    for column, values in judged.slices.items():
        for value in sorted(set(values.tolist())):
            members = torch.tensor(values == value)[cases.unit]
            if bool(members.any()):
                found[f"accuracy/{column}={value}"] = float(cases.right[members].mean())
    return found


class _Cases:
    """Judgements with what the scores say of each."""

    def __init__(
        self,
        unit: Int[Tensor, " cases"],
        difference: Float[Tensor, " cases"],
        positive: Float[Tensor, " positives"],
        negative: Float[Tensor, " negatives"],
        owners: tuple[Int[Tensor, " positives"], Int[Tensor, " negatives"]],
        outcome: Float[Tensor, " cases"],
        pairs: tuple[Int[Tensor, " cases"], Int[Tensor, " cases"]] | None,
    ) -> None:
        self.unit, self.difference, self.outcome = unit, difference, outcome
        self.positive, self.negative, self.owners = positive, negative, owners
        self.pairs = pairs

    @property
    def right(self) -> Float[Tensor, " cases"]:
        """1 for a case in the right order, ½ for equal scores."""
        sign = torch.where(self.outcome > 0.5, self.difference, -self.difference)
        return (sign > 0).double() + 0.5 * (sign == 0).double()

    @property
    def predicted(self) -> Float[Tensor, " cases"]:
        return torch.sigmoid(self.difference)


def _cases(judged: Judged, score: Float[Tensor, " scores"]) -> _Cases | None:
    unit = torch.tensor(judged.unit)
    if judged.kind in ("labels", "steps"):
        steps = judged.steps
        owner = unit if steps is None else unit[torch.tensor(steps.sequence)]
        good = torch.tensor(judged.label if steps is None else steps.label)
        return _Cases(owner, score, score[good], score[~good], (owner[good], owner[~good]), good.double(), None)
    if judged.kind == "ratings":
        return None
    found = comparisons(unit, torch.tensor(judged.rank))
    first, second = found.first[~found.tied], found.second[~found.tied]
    owner = unit[first]
    # which side is predicted does not matter to accuracy; for calibration every second case is turned round
    turned = torch.arange(len(first)) % 2 == 1
    difference = score[first] - score[second]
    return _Cases(
        owner,
        torch.where(turned, -difference, difference),
        score[first],
        score[second],
        (owner, owner),
        (~turned).double(),
        (first, second),
    )


def _intervals(cases: _Cases, units: int, seed: int) -> dict[str, float]:
    """Each figure with the quantiles of it over bootstrap samples of the units."""
    figures: dict[str, Callable[[Tensor, Tensor, Tensor], float]] = {
        "accuracy": lambda case, _p, _n: float(cases.right[case].mean()),
        "auc": lambda _c, p, n: float(auc(cases.positive[p], cases.negative[n])),
        "ece": lambda case, _p, _n: float(calibration_error(cases.predicted[case], cases.outcome[case])),
        "brier": lambda case, _p, _n: float(brier_score(cases.predicted[case], cases.outcome[case])),
    }
    owners = (cases.unit, *cases.owners)
    everything = tuple(torch.arange(len(owner)) for owner in owners)
    found = {name: figure(*everything) for name, figure in figures.items()}
    generator = np.random.default_rng(seed)
    members = [_by_unit(owner, units) for owner in owners]
    drawn: dict[str, list[float]] = {name: [] for name in figures}
    for _ in range(RESAMPLES):
        chosen = generator.integers(units, size=units)
        picked = tuple(torch.from_numpy(np.concatenate([part[unit] for unit in chosen])) for part in members)
        if all(len(part) for part in picked):
            for name, figure in figures.items():
                drawn[name].append(figure(*picked))
    for name, values in drawn.items():
        if values:
            low, high = np.nanquantile(values, (0.025, 0.975))
            found |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return found


def _by_unit(owner: Int[Tensor, " cases"], units: int) -> list[np.ndarray]:
    """The cases of each unit."""
    order = np.argsort(owner.numpy(), kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner.numpy(), minlength=units))[:-1])


def _by_length(judged: Judged, cases: _Cases) -> dict[str, float]:
    """Accuracy where the better answer is shorter, of equal length, and longer; and the share of pairs in which it is longer."""
    assert cases.pairs is not None
    lengths = torch.tensor(judged.answer_lengths)
    gap = lengths[cases.pairs[0]] - lengths[cases.pairs[1]]
    named: dict[str, Bool[Tensor, " cases"]] = {"shorter": gap < 0, "equal": gap == 0, "longer": gap > 0}
    found = {
        f"accuracy_{name}": float(cases.right[members].mean()) for name, members in named.items() if bool(members.any())
    }
    return found | {"longer": float((gap > 0).double().mean())}
