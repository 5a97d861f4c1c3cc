"""Learning from a teacher on the student's own samples: MiniLLM, arXiv 2306.08543; GKD, arXiv 2306.13649.

The divergence KL(π_θ ‖ π_teacher) of each token is followed either through samples, as an advantage (`TeacherLogRatio`), or
over the whole vocabulary, as a loss: `KL("full", anchor="teacher")`, with `NoAdvantage` where nothing else is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reinlm.objectives.advantages import Advantage, Feedback
from reinlm.objectives.ratios import exponent
from reinlm.objectives.registry import choice

if TYPE_CHECKING:
    from jaxtyping import Float


@choice("advantage", "teacher_log_ratio")
@dataclass(frozen=True)
class TeacherLogRatio(Advantage):
    """A_t = log π_teacher(y_t) - log π_old(y_t), each token for itself: no return, no baseline, no reward.

    At the first update of a batch its policy gradient is, in expectation, -∇ KL(π_θ ‖ π_teacher) at each state. Clamped to
    ±20, so that a token which the teacher rules out is no infinity; 0 where the episode got no reward. Raises ValueError where
    `Feedback.teacher_logprobs` or `Feedback.old_logprobs` is missing.
    """

    needs = frozenset({"teacher"})
    reads_rewards = False

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        if feedback.teacher_logprobs is None or feedback.old_logprobs is None:
            raise ValueError("a teacher's log-ratio needs Feedback.teacher_logprobs and Feedback.old_logprobs")
        difference = exponent(feedback.teacher_logprobs - feedback.old_logprobs)
        return torch.where(feedback.given, difference, 0.0)


@choice("advantage", "none")
@dataclass(frozen=True)
class NoAdvantage(Advantage):
    """0 for every token: the loss is that of its KL and of its other terms alone."""

    reads_rewards = False

    def __call__(self, feedback: Feedback) -> Float[Tensor, " tokens"]:
        return feedback.rewards.new_zeros(feedback.layout.tokens)
