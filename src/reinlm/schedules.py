"""What a rate is multiplied by as a run goes on. Pure functions of the step, so a resumed run needs no state of theirs."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def scheduled(schedule: Schedule, done: float, final_fraction: float = 0.0) -> float:
    """The factor once the share `done` of the run is over: 1 at 0; at 1 and beyond `final_fraction`, unless constant.

        linear: 1 - done        cosine: ½ (1 + cos π done)        scaled into [final_fraction, 1]

    Raises ValueError for another schedule.
    """
    if schedule == "constant":
        return 1.0
    done = min(max(done, 0.0), 1.0)
    if schedule == "linear":
        shape = 1.0 - done
    elif schedule == "cosine":
        shape = 0.5 * (1.0 + math.cos(math.pi * done))
    else:
        raise ValueError(f"unknown schedule {schedule!r}; allowed: constant, linear, cosine")
    return final_fraction + (1.0 - final_fraction) * shape
