"""The losses of reward models as frozen dataclasses, which hold their coefficients.

The formulas stand in `reinlm.objectives.reward_losses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from reinlm.objectives import reward_losses as formulas
from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Float, Int


@dataclass(frozen=True)
class Ranked:
    """Scores of S answers in U units, each a pair, a ranking or a single answer; the best of a unit first.

    Raises ValueError for tensors of several shapes, and for units or ranks out of order.

    Example: one pair, and a ranking of three whose last two tie:
        Ranked(scores, unit=torch.tensor([0, 0, 1, 1, 1]), rank=torch.tensor([0, 1, 0, 1, 1]))
    """

    scores: Float[Tensor, " answers"]
    """[S], with a gradient."""
    unit: Int[Tensor, " answers"]
    """[S] the unit of each, from 0, ascending, without a gap."""
    rank: Int[Tensor, " answers"]
    """[S] the place in it, from 0, ascending; equal ones tie."""
    margin: Float[Tensor, " units"] | None = None
    """[U] by how much the better answer is better, where somebody said so; NaN: nobody did, as 0."""
    ratings: Float[Tensor, " answers"] | None = None
    """[S] what people gave; NaN: nothing."""

    def __post_init__(self) -> None:
        for name in ("scores", "unit", "rank", "ratings"):
            self._check_shape(name, len(self.scores))
        steps = self.unit.diff()
        starts = len(self.unit) == 0 or int(self.unit[0]) == 0
        if not starts or bool(((steps < 0) | (steps > 1)).any()):
            raise ValueError("units are numbered from 0, ascending, without a gap")
        first = torch.ones_like(self.unit, dtype=torch.bool)
        first[1:] = steps == 1
        if bool(((self.rank.diff() < 0) & (steps == 0)).any()) or bool((self.rank[first] != 0).any()):
            raise ValueError("the ranks of a unit ascend from 0: the best answer is first")
        self._check_shape("margin", self.units)

    def _check_shape(self, name: str, count: int) -> None:
        value = getattr(self, name)
        if value is not None and tuple(value.shape) != (count,):
            raise ValueError(f"{name} has shape {tuple(value.shape)} where {(count,)} is expected")

    @property
    def units(self) -> int:
        """U."""
        return int(self.unit[-1]) + 1 if len(self.unit) else 0

    @property
    def wide_scores(self) -> Float[Tensor, " answers"]:
        """The scores at least in float32."""
        return self.scores.to(torch.promote_types(self.scores.dtype, torch.float32))


class RewardLoss:
    """A loss of each unit; a frozen dataclass with its coefficients."""

    needs_ratings: ClassVar[bool] = False
    """Whether it reads `Ranked.ratings`; otherwise it reads ranks."""
    models_ties: ClassVar[bool] = False
    """Whether answers that tie are learned from as such; otherwise pairs that tie are left out."""

    @property
    def needs_margin(self) -> bool:
        """Whether it reads `Ranked.margin`."""
        return False

    def __call__(self, ranked: Ranked) -> Float[Tensor, " units"]:
        """The loss of each unit [U]; 0 for one that says nothing."""
        raise NotImplementedError

    def win_probability(self, difference: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """The probability that the first of two answers is judged better [P], a tie counted half: σ(d)."""
        return torch.sigmoid(difference)


def _pairs_of(ranked: Ranked) -> tuple[formulas.Comparisons, Tensor, Tensor]:
    """All comparisons of all units, the unit of each, and the difference of scores."""
    pairs = formulas.comparisons(ranked.unit, ranked.rank)
    scores = ranked.wide_scores
    return pairs, ranked.unit[pairs.first], scores[pairs.first] - scores[pairs.second]


@choice("reward_loss", "bradley_terry")
@dataclass(frozen=True)
class BradleyTerry(RewardLoss):
    """-log σ(r_first - r_second - margin_weight · margin), the mean over all pairs of a unit that do not tie.

    With `label_smoothing` and `centering` · (r_first + r_second)² beside it. Bradley & Terry (1952); all pairs of a ranking as in
    InstructGPT, arXiv 2203.02155; margin as in Llama 2, arXiv 2307.09288; centring, arXiv 2312.09244.
    """

    margin_weight: float = 0.0
    """Weight of the judged margin of each unit; at least 0. 1 where margins are in units of the score."""
    label_smoothing: float = 0.0
    """The share of labels that are wrong, from 0 to below 0.5."""
    centering: float = 0.0
    """Weight of the squared sum of both scores; at least 0. TRL has 0.01."""

    def __post_init__(self) -> None:
        for name in ("margin_weight", "centering"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"bradley_terry: {name} must be at least 0 and finite, not {getattr(self, name)}")
        if not 0.0 <= self.label_smoothing < 0.5:
            raise ValueError(
                f"bradley_terry: label_smoothing is a share of wrong labels, at least 0 and below 0.5, not "
                f"{self.label_smoothing}"
            )

    @property
    def needs_margin(self) -> bool:
        return self.margin_weight > 0.0

    def __call__(self, ranked: Ranked) -> Float[Tensor, " units"]:
        pairs, unit, difference = _pairs_of(ranked)
        margin: Tensor | float = 0.0
        if self.needs_margin:
            if ranked.margin is None:
                raise ValueError("bradley_terry: margin_weight needs the margin of each unit, and there are none")
            margin = self.margin_weight * ranked.margin.masked_fill(ranked.margin.isnan(), 0.0)[unit]
        losses = formulas.bradley_terry_loss(difference, margin, self.label_smoothing)
        if self.centering:
            scores = ranked.wide_scores
            losses = losses + self.centering * formulas.centering_loss(scores[pairs.first], scores[pairs.second])
        decided = ~pairs.tied
        return formulas.mean_by_unit(losses[decided], unit[decided], ranked.units)


@choice("reward_loss", "plackett_luce")
@dataclass(frozen=True)
class PlackettLuce(RewardLoss):
    """-Σ_k [s_k - logsumexp(s_k, s_k+1, …)] over the places of a ranking, or over its best `top`. DPO appendix A, 2305.18290.

    Of a pair it is `bradley_terry`.
    """

    top: int | None = None
    """K: only the best K places are learned, the others are what remains; at least 1. null: all."""

    def __post_init__(self) -> None:
        if self.top is not None and self.top < 1:
            raise ValueError(f"plackett_luce: top must be at least 1, not {self.top}")

    def __call__(self, ranked: Ranked) -> Float[Tensor, " units"]:
        return formulas.plackett_luce_loss(ranked.wide_scores, ranked.unit, ranked.rank, self.top)


class _WithTies(RewardLoss):
    """A loss of first, second or tie: the mean over all pairs of a unit."""

    models_ties = True

    def log_probabilities(self, difference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(log P(first), log P(second), log P(tie)) [P]."""
        raise NotImplementedError

    def __call__(self, ranked: Ranked) -> Float[Tensor, " units"]:
        pairs, unit, difference = _pairs_of(ranked)
        first, _, tie = self.log_probabilities(difference)
        return formulas.mean_by_unit(-torch.where(pairs.tied, tie, first), unit, ranked.units)

    def win_probability(self, difference: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        first, _, tie = self.log_probabilities(difference)
        return first.exp() + tie.exp() / 2.0


@choice("reward_loss", "davidson")
@dataclass(frozen=True)
class Davidson(_WithTies):
    """-log P of what was judged, better or tie, of the weights e^(d/2), e^(-d/2) and ν. Davidson (1970)."""

    nu: float = 1.0
    """How likely ties are; more than 0. 1 is ⅓ at equal scores; arXiv 2409.17431 calls ν what is ν/2 here."""

    def __post_init__(self) -> None:
        if not 0.0 < self.nu < float("inf"):
            raise ValueError(f"davidson: nu must be more than 0 and finite, not {self.nu}")

    def log_probabilities(self, difference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return formulas.log_davidson(difference, self.nu)


@choice("reward_loss", "rao_kupper")
@dataclass(frozen=True)
class RaoKupper(_WithTies):
    """-log P of what was judged, better or tie, with P(first) = σ(d - log θ). Rao & Kupper (1967)."""

    theta: float = 3.0
    """How far apart scores must be; more than 1. 3 is a tie in half of the cases at equal scores."""

    def __post_init__(self) -> None:
        if not 1.0 < self.theta < float("inf"):
            raise ValueError(f"rao_kupper: theta must be more than 1 and finite, not {self.theta}")

    def log_probabilities(self, difference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return formulas.log_rao_kupper(difference, self.theta)


@choice("reward_loss", "regression")
@dataclass(frozen=True)
class Regression(RewardLoss):
    """(score - rating)², the mean over the rated answers of a unit. HelpSteer, arXiv 2311.09528."""

    needs_ratings = True

    def __call__(self, ranked: Ranked) -> Float[Tensor, " units"]:
        if ranked.ratings is None:
            raise ValueError("regression needs the rating of each answer, and there are none")
        rated = ~ranked.ratings.isnan()
        losses = formulas.rating_loss(ranked.wide_scores, ranked.ratings)
        return formulas.mean_by_unit(losses[rated], ranked.unit[rated], ranked.units)
