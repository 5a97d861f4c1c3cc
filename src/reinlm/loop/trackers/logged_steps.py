"""What a tracker keeps in the run folder so that a resumed run goes on in its own run there, each step logged once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reinlm.loop.events import RunStarted
from reinlm.runs.files import write_json


class LoggedSteps:
    """`trackers/NAME.json` in the run folder: an identity, and the last step that was handed to the tracker.

    A step is noted before it is handed over: a process that is killed in between leaves it out there, never twice.
    """

    def __init__(self, event: RunStarted, name: str, identity: str) -> None:
        self.path = Path(event.folder) / "trackers" / f"{name}.json"
        self.path.parent.mkdir(exist_ok=True)
        kept: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8")) if self.path.is_file() else {}
        self.identity: str = kept.get("identity", identity)
        """Of the run there: the one that an earlier process took, or the one given."""
        self._last: int = kept.get("last_step", -1)
        self._write()

    def claim(self, step: int) -> bool:
        """Whether this step is to be handed over: True once for each, in ascending order."""
        if step <= self._last:
            return False
        self._last = step
        self._write()
        return True

    def _write(self) -> None:
        write_json(self.path, {"identity": self.identity, "last_step": self._last})


def as_builtins(value: Any) -> Any:
    """Read-only views as the dicts and lists that other packages take."""
    if hasattr(value, "items"):
        return {str(key): as_builtins(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_builtins(item) for item in value]
    return value
