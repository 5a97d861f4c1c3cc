"""Advantages that sum rewards over time, with a critic or without, and whitening around any advantage.

Only tokens that the policy chose are steps: tool output between turns is no state. The outcome reward lands on the last
token of the episode; one without a reward gets advantage 0.

With `bootstrap_truncated` a truncated episode is continued by the value of its last state (`Feedback.final_values`). Without,
it counts as ended, because the reward function has scored the truncated answer: usual for language models, whose limit
belongs to the task, and safer at γ = 1, where the value of a state that is always the last has only itself as a target and
may drift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from reinlm.objectives.advantages import Advantage, Feedback, Need
from reinlm.objectives.earlier import earlier_names
from reinlm.objectives.groups import whiten
from reinlm.objectives.layout import Layout
from reinlm.objectives.registry import choice, nested
from reinlm.objectives.returns import check_fraction, gae, lambda_returns, n_step_returns, vtrace

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class _Steps:
    """The episodes of a batch as trajectories, time first: a column an episode."""

    rewards: Float[Tensor, " steps episodes"]
    values: Float[Tensor, " steps episodes"]
    next_values: Float[Tensor, " steps episodes"]
    terminated: Bool[Tensor, " steps episodes"]
    truncated: Bool[Tensor, " steps episodes"]


def landed_rewards(feedback: Feedback) -> Float[Tensor, " tokens"]:
    """Every reward on its token: the outcome on the last one, process and token rewards on theirs."""
    layout = feedback.layout
    outcome = torch.where(feedback.effective_rewards.isnan(), 0.0, feedback.effective_rewards)
    rewards = torch.where(layout.last("episode"), layout.expand(outcome, "episode"), 0.0)
    if feedback.effective_step_rewards is not None and feedback.effective_step_tokens is not None:
        rewards = rewards.index_add(0, feedback.effective_step_tokens, feedback.effective_step_rewards)
    return rewards if feedback.token_rewards is None else rewards + feedback.token_rewards


def _trajectories(feedback: Feedback, name: str, bootstrap: bool) -> _Steps:
    """With a critic's values. Raises ValueError where they are missing."""
    layout = feedback.layout
    if feedback.values is None:
        raise ValueError(f"{name} needs a critic: Feedback.values is missing")
    never = feedback.truncated is None or not bootstrap
    cut = (
        torch.zeros_like(feedback.effective_rewards, dtype=torch.bool) if never else cast("Tensor", feedback.truncated)
    )
    if feedback.final_values is None and bool(cut.any()):
        raise ValueError(f"{name} of a truncated episode needs the value of its last state: Feedback.final_values")
    final = torch.zeros_like(feedback.effective_rewards) if feedback.final_values is None else feedback.final_values
    last, ends = layout.last("episode"), layout.expand(cut, "episode")
    values = layout.pad(feedback.values, "episode")
    following = layout.unpad(values.roll(-1, dims=0), "episode")
    successor = torch.where(last, layout.expand(final, "episode"), following)
    return _Steps(
        rewards=layout.pad(landed_rewards(feedback), "episode"),
        values=values,
        next_values=layout.pad(successor, "episode"),
        terminated=layout.pad(last & ~ends, "episode"),
        truncated=layout.pad(last & ends, "episode"),
    )


def _tokens(padded: Tensor, feedback: Feedback) -> Float[Tensor, " tokens"]:
    """Back to tokens, 0 where the episode got no reward."""
    return torch.where(feedback.given, feedback.layout.unpad(padded, "episode"), 0.0)


def discounted_returns(
    rewards: Float[Tensor, " tokens"], layout: Layout, gamma: float = 1.0
) -> Float[Tensor, " tokens"]:
    """G_t = R_t + gamma · G_{t+1} within every episode: the λ-return with λ = 1 and no values."""
    padded = layout.pad(rewards, "episode")
    never = torch.zeros_like(padded, dtype=torch.bool)
    returns = lambda_returns(padded, torch.zeros_like(padded), never, never, gamma=gamma, gae_lambda=1.0)
    return layout.unpad(returns, "episode")


@choice("advantage", "returns")
@earlier_names
@dataclass(frozen=True)
class Returns(Advantage):
    """The discounted return from each token on, against no baseline. REINFORCE, Williams 1992."""

    gamma: float = 1.0
    """Discount, in [0, 1]."""
    sums_rewards = True

    def __post_init__(self) -> None:
        check_fraction("returns: gamma", self.gamma)

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        returns = discounted_returns(landed_rewards(feedback), feedback.layout, self.gamma)
        return torch.where(feedback.given, returns, 0.0)


@choice("advantage", "gae")
@earlier_names
@dataclass(frozen=True)
class GAE(Advantage):
    """Generalised advantage estimation with a critic, arXiv 1506.02438.

    The critic learns A + V with its own λ (decoupled GAE, VC-PPO, arXiv 2503.01491: `critic_lambda=1`), by default the
    same. With `length_adaptive` α the policy's λ is 1 - 1 / (α · L), clamped to [0, 1], for an episode of L chosen tokens,
    in place of `gae_lambda` (VAPO, arXiv 2504.05118, α = 0.05).
    """

    gamma: float = 1.0
    """Discount, in [0, 1]."""
    gae_lambda: float = 0.95
    """λ of the policy's advantage, in [0, 1]."""
    critic_lambda: float | None = None
    """λ of the critic's targets, in [0, 1]; None: as `gae_lambda`."""
    length_adaptive: float | None = None
    """α of λ = 1 - 1 / (α · L), more than 0; None: `gae_lambda` at every length."""
    bootstrap_truncated: bool = True
    """An answer that was cut off goes on with the critic's value; otherwise with 0."""
    needs = frozenset({"critic"})
    sums_rewards = True

    def __post_init__(self) -> None:
        check_fraction("gae: gamma", self.gamma)
        check_fraction("gae: gae_lambda", self.gae_lambda)
        if self.critic_lambda is not None:
            check_fraction("gae: critic_lambda", self.critic_lambda)
        if self.length_adaptive is not None and not 0.0 < self.length_adaptive < float("inf"):
            raise ValueError(f"gae: length_adaptive must be more than 0 and finite, not {self.length_adaptive}")

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return self._estimate(feedback, self._policy_lambda(feedback.layout))

    def targets(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        own = self._policy_lambda(feedback.layout) if self.critic_lambda is None else self.critic_lambda
        advantages = self._estimate(feedback, own)
        return advantages + cast("Tensor", feedback.values)

    def _policy_lambda(self, layout: Layout) -> float | Float[Tensor, " episodes"]:
        if self.length_adaptive is None:
            return self.gae_lambda
        return adaptive_lambda(layout.count("episode"), self.length_adaptive)

    def _estimate(self, feedback: Feedback, gae_lambda: float | Tensor) -> Float[Tensor, " tokens"]:
        s = _trajectories(feedback, "GAE", self.bootstrap_truncated)
        padded = gae(
            s.rewards,
            s.values,
            s.next_values,
            s.terminated,
            s.truncated,
            gamma=self.gamma,
            gae_lambda=gae_lambda,
        )
        return _tokens(padded, feedback)


def adaptive_lambda(lengths: Int[Tensor, " episodes"], alpha: float) -> Float[Tensor, " episodes"]:
    """λ = 1 - 1 / (α · L), clamped to [0, 1]; float64. VAPO, arXiv 2504.05118."""
    return (1.0 - 1.0 / (alpha * lengths.double().clamp(min=1.0))).clamp(0.0, 1.0)


@choice("advantage", "n_step")
@earlier_names
@dataclass(frozen=True)
class NStep(Advantage):
    """n rewards, then the critic's value, minus the value of the state. A3C, arXiv 1602.01783."""

    n: int
    """Rewards before the critic's value, at least 1."""
    gamma: float = 1.0
    """Discount, in [0, 1]."""
    bootstrap_truncated: bool = True
    """An answer that was cut off goes on with the critic's value; otherwise with 0."""
    needs = frozenset({"critic"})
    sums_rewards = True

    def __post_init__(self) -> None:
        check_fraction("n_step: gamma", self.gamma)
        if self.n < 1:
            raise ValueError(f"n_step: n must be at least 1, not {self.n}")

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return self._returns(feedback, lambda s: s.values)

    def targets(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return self._returns(feedback, lambda s: torch.zeros_like(s.values))

    def _returns(self, feedback: Feedback, baseline: Callable[[_Steps], Tensor]) -> Float[Tensor, " tokens"]:
        s = _trajectories(feedback, "n-step", self.bootstrap_truncated)
        returns = n_step_returns(s.rewards, s.next_values, s.terminated, s.truncated, gamma=self.gamma, n=self.n)
        return _tokens(returns - baseline(s), feedback)


@choice("advantage", "vtrace")
@earlier_names
@dataclass(frozen=True)
class VTrace(Advantage):
    """Off-policy targets with truncated importance weights of the sampler. IMPALA, arXiv 1802.01561."""

    gamma: float = 1.0
    """Discount, in [0, 1]."""
    gae_lambda: float = 1.0
    """λ, in [0, 1]; multiplies the trace weights."""
    value_cap: float = 1.0
    """ρ̄: bound on the weights of the TD errors; more than 0."""
    trace_cap: float = 1.0
    """c̄: bound on the weights of the traces; more than 0."""
    policy_cap: float = 1.0
    """Bound on the weights in the policy's advantage; more than 0."""
    bootstrap_truncated: bool = True
    """An answer that was cut off goes on with the critic's value; otherwise with 0."""
    needs = frozenset({"critic", "importance"})
    sums_rewards = True

    def __post_init__(self) -> None:
        check_fraction("vtrace: gamma", self.gamma)
        check_fraction("vtrace: gae_lambda", self.gae_lambda)
        for name in ("value_cap", "trace_cap", "policy_cap"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"vtrace: {name} must be more than 0, not {getattr(self, name)}")

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return _tokens(self._estimate(feedback)[1], feedback)

    def targets(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return _tokens(self._estimate(feedback)[0], feedback)

    def _estimate(self, feedback: Feedback) -> tuple[Tensor, Tensor]:
        if feedback.log_importance is None:
            raise ValueError("V-trace needs the ratio of policy and sampler: Feedback.log_importance is missing")
        s = _trajectories(feedback, "V-trace", self.bootstrap_truncated)
        return vtrace(
            feedback.layout.pad(feedback.log_importance, "episode"),
            s.rewards,
            s.values,
            s.next_values,
            s.terminated,
            s.truncated,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            value_cap=self.value_cap,
            trace_cap=self.trace_cap,
            policy_cap=self.policy_cap,
        )


@choice("advantage", "whitened")
@dataclass(frozen=True)
class Whitened(Advantage):
    """Another advantage, shifted and scaled to mean 0 and deviation 1 over the whole collected batch.

    REINFORCE++, arXiv 2501.03262, and PPO's usual normalisation. Over tokens, or with `by="episode"` over episodes: one
    number each, for advantages that are equal at all tokens of an episode, so that long answers do not count more
    (ScaleRL, arXiv 2510.13786). Episodes without a reward are out of the statistics, and those without a token.
    """

    advantage: Advantage = field(metadata=nested("advantage"))
    """The advantage that is shifted and scaled."""
    by: str = "token"
    """"token" or "episode"."""
    bessel: bool = False
    """Divide the variance by n - 1 in place of n."""

    def __post_init__(self) -> None:
        if self.by not in {"token", "episode"}:
            raise ValueError(f"whitened: by is token or episode, not {self.by!r}")

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """What the inner advantage needs."""
        return self.advantage.needs

    @property
    def sums_rewards(self) -> bool:  # type: ignore[override]
        return self.advantage.sums_rewards

    @property
    def reads_rewards(self) -> bool:  # type: ignore[override]
        return self.advantage.reads_rewards

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        advantages, layout = self.advantage(feedback), feedback.layout
        if self.by == "token":
            kept = feedback.given
            return advantages.masked_scatter(kept, whiten(advantages[kept], bessel=self.bessel))
        scored = ~feedback.effective_rewards.isnan() & (layout.count("episode") > 0)
        episodes = layout.mean(advantages, "episode")
        return layout.expand(episodes.masked_scatter(scored, whiten(episodes[scored], bessel=self.bessel)), "episode")

    def trained(self, feedback: Feedback) -> Bool[Tensor, " episodes"]:
        return self.advantage.trained(feedback)

    def targets(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return self.advantage.targets(feedback)


globals()["discounted_returns"] = earlier_names(discounted_returns)  # no decorator: mutation tests skip decorated ones
