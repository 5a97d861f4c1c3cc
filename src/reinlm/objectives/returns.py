"""Returns and advantages of trajectories: plain tensors, time first, shared by language models and control tasks.

Everywhere: `next_values` V'_t is the value of the true successor of step t (for a truncated step the final observation's,
not the reset one's). `terminated` ends the bootstrap and the recursion, `truncated` the recursion alone, and the end of
the tensor ends the recursion too. `gamma` γ and `gae_lambda` λ are in [0, 1]; a λ may be a
tensor that broadcasts over a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor

from reinlm.objectives.earlier import earlier_names
from reinlm.objectives.ratios import exponent

if TYPE_CHECKING:
    from jaxtyping import Bool, Float


def check_fraction(name: str, value: float | Tensor) -> None:
    """Raise ValueError unless every value is in [0, 1]."""
    inside = bool(((value >= 0) & (value <= 1)).all()) if isinstance(value, Tensor) else 0.0 <= value <= 1.0
    if not inside:
        raise ValueError(f"{name} must be in [0, 1], not {value}")


@overload
def td_errors(rewards: float, values: float, next_values: float, terminated: bool, *, gamma: float) -> float: ...


@overload
def td_errors(
    rewards: Float[Tensor, " *shape"],
    values: Float[Tensor, " *shape"],
    next_values: Float[Tensor, " *shape"],
    terminated: Bool[Tensor, " *shape"],
    *,
    gamma: float | Float[Tensor, " *discounts"],
) -> Float[Tensor, " *shape"]: ...


def td_errors(
    rewards: float | Float[Tensor, " *shape"],
    values: float | Float[Tensor, " *shape"],
    next_values: float | Float[Tensor, " *shape"],
    terminated: bool | Bool[Tensor, " *shape"],
    *,
    gamma: float | Float[Tensor, " *discounts"],
) -> float | Float[Tensor, " *shape"]:
    """δ_t = R_t + γ (1 - terminated_t) V'_t - V_t. Sutton & Barto (2018) eq. 6.5.

    Of tensors of one shape, or of plain numbers: the step of a table. `gamma` may be a tensor too, one for each item.
    """
    check_fraction("gamma", gamma)
    if isinstance(terminated, Tensor):
        return rewards + gamma * torch.where(terminated, 0.0, next_values) - values
    return rewards + gamma * (0.0 if terminated else next_values) - values


def gae(
    rewards: Float[Tensor, " steps *batch"],
    values: Float[Tensor, " steps *batch"],
    next_values: Float[Tensor, " steps *batch"],
    terminated: Bool[Tensor, " steps *batch"],
    truncated: Bool[Tensor, " steps *batch"],
    *,
    gamma: float,
    gae_lambda: float | Float[Tensor, " *lambdas"],
) -> Float[Tensor, " steps *batch"]:
    """Generalised advantage estimation, arXiv 1506.02438 eq. 16.

        δ_t = R_t + γ (1 - terminated_t) V'_t - V_t
        A_t = δ_t + γ λ (1 - terminated_t)(1 - truncated_t) A_{t+1}

    λ = 0 is one-step TD, λ = 1 Monte Carlo with a baseline. The returns that a critic learns are A + V.
    Raises ValueError for `gamma` (γ) or `gae_lambda` (λ) outside [0, 1].
    """
    check_fraction("gae_lambda", gae_lambda)
    delta = td_errors(rewards, values, next_values, terminated, gamma=gamma)
    return _accumulate(delta, gamma * gae_lambda * (~(terminated | truncated)).to(delta.dtype))


def lambda_returns(
    rewards: Float[Tensor, " steps *batch"],
    next_values: Float[Tensor, " steps *batch"],
    terminated: Bool[Tensor, " steps *batch"],
    truncated: Bool[Tensor, " steps *batch"],
    *,
    gamma: float,
    gae_lambda: float | Float[Tensor, " *lambdas"],
) -> Float[Tensor, " steps *batch"]:
    """The λ-return, Sutton & Barto (2018) eq. 12.18; where V'_t = V_{t+1} it is `gae` + V.

        G_t = R_t + γ (1 - terminated_t) [ (1 - λ) V'_t + λ G_{t+1} ],    G_{t+1} = V'_t where the recursion ends

    λ = 1 with all values 0 is the discounted return. Raises ValueError for γ or λ outside [0, 1].
    """
    check_fraction("gamma", gamma)
    check_fraction("gae_lambda", gae_lambda)
    ends = terminated | truncated
    ends = ends.index_fill(0, torch.tensor([len(ends) - 1], device=ends.device), True) if len(ends) else ends
    bootstrap = torch.where(terminated, 0.0, next_values)
    mixed = rewards + gamma * torch.where(ends, bootstrap, (1.0 - gae_lambda) * bootstrap)
    return _accumulate(mixed, gamma * gae_lambda * (~ends).to(mixed.dtype))


def n_step_returns(
    rewards: Float[Tensor, " steps *batch"],
    next_values: Float[Tensor, " steps *batch"],
    terminated: Bool[Tensor, " steps *batch"],
    truncated: Bool[Tensor, " steps *batch"],
    *,
    gamma: float,
    n: int,
) -> Float[Tensor, " steps *batch"]:
    """n rewards and then the value, Sutton & Barto (2018) eq. 7.1; fewer where the recursion ends earlier.

        G_t = R_t + γ R_{t+1} + … + γ^{n-1} R_{t+n-1} + γ^n V'_{t+n-1}

    Raises ValueError for n < 1 or γ outside [0, 1].
    """
    check_fraction("gamma", gamma)
    if n < 1:
        raise ValueError(f"n-step returns need n of at least 1, not {n}")
    one = rewards + gamma * torch.where(terminated, 0.0, next_values)
    if not len(one):
        return one
    ends = terminated | truncated
    ends = ends.index_fill(0, torch.tensor([len(ends) - 1], device=ends.device), True)
    returns = one
    for _ in range(min(n, len(one)) - 1):
        returns = torch.where(ends, one, rewards + gamma * returns.roll(-1, dims=0))
    return returns


def vtrace(
    log_ratios: Float[Tensor, " steps *batch"],
    rewards: Float[Tensor, " steps *batch"],
    values: Float[Tensor, " steps *batch"],
    next_values: Float[Tensor, " steps *batch"],
    terminated: Bool[Tensor, " steps *batch"],
    truncated: Bool[Tensor, " steps *batch"],
    *,
    gamma: float,
    gae_lambda: float = 1.0,
    value_cap: float = 1.0,
    trace_cap: float = 1.0,
    policy_cap: float = 1.0,
) -> tuple[Float[Tensor, " steps *batch"], Float[Tensor, " steps *batch"]]:
    """Off-policy value targets and advantages, IMPALA, arXiv 1802.01561 eqs. 1 and 4.

        ρ_t = min(value_cap, π/μ)    c_t = λ min(trace_cap, π/μ)    δ_t = ρ_t (R_t + γ V'_t - V_t)
        v_t = V_t + δ_t + γ c_t (v_{t+1} - V_{t+1})
        A_t = min(policy_cap, π/μ) (R_t + γ v_{t+1} - V_t)

    `log_ratios` are log π - log μ, constants. On-policy, with the default caps, v is the λ-return and A its one-step
    advantage. Returns (v, A). Raises ValueError for γ or λ outside [0, 1], or a cap that is not above 0.
    """
    check_fraction("gae_lambda", gae_lambda)
    for name, cap in (("value_cap", value_cap), ("trace_cap", trace_cap), ("policy_cap", policy_cap)):
        if not cap > 0.0:
            raise ValueError(f"vtrace: {name} must be more than 0, not {cap}")
    importance = exponent(log_ratios).exp()
    delta = importance.clamp(max=value_cap) * td_errors(rewards, values, next_values, terminated, gamma=gamma)
    goes_on = ~(terminated | truncated)
    traces = gae_lambda * importance.clamp(max=trace_cap)
    correction = _accumulate(delta, gamma * traces * goes_on.to(delta.dtype))
    targets = values + correction
    if not len(targets):
        return targets, targets
    inside = goes_on.index_fill(0, torch.tensor([len(goes_on) - 1], device=goes_on.device), False)
    following = torch.where(inside, targets.roll(-1, dims=0), torch.where(terminated, 0.0, next_values))
    return targets, importance.clamp(max=policy_cap) * (rewards + gamma * following - values)


def _accumulate(
    terms: Float[Tensor, " steps *batch"], decay: Float[Tensor, " steps *batch"]
) -> Float[Tensor, " steps *batch"]:
    """x_t = terms_t + decay_t · x_{t+1}, with 0 after the last row."""
    out = torch.zeros_like(terms)
    carried = torch.zeros_like(terms[0]) if len(terms) else terms
    for t in reversed(range(len(terms))):
        carried = terms[t] + decay[t] * carried
        out[t] = carried
    return out


for _function in (
    td_errors,
    gae,
    lambda_returns,
    n_step_returns,
    vtrace,
):  # no decorator: mutation tests skip decorated ones
    globals()[_function.__name__] = earlier_names(_function)
