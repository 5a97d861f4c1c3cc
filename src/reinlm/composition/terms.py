"""Loss terms of an algorithm: check that an object is one, and evaluate it on a micro-batch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reinlm.errors import InputError, ReinlmError, error_line
from reinlm.objectives import LossTerm, PolicyDistribution, Signals

if TYPE_CHECKING:
    from jaxtyping import Float

ARGUMENTS = ("logprobs", "signals", "distribution")
"""The arguments of a loss term."""


def check_terms(terms: Sequence[Any]) -> None:
    """Raise ValueError for the first object that cannot be a loss term."""
    for term in terms:
        name = term_name(term)
        if isinstance(term, type) or not callable(term):
            raise ValueError(f"terms: {name} is no loss term; give an object that is called with {_CALL}")
        try:
            inspect.signature(term).bind(*ARGUMENTS)
        except TypeError as error:
            raise ValueError(f"loss term {name} cannot be called with {_CALL}: {error}") from error
        needs = getattr(term, "needs", ())
        if isinstance(needs, str) or not all(isinstance(need, str) for need in needs):
            raise ValueError(f"loss term {name}: needs is a set of names, not {needs!r}")


_CALL = f"({', '.join(ARGUMENTS)})"


def term_name(term: Any) -> str:
    """A term's name in messages: that of its class, or its own for a function or a class."""
    return str(getattr(term, "__name__", type(term).__name__))


def term_needs(terms: Sequence[LossTerm]) -> frozenset[str]:
    """The entropy, signals and columns that terms read; a function without `needs` reads log-probabilities alone."""
    return frozenset(name for term in terms for name in getattr(term, "needs", ()))


def term_losses(
    term: Callable[..., Any], logprobs: Float[Tensor, " tokens"], signals: Signals, distribution: PolicyDistribution
) -> Float[Tensor, " tokens"]:
    """The loss of each token that a term adds, [N].

    Raises InputError, which names the term, if the term raises or does not return a floating-point tensor [N].
    """
    name = term_name(term)
    try:
        losses = term(logprobs, signals, distribution)
    except (ReinlmError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        home = sys.modules.get(getattr(term, "__module__", None) or "")
        raise InputError(f"loss term {name} failed: {error_line(error, getattr(home, '__file__', None))}") from error
    if not isinstance(losses, Tensor):
        raise InputError(f"loss term {name} returned {type(losses).__name__}, not a tensor", hint=_HINT)
    if losses.shape != logprobs.shape or not losses.is_floating_point():
        raise InputError(
            f"loss term {name} returned {losses.dtype} of shape {tuple(losses.shape)} for {len(logprobs)} tokens",
            hint=_HINT,
        )
    return losses


_HINT = "return a floating-point loss of each token, of the shape of logprobs"
