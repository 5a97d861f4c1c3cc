"""`Feedback`, the rewards of a batch, and `Advantage`, the base of all advantage estimators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from reinlm.objectives.layout import Layout

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Feedback:
    """The rewards of one collected batch, as earned and as adjusted by the algorithm; float64.

    Rewards as earned are never overwritten: shaping, costs, a KL in the sequence's reward and filters give `adjusted_rewards`
    and `adjusted_step_rewards`. Advantages read `effective_rewards` etc.: the adjusted ones if they are set.

    Example: two answers to one prompt, the second wrong, a step reward of 0.5 on the token with flat index 2:
        Feedback(layout, rewards=tensor([1., 0.]), step_rewards=tensor([0.5]), step_tokens=tensor([2]))
    """

    layout: Layout
    rewards: Float[Tensor, " episodes"]
    """[E] outcome rewards as earned; NaN: no reward, so the episode is in no statistic and its advantage is 0."""
    step_rewards: Float[Tensor, " steps"] | None = None
    """Process rewards as earned."""
    step_tokens: Int[Tensor, " steps"] | None = None
    """Flat token index of each process reward."""
    values: Float[Tensor, " tokens"] | None = None
    """[N] the critic's value of the state before each token."""
    final_values: Float[Tensor, " episodes"] | None = None
    """[E] the critic's value of the state after the last token; used for truncated episodes."""
    truncated: Bool[Tensor, " episodes"] | None = None
    """[E] whether a limit ended the episode. None: none was truncated."""
    token_rewards: Float[Tensor, " tokens"] | None = None
    """What the algorithm adds to the reward of every token, such as -β · log π/π_ref; read by
    advantages that sum rewards over time."""
    baseline_rewards: Float[Tensor, " groups"] | None = None
    """Outcome reward of the policy's greedy answer to each prompt; NaN: it got none."""
    log_importance: Float[Tensor, " tokens"] | None = None
    """log π_old - log π_rollout of every token."""
    old_logprobs: Float[Tensor, " tokens"] | None = None
    """log π_old of every token: by the trained weights at the start of the update."""
    teacher_logprobs: Float[Tensor, " tokens"] | None = None
    """log π_teacher of every token, given the same text before it."""
    named_rewards: Mapping[str, Float[Tensor, " episodes"]] | None = None
    """[E] outcome of every reward function by name, before weights; NaN: none. Shaping is included under the name of its
    shaper."""
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of each of `named_rewards`."""
    adjusted_rewards: Float[Tensor, " episodes"] | None = None
    """[E] outcome rewards after shaping, costs and KL; NaN: in no statistic. None: as earned."""
    adjusted_step_rewards: Float[Tensor, " adjusted_steps"] | None = None
    """Process rewards after shaping and the division by constraints. None: as earned."""
    adjusted_step_tokens: Int[Tensor, " adjusted_steps"] | None = None
    """Flat token index of each adjusted process reward."""

    def __post_init__(self) -> None:
        names = set(self.named_rewards or ())
        if names != set(self.reward_weights):
            raise ValueError(f"named_rewards {sorted(names)} need a weight each, not {sorted(self.reward_weights)}")
        for name in ("step", "adjusted_step"):
            if (getattr(self, f"{name}_rewards") is None) != (getattr(self, f"{name}_tokens") is None):
                raise ValueError(
                    f"process rewards need the tokens that they land on: give {name}_rewards and {name}_tokens, or neither"
                )

    @property
    def effective_rewards(self) -> Float[Tensor, " episodes"]:
        """The outcome rewards that an advantage compares: the adjusted ones, or those earned where nothing adjusts them."""
        return self.rewards if self.adjusted_rewards is None else self.adjusted_rewards

    @property
    def effective_step_rewards(self) -> Float[Tensor, " effective_steps"] | None:
        """The process rewards that an advantage counts; None where there are none."""
        return self.step_rewards if self.adjusted_step_rewards is None else self.adjusted_step_rewards

    @property
    def effective_step_tokens(self) -> Int[Tensor, " effective_steps"] | None:
        """The flat index of the token on which each of them lands."""
        return self.step_tokens if self.adjusted_step_tokens is None else self.adjusted_step_tokens

    @property
    def effective_named_rewards(self) -> Mapping[str, Float[Tensor, " episodes"]] | None:
        """`named_rewards`, NaN for the episodes that are out of every statistic; None if they were not collected."""
        if self.named_rewards is None:
            return None
        out = self.effective_rewards.isnan()
        return {name: torch.where(out, torch.nan, outcome) for name, outcome in self.named_rewards.items()}

    @property
    def given(self) -> Bool[Tensor, " tokens"]:
        """Whether the episode of each token has a reward that counts."""
        return self.layout.expand(~self.effective_rewards.isnan(), "episode")

    def without(self, episodes: Bool[Tensor, " episodes"]) -> Feedback:
        """A copy in which these episodes have no reward (NaN)."""
        return replace(self, adjusted_rewards=torch.where(episodes, torch.nan, self.effective_rewards))

    def named(self, name: str, what: str) -> Float[Tensor, " episodes"]:
        """The outcomes of one reward function. Raises ValueError where `what` asks for a reward that there is not."""
        known = self.effective_named_rewards or {}
        if name not in known:
            raise ValueError(
                f"{what} reads the reward {name!r}; there are {', '.join(sorted(known)) or 'none by name'}"
            )
        return known[name]


Need = Literal["critic", "group", "greedy", "importance", "named_rewards", "teacher"]


class Advantage:
    """Feedback of a whole collected batch -> advantage of every token [N], a constant to the policy loss.

    The class attributes declare what it reads, so that contradictions are found before a run.
    """

    needs: frozenset[Need] = frozenset()
    """"critic": values of states; "group": more than one answer to a prompt; "greedy": the reward of each prompt's greedy
    answer; "importance": the ratio of policy and sampler; "named_rewards": the outcome of each reward function;
    "teacher": log-probabilities of a teacher."""
    sums_rewards: bool = False
    """Whether it sums rewards over time, and so reads `Feedback.token_rewards`."""
    reads_rewards: bool = True
    """Whether it reads `Feedback.effective_rewards`; otherwise shaping, costs and KL in the reward have no effect."""

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        raise NotImplementedError

    def trained(self, feedback: Feedback) -> Bool[Tensor, " episodes"]:
        """[E] bool: the episodes that may be in the loss; all of them, but for rejection sampling."""
        return torch.ones_like(feedback.effective_rewards, dtype=torch.bool)

    def targets(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        """What a critic learns to predict. Raises ValueError for an advantage without one."""
        raise ValueError(f"{type(self).__name__} has no critic to teach")
