"""The loop that every run shares, the events that it sends, callbacks and trackers. Imports no torch when it is loaded."""

from reinlm.loop import metrics as metrics  # importing the loop declares its metrics
from reinlm.loop.callbacks import Callback, Control, check_callbacks
from reinlm.loop.early_stopping import EarlyStopping
from reinlm.loop.events import (
    BatchPrepared,
    Evaluated,
    Event,
    GroupScored,
    Logged,
    RunEnded,
    RunStarted,
    Saved,
    StepEnded,
    StepStarted,
    Updated,
)
from reinlm.loop.interrupts import Interrupted
from reinlm.loop.loop import Loop, LoopSettings, RunResult
from reinlm.loop.run import Run, StepContext, StepResult
from reinlm.loop.trackers import build_trackers, check_trackers, tracker

__all__ = [
    "BatchPrepared",
    "Callback",
    "Control",
    "EarlyStopping",
    "Evaluated",
    "Event",
    "GroupScored",
    "Interrupted",
    "Logged",
    "Loop",
    "LoopSettings",
    "Run",
    "RunEnded",
    "RunResult",
    "RunStarted",
    "Saved",
    "StepContext",
    "StepEnded",
    "StepResult",
    "StepStarted",
    "Updated",
    "build_trackers",
    "check_callbacks",
    "check_trackers",
    "tracker",
]
