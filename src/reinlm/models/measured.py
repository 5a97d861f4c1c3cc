"""What was measured once on this machine, in a file: so that two runs of one seed compute with the same."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from reinlm.runs.files import write_json


def measured_once(name: str, allowed: Collection[Any], measure: Callable[[], Any]) -> Any:
    """What the file says of `name` on this machine; where it says nothing that is allowed, what is measured now."""
    return _measured_once(name, frozenset(allowed), measure, machine())


@functools.cache
def _measured_once(name: str, allowed: frozenset[Any], measure: Callable[[], Any], here: str) -> Any:
    known = _read()
    found = known.get(here, {}).get(name)
    if found not in allowed:
        found = measure()
        known[here] = {**known.get(here, {}), name: found}
        with contextlib.suppress(OSError):  # where the folder cannot be written, each process measures anew
            measurements_file().parent.mkdir(parents=True, exist_ok=True)
            write_json(measurements_file(), known)
    return found


def forget_measurements() -> None:
    """Read the file anew, as another process would."""
    _measured_once.cache_clear()


def measurements_file() -> Path:
    """`measured.json` of reinlm's folder in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reinlm" / "measured.json"


def machine() -> str:
    """The processor, the number of threads and the version of torch, which decide what is faster."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    told = dict(line.replace("\t", "").split(":", 1) for line in reversed(lines) if ":" in line)
    model = " ".join(told[name].strip() for name in ("vendor_id", "cpu family", "model", "model name") if name in told)
    return f"{model or platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def _read() -> dict[str, Any]:
    try:
        found = json.loads(measurements_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(value, dict) for value in found.values()) else {}
