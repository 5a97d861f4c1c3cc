"""Trackio: metrics by step, the configuration, and a table of samples at each evaluation; local unless a Space is named."""

from __future__ import annotations

import math
import secrets
from typing import Any

from reinlm.config import Config
from reinlm.loop.callbacks import Callback, Control
from reinlm.loop.events import Evaluated, Logged, RunEnded, RunStarted
from reinlm.loop.trackers.ledger import Ledger, plain
from reinlm.loop.trackers.registry import tracker


class TrackioConfig(Config):
    """Where a run stands in Trackio."""

    project: str = "reinlm"
    name: str | None = None
    """Of the run; null: the name of its folder and a random suffix."""
    space_id: str | None = None
    """A Hugging Face Space to log to; null: the local store that `trackio show` reads."""


@tracker("trackio", TrackioConfig, package="trackio", extra="trackio")
class TrackioTracker(Callback):
    """One Trackio run for a run folder, also when it is resumed. A value that is not finite is left out."""

    def __init__(self, config: TrackioConfig) -> None:
        self.config = config
        self._run: Any = None
        self._samples: Any = None

    def on_run_started(self, event: RunStarted, control: Control) -> None:
        if event.over:
            return
        import trackio

        name = self.config.name or f"{event.folder.resolve().name}-{secrets.token_hex(3)}"
        self._ledger = Ledger(event, "trackio", name)
        self._run = trackio.init(
            project=self.config.project,
            name=self._ledger.identity,
            space_id=self.config.space_id,
            config=plain(event.config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def on_evaluated(self, event: Evaluated, control: Control) -> None:
        self._samples = event.samples

    def on_logged(self, event: Logged, control: Control) -> None:
        samples, self._samples = self._samples, None
        if self._run is None or not self._ledger.claim(event.step):
            return
        row: dict[str, Any] = {name: value for name, value in event.metrics.items() if math.isfinite(value)}
        if samples:
            import trackio

            columns = list(dict.fromkeys(name for sample in samples for name in sample))
            data = [[plain(sample.get(name)) for name in columns] for sample in samples]
            row["samples_table"] = trackio.Table(columns=columns, data=data)
        self._run.log(row, step=event.step)

    def on_run_ended(self, event: RunEnded, control: Control) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
