"""The loss of a reward model over units of judged answers: pairs, rankings, ratings, labels, and labelled steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from reinlm.data import Judged
from reinlm.errors import InputError
from reinlm.objectives import BradleyTerry, Davidson, PlackettLuce, Ranked, RaoKupper, RewardLoss
from reinlm.objectives.reward_losses import (
    centering_loss,
    comparisons,
    mean_by_unit,
    rating_loss,
    step_label_loss,
)
from reinlm.training.reward_config import OPTIONS, RewardLossConfig

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_OF_KIND = {
    "pairs": ("bradley_terry", "davidson", "rao_kupper", "plackett_luce"),
    "rankings": ("plackett_luce", "bradley_terry", "davidson", "rao_kupper"),
    "ratings": ("regression",),
    "labels": ("logistic",),
    "steps": ("logistic",),
}
"""The losses that each kind of judgement can be learned by, the default first."""


def settled_loss(config: RewardLossConfig, judged: Judged) -> RewardLossConfig:
    """The loss with its name in place of auto. Raises InputError for one that these data cannot have, or an idle option."""
    known = _OF_KIND[judged.kind]
    if config.name != "auto" and config.name not in known:
        raise InputError(
            f"loss {config.name} does not learn from {judged.kind}",
            hint=f"take {' or '.join(known)}, or leave loss out",
        )
    name = known[0] if config.name == "auto" else config.name
    if config.name == "auto" and judged.kind == "pairs" and ties(judged).any():
        name = "davidson"
    for option in ("margin_scale", "label_smoothing", "centering", "top", "tie"):
        if config.changed(option) and option not in OPTIONS[name]:
            raise InputError(
                f"loss.{option} {getattr(config, option)} has no effect on {name}, which {judged.kind} are learned by",
                hint=f"leave loss.{option} out, or name another loss",
            )
    if config.changed("margin_scale") and judged.margin is None:
        raise InputError(
            "loss.margin_scale has no effect: the data have no margin", hint="give a column margin, or leave it out"
        )
    return config.model_copy(update={"name": name})


def ties(judged: Judged) -> np.ndarray:
    """[units]: whether all answers of a unit are of one rank, and it has several."""
    top = np.maximum.reduceat(judged.rank, judged.starts)
    return np.asarray((judged.sizes > 1) & (top == judged.rank[judged.starts]))


def learnable(config: RewardLossConfig, judged: Judged) -> tuple[Judged, list[str]]:
    """The units that a loss can learn from, and what to know of the others.

    Raises InputError where the judgements tell nothing apart: ties alone, one label alone, or a criterion with one rating.
    """
    loss = settled_loss(config, judged).name
    if judged.kind in ("pairs", "rankings"):
        tied = ties(judged)
        if tied.all():
            raise InputError(
                f"every one of the {len(judged)} {judged.kind} is a tie, from which no reward model can learn",
                hint="give judgements in which one answer is better",
            )
        if loss in ("bradley_terry", "plackett_luce") and tied.any():
            told = f"{int(tied.sum())} ties are left out: {loss} learns nothing from them; davidson and rao_kupper do"
            return judged.take(np.flatnonzero(~tied).tolist()), [told]
        return judged, []
    labels = judged.label if judged.steps is None else judged.steps.label
    if judged.kind != "ratings" and labels is not None and len(set(np.asarray(labels).tolist())) < 2:
        what = "answers" if judged.steps is None else "steps"
        raise InputError(
            f"all {len(labels)} {what} are labelled {'good' if labels[0] else 'bad'}, and {loss} needs both",
            hint=f"give {what} of both labels",
        )
    notes, varied = [], not judged.ratings
    for name, values in judged.ratings.items():
        known = np.asarray(values)[~np.isnan(values)]
        if len(set(known.tolist())) < 2:
            notes.append(f"every rating of {name} is {known[0]:g}" if len(known) else f"there is no rating of {name}")
        else:
            varied = True
        if absent := len(values) - len(known):
            notes.append(
                f"{absent} of {len(values)} answers have no rating of {name}, and are learned from by the others alone"
            )
    if not varied:
        raise InputError("; ".join(notes), hint="give ratings that differ")
    return judged, notes


@dataclass(frozen=True)
class UnitTargets:
    """What is known of S sequences of U units, for a loss: those of a step, or of a micro-batch of it."""

    unit: Int[Tensor, " answers"]
    rank: Int[Tensor, " answers"]
    margin: Float[Tensor, " units"] | None
    label: Bool[Tensor, " answers"] | None
    ratings: Float[Tensor, "answers criteria"] | None
    """Standardised; NaN where none is given."""
    step_label: Bool[Tensor, " steps"] | None
    step_unit: Int[Tensor, " steps"] | None
    units: int

    @classmethod
    def of(cls, judged: Judged, scales: Mapping[str, tuple[float, float]]) -> UnitTargets:
        """Of all units; `scales` are mean and standard deviation of the ratings by criterion."""
        ratings = [(np.asarray(values) - scales[name][0]) / scales[name][1] for name, values in judged.ratings.items()]
        steps = judged.steps
        return cls(
            torch.tensor(judged.unit),
            torch.tensor(judged.rank),
            None if judged.margin is None else torch.tensor(np.nan_to_num(judged.margin)),
            None if judged.label is None else torch.tensor(judged.label),
            torch.tensor(np.stack(ratings, axis=1)) if ratings else None,
            None if steps is None else torch.tensor(steps.label),
            None if steps is None else torch.tensor(judged.unit[steps.sequence]),
            len(judged),
        )

    def select(self, sequences: Int[Tensor, " chosen"]) -> tuple[UnitTargets, Int[Tensor, " chosen_units"]]:
        """Those of some sequences in ascending order, whose units are whole; and the numbers of these units."""
        units, unit = torch.unique_consecutive(self.unit[sequences], return_inverse=True)
        known = None if self.step_unit is None else torch.isin(self.step_unit, units)
        return UnitTargets(
            unit,
            self.rank[sequences],
            None if self.margin is None else self.margin[units],
            None if self.label is None else self.label[sequences],
            None if self.ratings is None else self.ratings[sequences],
            None if self.step_label is None or known is None else self.step_label[known],
            None if self.step_unit is None or known is None else torch.searchsorted(units, self.step_unit[known]),
            len(units),
        ), units

    def to(self, device: torch.device) -> UnitTargets:
        moved: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Tensor) else value for name, value in vars(self).items()
        }
        return UnitTargets(**moved)


def unit_losses(
    config: RewardLossConfig, scores: Float[Tensor, "answers criteria"], targets: UnitTargets
) -> Float[Tensor, " units"]:
    """The loss of each unit from one member's scores [S, C]; of steps from one score for each step.

    A ranking under a loss of pairs is the mean over all its pairs (InstructGPT, arXiv 2203.02155), of which ties are left out by
    bradley_terry.
    """
    units = targets.units
    if config.name == "regression":
        assert targets.ratings is not None
        ratings = targets.ratings.to(scores.dtype)
        counted = (~ratings.isnan()).sum(1).clamp(min=1)
        terms = torch.stack([rating_loss(scores[:, c], ratings[:, c]) for c in range(ratings.shape[1])]).sum(0)
        return mean_by_unit(terms / counted, targets.unit, units)
    score = scores[:, 0]
    if config.name == "logistic":
        if targets.step_label is not None and targets.step_unit is not None:
            return mean_by_unit(step_label_loss(score, targets.step_label), targets.step_unit, units)
        assert targets.label is not None
        return mean_by_unit(step_label_loss(score, targets.label), targets.unit, units)
    margin = None if targets.margin is None else targets.margin.to(score.dtype)
    losses = _of_ranks(config, has_margin=margin is not None)(Ranked(score, targets.unit, targets.rank, margin))
    if not config.centering:
        return losses
    pairs = comparisons(targets.unit, targets.rank)
    both = centering_loss(score[pairs.first], score[pairs.second])
    return losses + config.centering * mean_by_unit(both, targets.unit[pairs.first], units)


def _of_ranks(config: RewardLossConfig, *, has_margin: bool) -> RewardLoss:
    """The loss of pairs and rankings, without its centering, which any of them may have."""
    if config.name == "plackett_luce":
        return PlackettLuce(config.top)
    if config.name == "bradley_terry":
        return BradleyTerry(config.margin_scale if has_margin else 0.0, config.label_smoothing)
    if config.name == "davidson":
        return Davidson() if config.tie is None else Davidson(config.tie)
    assert config.name == "rao_kupper"
    return RaoKupper() if config.tie is None else RaoKupper(config.tie)
