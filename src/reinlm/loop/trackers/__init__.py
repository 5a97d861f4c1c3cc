"""Trackers: callbacks that write what a run logs to somewhere else. Their packages are imported when a run starts."""

from reinlm.loop.trackers.registry import build_trackers, check_trackers, tracker
from reinlm.loop.trackers.tensorboard import TensorBoardTracker
from reinlm.loop.trackers.trackio import TrackioTracker
from reinlm.loop.trackers.wandb import WandbTracker

__all__ = ["TensorBoardTracker", "TrackioTracker", "WandbTracker", "build_trackers", "check_trackers", "tracker"]
