"""The report of a run, written however the run ends."""

from __future__ import annotations

from reinlm.insight.report import write_report
from reinlm.loop import Callback, Control, RunEnded


class ReportTracker(Callback):
    """Writes `report.html` once the run is over: finished, stopped, interrupted or failed."""

    def on_run_ended(self, event: RunEnded, control: Control) -> None:
        write_report(event.folder)
