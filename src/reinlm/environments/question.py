"""The simplest environment: one question, one answer."""

from __future__ import annotations

from reinlm.environments.protocol import Action, Observation, StepResult
from reinlm.records import Task


class Question:
    """The model reads the content of the task and answers once; reward functions score the answer."""

    name = "question"

    async def reset(self, task: Task) -> Observation:
        """The task's own content."""
        return None

    async def step(self, action: Action) -> StepResult:
        """End the episode without a reward."""
        return StepResult(terminated=True, info={"reason": "stop"})
