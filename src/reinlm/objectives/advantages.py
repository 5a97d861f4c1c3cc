"""What the episodes of a batch earned, and what an advantage is: how good a token was, against what baseline."""

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
    """What the episodes of one collected batch earned; float64.

    Example: two answers to one prompt, the second wrong, a step reward of 0.5 on the token with flat index 2:
        Feedback(layout, rewards=tensor([1., 0.]), step_rewards=tensor([0.5]), step_tokens=tensor([2]))
    """

    layout: Layout
    rewards: Float[Tensor, " episodes"]
    """Outcome reward of every episode; NaN: none was given, so it is out of every statistic and its advantage is 0."""
    step_rewards: Float[Tensor, " steps"] | None = None
    """Process rewards."""
    step_tokens: Int[Tensor, " steps"] | None = None
    """The flat index of the token on which each process reward lands."""
    values: Float[Tensor, " tokens"] | None = None
    """A critic's value of the state in which each token was chosen."""
    final_values: Float[Tensor, " episodes"] | None = None
    """A critic's value of the state after the last token; used where the episode was truncated."""
    truncated: Bool[Tensor, " episodes"] | None = None
    """Cut off by a limit, not finished. None: no episode was."""
    token_rewards: Float[Tensor, " tokens"] | None = None
    """A reward of every token, such as -β · log π/π_ref; advantages that sum rewards over time take it in."""
    baseline_rewards: Float[Tensor, " groups"] | None = None
    """Outcome reward of the policy's greedy answer to each prompt; NaN: it got none."""
    log_importance: Float[Tensor, " tokens"] | None = None
    """log π_old - log π_rollout of every token."""
    old_logprobs: Float[Tensor, " tokens"] | None = None
    """log π_old of every token: by the trained weights at the start of the update."""
    teacher_logprobs: Float[Tensor, " tokens"] | None = None
    """log π_teacher of every token, given the same text before it."""
    named_rewards: Mapping[str, Float[Tensor, " episodes"]] | None = None
    """Outcome of every reward function by its name, before weights; NaN: it gave none. What shapers add stands here too,
    under a name of its own, so that Σ weight · value is `rewards`."""
    reward_weights: Mapping[str, float] = field(default_factory=dict)
    """The weight of each of `named_rewards`."""

    def __post_init__(self) -> None:
        names = set(self.named_rewards or ())
        if names != set(self.reward_weights):
            raise ValueError(f"named_rewards {sorted(names)} need a weight each, not {sorted(self.reward_weights)}")
        if (self.step_rewards is None) != (self.step_tokens is None):
            raise ValueError(
                "process rewards need the tokens that they land on: give step_rewards and step_tokens, or neither"
            )

    @property
    def given(self) -> Bool[Tensor, " tokens"]:
        """Whether the episode of each token got a reward."""
        return self.layout.expand(~self.rewards.isnan(), "episode")

    def without(self, episodes: Bool[Tensor, " episodes"]) -> Feedback:
        """The same with no reward for some episodes, so that they are out of every statistic."""
        named = {name: torch.where(episodes, torch.nan, x) for name, x in (self.named_rewards or {}).items()}
        return replace(
            self,
            rewards=torch.where(episodes, torch.nan, self.rewards),
            named_rewards=None if self.named_rewards is None else named,
        )

    def named(self, name: str, what: str) -> Float[Tensor, " episodes"]:
        """The outcomes of one reward function. Raises ValueError where `what` asks for a reward that there is not."""
        known = self.named_rewards or {}
        if name not in known:
            raise ValueError(
                f"{what} reads the reward {name!r}; there are {', '.join(sorted(known)) or 'none by name'}"
            )
        return known[name]


Need = Literal["critic", "group", "greedy", "importance", "named_rewards", "teacher"]


class Advantage:
    """Feedback of a whole collected batch -> advantage of every token [N], a constant to the policy loss.

    The attributes let contradictions be refused before anything runs.
    """

    needs: frozenset[Need] = frozenset()
    """"critic": values of states; "group": more than one answer to a prompt; "greedy": the reward of each prompt's greedy
    answer; "importance": the ratio of policy and sampler; "named_rewards": the outcome of each reward function;
    "teacher": log-probabilities of a teacher."""
    sums_rewards: bool = False
    """Whether it sums rewards over time, so that `Feedback.token_rewards` count."""
    reads_rewards: bool = True
    """Whether the values in `Feedback.rewards` count: where not, nothing that changes them has an effect."""

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        raise NotImplementedError

    def targets(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        """What a critic learns to predict. Raises ValueError for an advantage without one."""
        raise ValueError(f"{type(self).__name__} has no critic to teach")
