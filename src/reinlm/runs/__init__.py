"""The files of a run: folder, metrics, rollouts and checkpoints. Importing it does not import torch."""

from reinlm.renamed import renamed
from reinlm.runs.checkpoints import Checkpoints, load_state
from reinlm.runs.declarations import METRICS, Metric, declare_metrics, without_clocks
from reinlm.runs.folder import RunFolder, read_run
from reinlm.runs.metrics import MetricsLog, MetricSums, read_metrics
from reinlm.runs.progress import Progress
from reinlm.runs.schema import RolloutLog
from reinlm.runs.state import random_states, restore_random_states

__all__ = [
    "METRICS",
    "Checkpoints",
    "Metric",
    "MetricSums",
    "MetricsLog",
    "Progress",
    "RolloutLog",
    "RunFolder",
    "declare_metrics",
    "load_state",
    "random_states",
    "read_metrics",
    "read_run",
    "restore_random_states",
    "without_clocks",
]

renamed(
    __name__,
    {
        "Interrupted": "reinlm.loop:Interrupted",
        "Loop": "reinlm.loop:Loop",
        "LoopSettings": "reinlm.loop:LoopSettings",
        "RunResult": "reinlm.loop:RunResult",
        "Task": "reinlm.loop:Run",
    },
)
