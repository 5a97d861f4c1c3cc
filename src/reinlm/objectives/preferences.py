"""What the losses of direct preference learning have in common; they stand in `reinlm.objectives.preference_choices`.

    constants = loss.prepare(step, constants)     # of the whole optimizer step, no gradient, plain numbers
    losses = loss(part, constants)                # [P] or [S], of one micro-batch; the trainer averages

The formulas stand in `reinlm.objectives.preference_losses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from torch import Tensor

from reinlm.objectives.judged import Labelled, Pairs

if TYPE_CHECKING:
    from jaxtyping import Float

Constants = Mapping[str, float]
"""What `prepare` returns: plain numbers by name, which a checkpoint holds. The next step's `prepare` is given them."""
NONE: Constants = {}

SFT_AGGREGATIONS = ("sequence_mean", "token_mean", "sequence_sum")
"""How the negative log-likelihood of the chosen answers is averaged: of each answer over its tokens; every token of the
step alike, as TRL does; or of each answer summed."""

Judged = TypeVar("Judged", Pairs, Labelled)
Reward = TypeVar("Reward")


class PreferenceLoss(Generic[Judged, Reward]):
    """A loss of each pair (`PairLoss`) or of each labelled answer (`LabelLoss`); a frozen dataclass with its coefficients."""

    takes: ClassVar[Literal["pairs", "labels"]]
    """What it is given: `Pairs`, or `Labelled` answers."""
    needs_reference: ClassVar[bool] = True
    """Whether it reads reference log-probabilities."""
    needs_mismatched: ClassVar[bool] = False
    """Whether `prepare` reads `Labelled.mismatched`."""
    needs_step_logprobs: ClassVar[bool] = False
    """Whether `prepare` reads the policy's log-probabilities of the whole step, which costs a forward pass before the first
    micro-batch; otherwise it reads lengths and labels, and the log-probabilities given to it may be anything."""

    @property
    def needs_margin(self) -> bool:
        """Whether it reads `Pairs.margin`."""
        return False

    def prepare(self, step: Judged, before: Constants = NONE) -> Constants:
        """The constants of one optimizer step, from all of it, without a gradient.

        Args:
            step: all pairs or answers of the step, whatever its micro-batches.
            before: what the previous step's `prepare` returned: running statistics are in it. Empty at the first step.
        """
        return NONE

    def __call__(self, part: Judged, constants: Constants) -> Float[Tensor, " judged"]:
        """The loss of each pair or answer of a part of the step."""
        raise NotImplementedError

    def rewards(self, part: Judged) -> Reward:
        """The implicit reward of each answer, detached: `(chosen [P], rejected [P])` of pairs, [S] of labelled answers."""
        raise NotImplementedError


class PairLoss(PreferenceLoss[Pairs, tuple[Tensor, Tensor]]):
    """A loss of each pair."""

    takes = "pairs"


class LabelLoss(PreferenceLoss[Labelled, Tensor]):
    """A loss of each answer that is labelled desirable or not."""

    takes = "labels"


def require(loss: str, **values: float) -> None:
    """Raise ValueError for a coefficient that is not more than 0 and finite."""
    for name, value in values.items():
        if not 0.0 < value < float("inf"):
            raise ValueError(f"{loss}: {name} must be more than 0 and finite, not {value}")


def require_not_negative(loss: str, **values: float) -> None:
    """Raise ValueError for a coefficient below 0, or one that is not finite."""
    for name, value in values.items():
        if not 0.0 <= value < float("inf"):
            raise ValueError(f"{loss}: {name} must be at least 0 and finite, not {value}")


def require_smoothing(loss: str, value: float) -> None:
    """Raise ValueError for a share of wrong labels that is not at least 0 and below ½."""
    if not 0.0 <= value < 0.5:
        raise ValueError(f"{loss}: label_smoothing is a share of wrong labels, at least 0 and below 0.5, not {value}")


class ReferenceRewards(PairLoss):
    """Implicit rewards β a of both answers."""

    beta: float

    def rewards(self, part: Pairs) -> tuple[Tensor, Tensor]:
        chosen, rejected = part.log_ratios
        return self.beta * chosen.detach(), self.beta * rejected.detach()


class Imitation(PairLoss):
    """A loss with the negative log-likelihood of the chosen answer beside it."""

    sft_coefficient: float
    sft_aggregation: str

    def prepare(self, step: Pairs, before: Constants = NONE) -> Constants:
        return {"chosen_length": float(step.chosen_length.double().mean())}

    def imitation(self, part: Pairs, constants: Constants) -> Float[Tensor, " pairs"]:
        """sft_coefficient · the negative log-likelihood of each chosen answer [P]."""
        summed, mean = -part.sums[0], -part.means[0]
        if self.sft_aggregation == "sequence_sum":
            return self.sft_coefficient * summed
        if self.sft_aggregation == "sequence_mean":
            return self.sft_coefficient * mean
        return self.sft_coefficient * summed / max(constants["chosen_length"], 1.0)

    def _check_sft(self, loss: str) -> None:
        require_not_negative(loss, sft_coefficient=self.sft_coefficient)
        if self.sft_aggregation not in SFT_AGGREGATIONS:
            names = ", ".join(SFT_AGGREGATIONS)
            raise ValueError(f"{loss}: sft_aggregation is one of {names}, not {self.sft_aggregation!r}")
