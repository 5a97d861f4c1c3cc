"""The simplest environment: one question, one answer."""

from __future__ import annotations

from reinlm.environments.protocol import Action, Observation, StepResult
from reinlm.records import Task


class Question:
    """The model reads the task's content and answers once; reward functions say what the answer is worth."""

    name = "question"

    async def reset(self, task: Task) -> Observation:
        """The task's own content."""
        return None

    async def step(self, action: Action) -> StepResult:
        """The end, without a reward: the model's stop token ended the answer."""
        return StepResult(terminated=True, info={"reason": "stop"})
