"""Events that a run sends to callbacks and trackers: frozen, with read-only views of mappings, lists and arrays.

In their order:

    RunStarted
    Evaluated ─▶ Logged                                                       before training, as step 0
    StepStarted ─▶ GroupScored… ─▶ BatchPrepared ─▶ Updated ─▶ Evaluated? ─▶ StepEnded ─▶ Logged ─▶ Saved?
    RunEnded
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from reinlm.records import ScoredGroup

if TYPE_CHECKING:
    import numpy as np

Reason = Literal["finished", "stopped", "interrupted", "failed"]


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    handler: ClassVar[str]
    """The method of a `Callback` that receives it."""
    asks: ClassVar[bool] = True
    """Whether `control` accepts requests during this event; not before or after a step."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, read_only(getattr(self, field.name)))


@dataclass(frozen=True)
class RunStarted(Event):
    """Sent by the loop once, before the first step of this process, after a checkpoint was restored.

    Example:
        RunStarted("rl", Path("runs/x"), {"seed": 0}, total_steps=100, done=50, after_step=50, stopped=None)
    """

    handler = "on_run_started"
    asks = False
    kind: str
    """The verb: "sft", "rl", "classical"."""
    folder: Path
    """The run's folder."""
    config: Mapping[str, Any]
    """What config.yaml holds: everything resolved, secrets redacted."""
    total_steps: int
    done: int
    """Steps made before; 0 for a new run."""
    after_step: int
    """The last step whose record is kept; later steps are logged again. -1 for none."""
    stopped: str | None
    """Why the resumed run had been stopped; None if it was not."""

    @property
    def over(self) -> bool:
        """Whether no step is left to make."""
        return self.stopped is not None or self.done >= self.total_steps


@dataclass(frozen=True)
class StepStarted(Event):
    """Sent by the loop before each step of the run.

    Example:
        StepStarted(step=12)
    """

    handler = "on_step_started"
    step: int
    """From 1."""


@dataclass(frozen=True)
class GroupScored(Event):
    """Sent by runs of `rl` for each group that it sampled, those dropped by filters included, once all have rewards.

    Example:
        GroupScored(step=12, group=ScoredGroup(…))
    """

    handler = "on_group_scored"
    step: int
    group: ScoredGroup


@dataclass(frozen=True)
class BatchPrepared(Event):
    """Sent by runs of `sft` and `rl` before the first update of a step, when the training batch is complete.

    Example:
        BatchPrepared(step=12, sequences=64, tokens=8123, groups=(ScoredGroup(…), …), advantages=array([…]))
    """

    handler = "on_batch_prepared"
    step: int
    sequences: int
    tokens: int
    """Tokens that are trained on or scored."""
    groups: tuple[ScoredGroup, ...] = ()
    """In `rl`: the groups of the batch, replayed ones last."""
    advantages: np.ndarray | None = None
    """In `rl`: [tokens] advantages, in the order of the groups."""


@dataclass(frozen=True)
class Updated(Event):
    """Sent by every run once a step's updates are made.

    Example:
        Updated(step=12, metrics={"loss": 0.3, "grad_norm": 1.2})
    """

    handler = "on_updated"
    step: int
    metrics: Mapping[str, float]
    """Metrics of the updates."""


@dataclass(frozen=True)
class Evaluated(Event):
    """Sent by the loop after each evaluation with a result; the one before training has step 0.

    Example:
        Evaluated(step=50, metrics={"eval/test/accuracy": 0.4}, samples=[{"prompt": "2+2=", "completion": "4", …}])
    """

    handler = "on_evaluated"
    step: int
    metrics: Mapping[str, float]
    samples: Sequence[Mapping[str, Any]]
    """Some answers of the first set: prompt, completion, reward, end; empty where nothing is sampled."""


@dataclass(frozen=True)
class StepEnded(Event):
    """Sent by the loop when all of a step is measured, before the requests of callbacks take effect.

    Example:
        StepEnded(step=12, metrics={"loss": 0.3, "reward": 0.5, "step_time": 2.1})
    """

    handler = "on_step_ended"
    step: int
    metrics: Mapping[str, float]
    """Metrics of the step and its evaluation; those of callbacks are in `control.logged`."""


@dataclass(frozen=True)
class Logged(Event):
    """Sent by the loop when the record of a step is in metrics.jsonl; trackers write it.

    Example:
        Logged(step=12, metrics={"loss": 0.3, "mine/norm": 4.0, "time": 1.7e9})
    """

    handler = "on_logged"
    asks = False
    step: int
    metrics: Mapping[str, float]
    """All metrics of the record, those of callbacks included."""


@dataclass(frozen=True)
class Saved(Event):
    """Sent by the loop after each checkpoint.

    Example:
        Saved(step=50, path=Path("runs/x/checkpoints/step_50"))
    """

    handler = "on_saved"
    asks = False
    step: int
    path: Path


@dataclass(frozen=True)
class RunEnded(Event):
    """Sent by the loop last, however the run ends, to every callback, also those that have failed.

    A process that is killed sends nothing.

    Example:
        RunEnded("stopped", step=40, message="3 evaluations without a better one (patience)", folder=Path("runs/x"))
    """

    handler = "on_run_ended"
    asks = False
    reason: Reason
    step: int
    """Steps made."""
    message: str | None
    """Why it was stopped, or what interrupted it or failed; None for a run that is finished."""
    folder: Path


def read_only(value: Any) -> Any:
    """A view of plain values that cannot be written to: mappings, sequences and arrays, nested to any depth."""
    if isinstance(value, Mapping):
        return MappingProxyType({key: read_only(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(read_only(item) for item in value)
    if getattr(value, "ndim", 0) and hasattr(value, "setflags"):
        value = value.copy()
        value.setflags(write=False)
    return value
