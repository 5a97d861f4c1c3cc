"""What the losses of direct preference learning are given: pairs of answers, and answers that are labelled good or bad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from reinlm.objectives.preference_losses import mean_logprobs

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class _Judged:
    """Tensors of one shape; those that the policy did not compute carry no gradient."""

    policy: ClassVar[frozenset[str]]
    """Fields that may carry a gradient."""

    def __post_init__(self) -> None:
        tensors = self._tensors()
        shape = tensors[next(iter(tensors))].shape
        for name, value in tensors.items():
            if value.ndim != 1 or (name != "mismatched" and value.shape != shape):
                raise ValueError(f"{name} has shape {tuple(value.shape)} where {tuple(shape)} is expected")
            if value.requires_grad and name not in self.policy:
                raise ValueError(f"{name} carries a gradient; the policy's log-probabilities alone may: detach it")

    def _tensors(self) -> dict[str, Tensor]:
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def _map(self, change: Callable[[Tensor], Tensor]) -> Any:
        return replace(self, **{name: change(x) for name, x in self._tensors().items()})


@dataclass(frozen=True)
class Pairs(_Judged):
    """P pairs of answers to one prompt each, the better one first: log-probabilities summed over the tokens of each completion.

    Example:
        >>> pairs = Pairs(torch.tensor([-10.0]), torch.tensor([-12.0]), torch.tensor([-11.0]), torch.tensor([-11.5]),
        ...               torch.tensor([5]), torch.tensor([4]))
        >>> pairs.difference
        tensor([1.5000])

    Raises ValueError for tensors of several shapes, and for a gradient of the reference.
    """

    policy: ClassVar[frozenset[str]] = frozenset({"chosen", "rejected"})

    chosen: Float[Tensor, " pairs"]
    """[P] Σ_t log π_θ of the better completion, with a gradient."""
    rejected: Float[Tensor, " pairs"]
    """[P] of the other."""
    ref_chosen: Float[Tensor, " pairs"] | None
    """[P] Σ_t log π_ref; None without a reference."""
    ref_rejected: Float[Tensor, " pairs"] | None
    """[P] of the other."""
    chosen_length: Int[Tensor, " pairs"]
    """[P] tokens of the completion that are counted in the sums."""
    rejected_length: Int[Tensor, " pairs"]
    """[P] of the other."""
    margin: Float[Tensor, " pairs"] | None = None
    """[P] how much better the chosen one was judged; None where nobody said."""

    def __len__(self) -> int:
        """P."""
        return len(self.chosen)

    @property
    def log_ratios(self) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
        """(a_chosen, a_rejected) [P], at least in float32. Raises ValueError without a reference."""
        return _log_ratio(self.chosen, self.ref_chosen), _log_ratio(self.rejected, self.ref_rejected)

    @property
    def difference(self) -> Float[Tensor, " pairs"]:
        """h = a_chosen - a_rejected [P]."""
        chosen, rejected = self.log_ratios
        return chosen - rejected

    @property
    def sums(self) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
        """log π of each completion [P], at least in float32."""
        return _wide(self.chosen), _wide(self.rejected)

    @property
    def means(self) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
        """Mean log-probability of a token of each completion [P], at least in float32."""
        chosen, rejected = self.sums
        return mean_logprobs(chosen, self.chosen_length), mean_logprobs(rejected, self.rejected_length)

    @property
    def mean_log_ratios(self) -> tuple[Float[Tensor, " pairs"], Float[Tensor, " pairs"]]:
        """(a_chosen / |y_chosen|, a_rejected / |y_rejected|) [P]."""
        chosen, rejected = self.log_ratios
        return mean_logprobs(chosen, self.chosen_length), mean_logprobs(rejected, self.rejected_length)

    def select(self, pairs: Int[Tensor, " chosen"]) -> Pairs:
        """Some of the pairs, in the order given."""
        return self._map(lambda values: values[pairs])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Labelled(_Judged):
    """S single answers, each judged desirable or not: log-probabilities summed over the tokens of each completion.

    Raises ValueError for tensors of several shapes, and for a gradient of the reference.
    """

    policy: ClassVar[frozenset[str]] = frozenset({"logprobs"})

    logprobs: Float[Tensor, " answers"]
    """[S] Σ_t log π_θ, with a gradient."""
    ref_logprobs: Float[Tensor, " answers"] | None
    """[S] Σ_t log π_ref; None without a reference."""
    length: Int[Tensor, " answers"]
    """[S] tokens of the completion."""
    desirable: Bool[Tensor, " answers"]
    """[S] whether the answer was judged good."""
    mismatched: Float[Tensor, " others"] | None = None
    """[M] Σ_t (log π_θ - log π_ref) of completions after prompts of other rows of the step, where a loss `needs_mismatched`; of a
    whole step only, no gradient."""

    def __len__(self) -> int:
        """S."""
        return len(self.logprobs)

    @property
    def log_ratio(self) -> Float[Tensor, " answers"]:
        """a [S], at least in float32. Raises ValueError without a reference."""
        return _log_ratio(self.logprobs, self.ref_logprobs)

    def select(self, answers: Int[Tensor, " chosen"]) -> Labelled:
        """Some of the answers, in the order given, without `mismatched`, which is of the whole step."""
        return replace(self, mismatched=None)._map(lambda values: values[answers])  # type: ignore[no-any-return]


def _wide(values: Tensor) -> Tensor:
    """At least float32: a log-sigmoid of bfloat16 has two digits."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _log_ratio(logprobs: Tensor, ref_logprobs: Tensor | None) -> Tensor:
    if ref_logprobs is None:
        raise ValueError("this loss compares the policy with a reference, and there are no reference log-probabilities")
    return _wide(logprobs) - _wide(ref_logprobs)
