"""What several seeds have found, as one: the summary of a run, and its mean curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reinlm.runs import MetricsLog, read_metrics


def summarise(algorithm: str, env: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of all seeds.

    `mean_return` is the mean over seeds of the online return, over the last hundred episodes of training, and `std_return`
    their deviation (n - 1); planners have none. `greedy_return` is the mean of greedy episodes after training. `steps`
    and `episodes` are those of the seed that took most, `seconds` the training time of all seeds together.
    """
    online = np.array([run["online_return"] for run in runs])
    greedy = np.array([run["greedy_return"] for run in runs])
    several = len(runs) > 1
    return {
        "algorithm": algorithm,
        "env": env,
        "seeds": len(runs),
        "mean_return": _json_number(online.mean()),
        "std_return": _json_number(online.std(ddof=1)) if several else 0.0,
        "greedy_return": _json_number(greedy.mean()),
        "greedy_return_std": _json_number(greedy.std(ddof=1)) if several else 0.0,
        "greedy_return_median": _json_number(np.median(greedy)),
        "steps": max(run["steps"] for run in runs),
        "episodes": max(run["episodes"] for run in runs),
        "seconds": round(sum(run["seconds"] for run in runs), 3),
        "runs": [{key: _json_number(value) for key, value in run.items()} for run in runs],
    }


def _json_number(value: Any) -> Any:
    """A plain number; None where it is not finite, as for the online return of a planner."""
    if isinstance(value, int):
        return value
    return float(value) if np.isfinite(value) else None


def write_mean_curve(folder: Path, seeds: Sequence[Path], goal: int, stride: int) -> None:
    """`metrics.jsonl` of the whole run: the mean over seeds of every metric, and the extremes of the return.

    Records of different seeds belong together where their steps lie in one stretch of `stride` steps, or have reached `goal`:
    an episode or a batch ends where it ends. The step of a line is the mean of theirs.
    """
    stretches: dict[tuple[bool, int], list[Mapping[str, float]]] = {}
    for path in (seed / "metrics.jsonl" for seed in seeds):
        for record in read_metrics(path) if path.is_file() else ():
            stretches.setdefault((record["step"] >= goal, record["step"] // stride), []).append(record)
    log = MetricsLog(folder)
    for _, records in sorted(stretches.items()):
        names = sorted({name for record in records for name in record} - {"step", "time"})
        values = {name: [record[name] for record in records if name in record] for name in names}
        means = {name: float(np.mean(found)) for name, found in values.items()}
        if len(seeds) > 1 and "return" in values:
            means |= {"return/low_seed": min(values["return"]), "return/high_seed": max(values["return"])}
        log.append(round(float(np.mean([record["step"] for record in records]))), means)
