"""The loop of every run, its events, callbacks and trackers. Importing it does not import torch."""

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
from reinlm.loop.loop import Loop
from reinlm.loop.run import Run, StepContext, StepReport
from reinlm.loop.settings import LoopSettings, RunResult
from reinlm.loop.trackers import build_trackers, check_trackers, tracker
from reinlm.renamed import renamed

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
    "StepReport",
    "StepStarted",
    "Updated",
    "build_trackers",
    "check_callbacks",
    "check_trackers",
    "tracker",
]

renamed(__name__, {"StepResult": "reinlm.loop:StepReport"})
