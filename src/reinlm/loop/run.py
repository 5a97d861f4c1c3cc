"""The interface between the loop and a run: `Run`, `StepContext`, `StepReport`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reinlm.loop.events import Event
from reinlm.runs.schema import RolloutLog

NO_CHECKPOINT = "none yet"


def _ignore(event: Event) -> None:
    """Ignores the events of a run that is stepped without a loop."""


@dataclass(frozen=True)
class StepContext:
    """The arguments of a step besides its number.

    Example:
        StepContext(last_checkpoint="runs/x/checkpoints/step_50", rollouts=RolloutLog(…), send=…)
    """

    last_checkpoint: str = NO_CHECKPOINT
    """The newest checkpoint, for error messages."""
    rollouts: RolloutLog | None = None
    """Where samples are written; None: nowhere."""
    send: Callable[[Event], None] = _ignore
    """Sends an event to the callbacks."""


ALONE = StepContext()
"""The context of a run that is stepped without a loop."""


@dataclass(frozen=True)
class StepReport:
    """The result of a step.

    Example:
        StepReport({"loss": 0.3}, stop="grpo kept none of 32 groups in 8 rounds: nothing to learn from")
    """

    metrics: Mapping[str, float]
    stop: str | None = None
    """Why the run should stop; None to continue."""
    done: int | None = None
    """The step that was reached, where it may lie beyond the one asked for; None: that one."""


class Run(Protocol):
    """The interface that the loop needs.

    Implemented by `reinlm.training.rl.RLRun`, `reinlm.training.sft.SFTRun`, `reinlm.classical.run.Control`.
    """

    @property
    def kind(self) -> str: ...

    @property
    def policy(self) -> Any:
        """The trained policy, returned in `RunResult`."""

    @property
    def total_steps(self) -> int: ...

    @property
    def version(self) -> int | None:
        """Optimizer steps made so far; the weights change only when it does. None if they are not counted."""

    def step(self, step: int, context: StepContext) -> StepReport:
        """Train up to this step (from 1), or beyond it to the end of a batch.

        Sends `GroupScored`, `BatchPrepared` and `Updated` where they apply.
        """

    def evaluate(self, step: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Metrics `eval/SET/…` and sample answers; both empty without an evaluation set."""

    def set_learning_rate(self, value: float) -> None:
        """Train with this rate from the next step on, in place of the schedule's."""

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the rate from the next step on."""

    def save(self, folder: Path) -> None:
        """Write what is trained into a checkpoint's folder."""

    def restore(self, folder: Path) -> None:
        """Restore exactly what `save` wrote."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
