"""A loss term as users write it, checked where it is called."""

from __future__ import annotations

import torch
from torch import Tensor

from reinlm.errors import InputError, ReinlmError, error_line
from reinlm.objectives import LossTerm, PolicyDistribution, Signals


def term_loss(term: LossTerm, logprobs: Tensor, signals: Signals, distribution: PolicyDistribution) -> Tensor:
    """The loss that a term gives each token, [tokens]. Raises InputError where a user's own fails, or gives something else."""
    name = getattr(term, "__name__", type(term).__name__)
    try:
        losses = term(logprobs, signals, distribution)
    except (ReinlmError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(f"loss term {name} fails: {error_line(error)}") from error
    if not isinstance(losses, Tensor) or losses.shape not in (logprobs.shape, ()):
        found = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            f"loss term {name} gives {found}", hint=f"return the loss of each of the {len(logprobs)} tokens"
        )
    return losses
