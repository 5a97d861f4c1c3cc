"""How good a token or an answer was, against what baseline. Everything here is a constant to the policy loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from reinlm.objectives.layout import Layout

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

EQUAL = 1e-12
"""Rewards of a group within this fraction of their size are equal: their rounding residue is no signal.

For tensors of fewer bits than float64: within four units in the last place."""


@dataclass(frozen=True)
class Feedback:
    """What the episodes of one collected batch earned; float64.

    Example: two answers to one prompt, the second wrong, a step reward of 0.5 on the token with flat index 2:
        Feedback(layout, rewards=tensor([1., 0.]), step_rewards=tensor([0.5]), step_tokens=tensor([2]))
    """

    layout: Layout
    rewards: Float[Tensor, "episodes"]
    """Outcome reward of every episode; NaN: none was given, so it is out of every statistic and its advantage is 0."""
    step_rewards: Float[Tensor, "steps"] | None = None
    """Process rewards."""
    step_tokens: Int[Tensor, "steps"] | None = None
    """The flat index of the token on which each process reward lands."""
    values: Float[Tensor, "tokens"] | None = None
    """A critic's value of the state in which each token was chosen."""
    final_values: Float[Tensor, "episodes"] | None = None
    """A critic's value of the state after the last token; used where the episode was truncated."""
    truncated: Bool[Tensor, "episodes"] | None = None
    """Cut off by a limit, not finished. None: no episode was."""

    def __post_init__(self) -> None:
        if (self.step_rewards is None) != (self.step_tokens is None):
            raise ValueError(
                "process rewards need the tokens that they land on: give step_rewards and step_tokens, or neither"
            )


class Advantage(Protocol):
    """Feedback of a whole collected batch -> advantage of every token [N]."""

    needs_critic: bool
    needs_group: bool

    def __call__(self, feedback: Feedback) -> Float[Tensor, "tokens"]: ...


# ------------------------------------------------------------------------------------------------ groups


def group_center(
    rewards: Float[Tensor, "members"], group: Int[Tensor, "members"], groups: int
) -> Float[Tensor, "members"]:
    """A = R - mean of the group. Dr. GRPO, arXiv 2503.20783. NaN rewards are left out and get 0; equal rewards get exact 0."""
    return _group_deviation(rewards, group, groups)[0]


def group_standardize(
    rewards: Float[Tensor, "members"],
    group: Int[Tensor, "members"],
    groups: int,
    epsilon: float = 1e-6,
    bessel: bool = False,
) -> Float[Tensor, "members"]:
    """A = (R - mean) / (std + ε) within the group. GRPO, arXiv 2402.03300 §4.1.2.

    The population standard deviation, or with `bessel` the sample one. NaN rewards are left out of the statistics and get 0;
    a group of equal rewards, or of one, gets exact zeros.
    """
    deviation, count = _group_deviation(rewards, group, groups)
    squares = deviation.new_zeros(groups).index_add(0, group, deviation.square())
    variance = squares / (count - 1.0 if bessel else count).clamp(min=1.0)
    return torch.where(deviation == 0.0, 0.0, deviation / (variance.sqrt() + epsilon)[group])


def _group_deviation(
    rewards: Float[Tensor, "members"], group: Int[Tensor, "members"], groups: int
) -> tuple[Float[Tensor, "members"], Float[Tensor, "groups"]]:
    """R - mean, exactly 0 for equal or missing rewards; and how many rewards each group has."""
    given = ~rewards.isnan()
    known = torch.where(given, rewards, 0.0)
    count = known.new_zeros(groups).index_add(0, group, given.to(known.dtype))
    mean = known.new_zeros(groups).index_add(0, group, known) / count.clamp(min=1.0)
    infinite = known.new_full((groups,), torch.inf)
    lowest = infinite.scatter_reduce(0, group, torch.where(given, rewards, torch.inf), "amin")
    highest = (-infinite).scatter_reduce(0, group, torch.where(given, rewards, -torch.inf), "amax")
    return torch.where(given & ~_equal(lowest, highest)[group], known - mean[group], 0.0), count


def _equal(lowest: Float[Tensor, "*shape"], highest: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """Whether the two ends of a range are no further apart than rounding explains."""
    tolerance = max(EQUAL, 4.0 * torch.finfo(highest.dtype).eps)
    return highest - lowest <= tolerance * torch.maximum(lowest.abs(), highest.abs())


def process_advantages(
    normalized: Float[Tensor, "steps"], step_tokens: Int[Tensor, "steps"], layout: Layout
) -> Float[Tensor, "tokens"]:
    """A_t = Σ of the normalised rewards of the steps that end at or after t, within the episode. arXiv 2402.03300 §4.1.3."""
    landed = normalized.new_zeros(layout.tokens).index_add(0, step_tokens, normalized)
    return discounted_returns(landed, layout, discount=1.0)


@dataclass(frozen=True)
class GroupStandardize:
    """The group as the baseline: z-scores of the outcome rewards, and of the process rewards where there are any.

    GRPO, arXiv 2402.03300 §4.1. Process rewards are normalised with mean and deviation of all step rewards of their group,
    and a token's advantage is the sum over the steps that end at or after it; with both kinds the two advantages add.
    """

    epsilon: float = 1e-6
    bessel: bool = False
    needs_critic = False
    needs_group = True

    def __post_init__(self) -> None:
        if not self.epsilon >= 0.0:
            raise ValueError(f"epsilon must be at least 0, not {self.epsilon}")

    def __call__(self, feedback: Feedback) -> Float[Tensor, "tokens"]:
        def normalize(rewards: Tensor, group: Tensor, groups: int) -> Tensor:
            return group_standardize(rewards, group, groups, self.epsilon, self.bessel)

        return _group_advantages(feedback, normalize)


@dataclass(frozen=True)
class GroupCenter:
    """R - mean of the group, undivided: no answer counts more for standing in a group that mostly agrees. arXiv 2503.20783."""

    needs_critic = False
    needs_group = True

    def __call__(self, feedback: Feedback) -> Float[Tensor, "tokens"]:
        return _group_advantages(feedback, group_center)


def _group_advantages(
    feedback: Feedback, normalize: Callable[[Tensor, Tensor, int], Tensor]
) -> Float[Tensor, "tokens"]:
    layout = feedback.layout
    outcome = normalize(feedback.rewards, layout.group_of_episode, layout.groups)
    advantages = layout.expand(outcome, "episode")
    if feedback.step_rewards is None or feedback.step_tokens is None:
        return advantages
    group = layout.index("group")[feedback.step_tokens]
    normalized = normalize(feedback.step_rewards, group, layout.groups)
    return advantages + process_advantages(normalized, feedback.step_tokens, layout)


# ------------------------------------------------------------------------------------------------ returns and GAE


def discounted_returns(
    rewards: Float[Tensor, "tokens"], layout: Layout, discount: float = 1.0
) -> Float[Tensor, "tokens"]:
    """G_t = R_t + discount · G_{t+1} within every episode."""
    padded = layout.pad(rewards, "episode")
    carried = padded.new_zeros(padded.shape[1:])
    returns = []
    for step in reversed(padded.unbind(0)):
        carried = step + discount * carried
        returns.append(carried)
    return layout.unpad(torch.stack(returns[::-1]), "episode") if returns else rewards


def gae(
    rewards: Float[Tensor, "steps *batch"],
    values: Float[Tensor, "steps *batch"],
    next_values: Float[Tensor, "steps *batch"],
    terminated: Bool[Tensor, "steps *batch"],
    truncated: Bool[Tensor, "steps *batch"],
    *,
    discount: float,
    smoothing: float,
) -> Float[Tensor, "steps *batch"]:
    """Generalised advantage estimation, arXiv 1506.02438 eq. 16, time first.

        δ_t = R_t + γ (1 - terminated_t) V'_t - V_t
        A_t = δ_t + γ λ (1 - terminated_t)(1 - truncated_t) A_{t+1}

    `next_values` V'_t is the value of the true successor: for a truncated step the final observation's, not that of the reset
    one. Termination ends the bootstrap and the recursion, truncation the recursion alone; the end of the tensor ends the
    recursion too. λ = 0 is one-step TD, λ = 1 Monte Carlo with a baseline. The returns that a critic learns are A + V.
    Raises ValueError for `discount` (γ) or `smoothing` (λ) outside [0, 1].
    """
    _check_fractions(discount, smoothing)
    delta = rewards + discount * torch.where(terminated, 0.0, next_values) - values
    decay = discount * smoothing * (~(terminated | truncated)).to(delta.dtype)
    advantages = torch.zeros_like(delta)
    carried = torch.zeros_like(delta[0]) if len(delta) else delta
    for t in reversed(range(len(delta))):
        carried = delta[t] + decay[t] * carried
        advantages[t] = carried
    return advantages


def _check_fractions(discount: float, smoothing: float) -> None:
    for name, value in (("discount", discount), ("smoothing", smoothing)):
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"gae: {name} must be in [0, 1], not {value}")


@dataclass(frozen=True)
class GAE:
    """A critic as the baseline. Tool output between turns is no state: only chosen tokens are steps.

    The outcome reward lands on the last token of the episode. An episode that was truncated bootstraps from
    `Feedback.final_values`; one without a reward gets advantage 0.
    """

    discount: float = 1.0
    smoothing: float = 0.95
    needs_critic = True
    needs_group = False

    def __post_init__(self) -> None:
        _check_fractions(self.discount, self.smoothing)

    def __call__(self, feedback: Feedback) -> Float[Tensor, "tokens"]:
        layout = feedback.layout
        if feedback.values is None:
            raise ValueError("GAE needs a critic: Feedback.values is missing")
        cut = torch.zeros_like(feedback.rewards, dtype=torch.bool) if feedback.truncated is None else feedback.truncated
        if feedback.final_values is None and bool(cut.any()):
            raise ValueError("GAE of a truncated episode needs the value of its last state: Feedback.final_values")
        final = torch.zeros_like(feedback.rewards) if feedback.final_values is None else feedback.final_values
        given = ~feedback.rewards.isnan()
        last = layout.last("episode")
        rewards = torch.where(last, layout.expand(torch.where(given, feedback.rewards, 0.0), "episode"), 0.0)
        if feedback.step_rewards is not None and feedback.step_tokens is not None:
            rewards = rewards.index_add(0, feedback.step_tokens, feedback.step_rewards)
        values = layout.pad(feedback.values, "episode")
        following = layout.unpad(values.roll(-1, dims=0), "episode")
        successor = torch.where(last, layout.expand(final, "episode"), following)
        advantages = gae(
            layout.pad(rewards, "episode"),
            values,
            layout.pad(successor, "episode"),
            layout.pad(last & ~layout.expand(cut, "episode"), "episode"),
            layout.pad(last & layout.expand(cut, "episode"), "episode"),
            discount=self.discount,
            smoothing=self.smoothing,
        )
        return torch.where(layout.expand(given, "episode"), layout.unpad(advantages, "episode"), 0.0)


def whiten(x: Float[Tensor, "items"], shift_mean: bool = True, bessel: bool = False) -> Float[Tensor, "items"]:
    """(x - μ) / sqrt(var + 1e-8); with `shift_mean=False` μ is added back, as for reward whitening.

    The population variance, or with `bessel` the sample one. Equal items, a single one among them, are only centred: exact 0.
    """
    if not x.numel() or _equal(x.min(), x.max()):
        return torch.zeros_like(x) if shift_mean else x
    mean = x.mean()
    whitened = (x - mean) * torch.rsqrt(x.var(correction=int(bessel)) + 1e-8)
    return whitened if shift_mean else whitened + mean
