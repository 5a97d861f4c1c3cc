"""Trackio: metrics by step, the configuration, and a table of samples at each evaluation; local unless a Space is named."""

from __future__ import annotations

import contextlib
import io
import math
import secrets
from collections.abc import Mapping
from typing import Any

from reinlm.config import Config
from reinlm.loop.events import RunEnded, RunStarted
from reinlm.loop.trackers.logged_steps import as_builtins
from reinlm.loop.trackers.registry import tracker
from reinlm.loop.trackers.service import ServiceTracker


class TrackioConfig(Config):
    """Project and name of the run in Trackio."""

    project: str = "reinlm"
    """The project that the run belongs to."""
    name: str | None = None
    """Name of the run; null: the name of its folder and a random suffix."""
    group: str | None = None
    """Group of the run; null: none; runs of a queue of seeds or a grid: the name of its folder."""
    space_id: str | None = None
    """A Hugging Face Space to log to; null: the local store that `trackio show` reads."""


@tracker("trackio", TrackioConfig, package="trackio", extra="trackio")
class TrackioTracker(ServiceTracker):
    """One Trackio run for a run folder, also when it is resumed. A value that is not finite is left out.

    What Trackio prints is dropped: the console is the run's own.
    """

    service = "trackio"

    def __init__(self, config: TrackioConfig) -> None:
        super().__init__()
        self.config = config

    def identity(self, event: RunStarted) -> str:
        return self.config.name or f"{event.folder.resolve().name}-{secrets.token_hex(3)}"

    def open(self, event: RunStarted, identity: str) -> Any:
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            return trackio.init(
                project=self.config.project,
                name=identity,
                group=self.config.group,
                space_id=self.config.space_id,
                config=as_builtins(event.config),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(
        self, run: Any, metrics: Mapping[str, float], table: tuple[list[str], list[list[Any]]] | None, step: int
    ) -> None:
        row: dict[str, Any] = {name: value for name, value in metrics.items() if math.isfinite(value)}
        if table is not None:
            import trackio

            columns, data = table
            row["samples_table"] = trackio.Table(columns=columns, data=data)
        run.log(row, step=step)

    def finish(self, run: Any, event: RunEnded) -> None:
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            try:
                trackio.finish()  # it forgets the run too, which it would finish again as the process ends
            except RuntimeError:  # the run was opened in another context, such as a thread
                run.finish()
