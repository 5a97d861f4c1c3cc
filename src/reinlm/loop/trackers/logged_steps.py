"""`trackers/NAME.json`: lets a resumed run continue the same run of a tracking service, without logging a step twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reinlm.loop.events import RunStarted
from reinlm.runs.files import write_json


class LoggedSteps:
    """`trackers/NAME.json` in the run folder: the id of the service's run, and the last step passed to the tracker.

    A step is stored here before it is passed on: if the process is killed in between, the service lacks this step; no step
    is logged twice.
    """

    def __init__(self, event: RunStarted, name: str, identity: str) -> None:
        self.path = Path(event.folder) / "trackers" / f"{name}.json"
        self.path.parent.mkdir(exist_ok=True)
        kept: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        self.identity: str = kept.get("identity", identity)
        """Id of the service's run: that of an earlier process, or the one given."""
        self._last: int = kept.get("last_step", -1)
        self._write()

    def claim(self, step: int) -> bool:
        """Whether to log this step: True once for each, in ascending order."""
        if step <= self._last:
            return False
        self._last = step
        self._write()
        return True

    def _write(self) -> None:
        write_json(self.path, {"identity": self.identity, "last_step": self._last})


def as_builtins(value: Any) -> Any:
    """Convert read-only views to dicts and lists."""
    if hasattr(value, "items"):
        return {str(key): as_builtins(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_builtins(item) for item in value]
    return value
