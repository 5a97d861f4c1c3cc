"""Metrics as sums with their denominators, and the files that hold them step by step.

`metrics.jsonl` has one strict-JSON object a step, steps ascending. A value that is not finite is written as `null`
there, because NaN and Infinity are no JSON.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from reinlm.errors import InputError
from reinlm.runs.declarations import (
    Metric,
    declare_metrics,
    find_metric,
    read_metrics_info,
    write_metrics_info,
)
from reinlm.runs.files import json_safe, sync, write_atomic

if TYPE_CHECKING:
    from torch import Tensor

    Number = float | Tensor

Value = TypeVar("Value")

METRICS_FILE = "metrics.jsonl"

TAIL = 10
"""A metric of training is judged by the mean over its last 1/TAIL logged values."""

JUDGED = ("/accuracy", "/loss", "/reward", "/gold", "/return")
"""Ends of the names of an evaluation's metrics by which runs are compared."""
HEADLINE = (*JUDGED, "/mean_length")
"""Ends of the names of an evaluation's metrics that a result and a report show."""
CURVES: Mapping[str, tuple[str, ...]] = {
    "rl": ("reward",),
    "sft": ("loss",),
    "rft": ("reward", "loss"),
    "classical": ("return",),
}
"""By the kind of a run: the metrics of training that are shown beside its evaluations, or in place of them."""

METRICS = declare_metrics(Metric("time", "s since 1970", "when the step was logged"), section="progress")


def ends(metric: str, values: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
    """The values that a run began with, and those that are its result: their mean is the figure.

    Of an evaluation the first and the last; of a metric of training 1/`TAIL` of the values at either end.

    Example:
        >>> ends("reward", range(20))
        (range(0, 2), range(18, 20))
        >>> ends("eval/test/reward", range(20))
        (range(0, 1), range(19, 20))
    """
    count = 1 if metric.startswith("eval/") else math.ceil(len(values) / TAIL)
    return values[:count], values[max(len(values) - count, 0) :]


def leading(names: Iterable[str]) -> dict[str, str]:
    """The main figure of each evaluation set: of its accuracy and its reward the one that is logged first.

    Example:
        >>> leading(["eval/test/reward", "eval/test/accuracy"])
        {'test': 'eval/test/reward'}
    """
    found: dict[str, str] = {}
    for name in names:
        known = _EVALUATED.match(name)
        if known is not None and not known["set"].endswith(("/rewards", "/gold_rewards")):
            found.setdefault(known["set"], name)
    return found


_EVALUATED = re.compile(r"eval/(?P<set>.+)/(accuracy|reward)$")


class MetricSums:
    """Sums, counts and extremes that merge exactly over micro-batches and ranks.

    Values are Python numbers or tensors of one element. Tensors stay on their device, in float64 where it has that type
    (MPS has not), and `means` reads them all at once, so `add` never waits for an accelerator.

    Example: the loss of tokens [1, 2, 3] and [4] is 2.5, not the mean of 2 and 4:
        >>> sums = MetricSums()
        >>> sums.add("loss", total=6.0, count=3)
        >>> sums.add("loss", total=4.0, count=1)
        >>> sums.means()
        {'loss': 2.5}
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Number, Number]] = {}
        self._extremes: dict[str, tuple[int, Number]] = {}  # +1 keeps the largest, -1 the smallest

    def add(self, name: str, total: Number, count: Number) -> None:
        """Add `total`, a sum over `count` things. `count` may be 0: nothing was measured."""
        if isinstance(count, int | float) and count < 0:
            raise ValueError(f"metric {name!r}: count must be 0 or more, not {count}")
        self._claim(name, self._extremes)
        old_total, old_count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (old_total + _exact(total), old_count + _exact(count))

    def maximum(self, name: str, value: Number) -> None:
        """Keep the largest value; NaN wins over every number, so that it is seen."""
        self._extreme(name, 1, value)

    def minimum(self, name: str, value: Number) -> None:
        """Keep the smallest value; NaN wins over every number, so that it is seen."""
        self._extreme(name, -1, value)

    def merge(self, other: MetricSums) -> None:
        """Take in what `other` measured, as if it had been added here."""
        for name, (total, count) in other._sums.items():
            self.add(name, total, count)
        for name, (sign, value) in other._extremes.items():
            self._extreme(name, sign, value)

    def means(self) -> dict[str, float]:
        """total / count of every sum whose count is not 0, and the extremes. A name with count 0 is absent."""
        state = self.state()
        means = {name: total / count for name, (total, count) in state["sums"].items() if count != 0}
        return means | {name: value for name, (_, value) in state["extremes"].items()}

    def state(self) -> dict[str, dict[str, list[float]]]:
        """Plain numbers that `json` takes: for other processes and for checkpoints."""
        pairs = [number for pair in self._sums.values() for number in pair]
        values = _floats([*pairs, *(value for _, value in self._extremes.values())])
        return {
            "sums": {name: [next(values), next(values)] for name in self._sums},
            "extremes": {name: [sign, next(values)] for name, (sign, _) in self._extremes.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Mapping[str, Any]]) -> MetricSums:
        """The sums whose `state()` this is."""
        sums = cls()
        sums._sums = {name: (total, count) for name, (total, count) in state["sums"].items()}
        sums._extremes = {name: (int(sign), value) for name, (sign, value) in state["extremes"].items()}
        return sums

    def _extreme(self, name: str, sign: int, value: Number) -> None:
        self._claim(name, self._sums)
        value = _exact(value)
        old_sign, old = self._extremes.get(name, (sign, value))
        if old_sign != sign:
            raise ValueError(f"metric {name!r} is kept as a maximum and as a minimum")
        self._extremes[name] = (sign, _larger(old, value) if sign > 0 else -_larger(-old, -value))

    def _claim(self, name: str, others: Mapping[str, Any]) -> None:
        if name in others:
            raise ValueError(f"metric {name!r} is kept as a sum and as an extreme")


def _exact(value: Number) -> Number:
    if isinstance(value, int | float):
        return float(value)
    import torch

    dtype = torch.float32 if value.device.type == "mps" else torch.float64
    return value.detach().reshape(()).to(dtype)


def _larger(a: Number, b: Number) -> Number:
    if isinstance(a, float) and isinstance(b, float):
        return a if a > b or math.isnan(a) else b
    import torch

    like = a if isinstance(a, torch.Tensor) else b
    first, second = (x if isinstance(x, torch.Tensor) else torch.full_like(like, x) for x in (a, b))  # type: ignore[arg-type]
    return torch.maximum(first, second)


def _floats(values: list[Number]) -> Iterator[float]:
    """The values as floats, with one transfer for each device that they lie on."""
    floats: dict[int, float] = {index: value for index, value in enumerate(values) if isinstance(value, float)}
    tensors: dict[str, list[tuple[int, Tensor]]] = {}
    for index, value in enumerate(values):
        if not isinstance(value, float):
            tensors.setdefault(str(value.device), []).append((index, value))
    if tensors:
        import torch

        for group in tensors.values():
            indices, parts = zip(*group, strict=True)
            floats.update(zip(indices, torch.stack(parts).tolist(), strict=True))
    return iter([floats[index] for index in range(len(values))])


class MetricsLog:
    """`metrics.jsonl`, and beside it `metrics_info.json` with the declarations of the metrics that were logged.

    Append a step before its checkpoint is saved: a resumed run then finds every step up to the checkpoint, once.

    Args:
        folder: the run folder.
        after_step: what the file holds of later steps, and a line that a crash tore, is cut off; -1 starts again.
    """

    def __init__(self, folder: Path, *, after_step: int = -1) -> None:
        self.path = Path(folder) / METRICS_FILE
        self.last_step = -1
        """The last step in the file; -1 before the first."""
        self._known = {} if after_step < 0 else read_metrics_info(self.path.parent)
        self._logged: set[str] = set()
        self.truncate(after_step)

    def append(self, step: int, values: Mapping[str, Any]) -> dict[str, float]:
        """Write one step; returns its numbers, those that are not finite as they are. `time` is added.

        Raises:
            ValueError: for a step that does not come after the last one, or a value that is not a number.
        """
        if step <= self.last_step:
            raise ValueError(f"step {step} cannot follow step {self.last_step} in {self.path}")
        numbers = {name: _metric_value(name, value) for name, value in values.items() if name != "step"}
        numbers.setdefault("time", time.time())
        self._write_declarations(numbers.keys() - self._logged)
        record = {"step": step, **json_safe(numbers)}
        with open(self.path, "ab") as file:
            file.write((json.dumps(record, allow_nan=False) + "\n").encode())
        self.last_step = step
        return numbers

    def sync(self) -> None:
        """Ask the disk to hold what was appended, as before a checkpoint. A step does not wait for the disk: a process that
        is killed loses no line, and a machine without power those since the last checkpoint, which are made again."""
        sync(self.path)

    def _write_declarations(self, names: Set[str]) -> None:
        """Keep the declarations of these names, which are logged for the first time."""
        self._logged |= names
        found = {metric.name: metric for metric in map(find_metric, sorted(names)) if metric is not None}
        if self._known | found != self._known:
            self._known |= found
            write_metrics_info(self.path.parent, self._known.values())

    def truncate(self, after_step: int) -> None:
        """Keep steps up to `after_step`, each once; the file is replaced in one piece."""
        rows = read_lines(self.path) if self.path.exists() else []
        kept = [record for record in _ascending(self.path, rows) if record["step"] <= after_step]
        write_atomic(self.path, "".join(json.dumps(record) + "\n" for record in kept))
        self.last_step = kept[-1]["step"] if kept else -1


def _metric_value(name: str, value: Any) -> float:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"metric {name!r} must be a number, not {value!r}") from None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of a `metrics.jsonl`, steps ascending; `null` (a value that was not finite) is read as NaN.

    A last line that a crash tore is left out.

    Raises:
        InputError: for any other line that is no record or does not come after the one before, naming file and line.
    """
    return [
        {name: math.nan if value is None else value for name, value in record.items()}
        for record in _ascending(path, read_lines(path))
    ]


def _ascending(path: Path, rows: Iterable[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
    last = -1
    for line, row in rows:
        step = row.get("step") if isinstance(row, dict) else None
        if not isinstance(step, int) or step <= last:
            raise InputError(f"{path}:{line}: not the record of a step after {last}", hint="remove the line")
        last = step
        yield row


def read_lines(path: Path) -> list[tuple[int, Any]]:
    """(line number, value) of every line of a JSONL file; a torn last line is left out."""
    lines = Path(path).read_bytes().split(b"\n")
    rows = []
    for index, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append((index, json.loads(line)))
        except ValueError:
            if index == len(lines):  # no newline follows: the write was cut short
                break
            raise InputError(f"{path}:{index}: not valid JSON", hint="remove the line") from None
    return rows


def numbered(folder: Path, suffix: str = "") -> list[tuple[int, Path]]:
    """(N, path) of every `step_N` with that suffix in `folder`, N ascending; empty where there is no folder."""
    if not folder.is_dir():
        return []
    matches = ((re.fullmatch(rf"step_(\d+){re.escape(suffix)}", path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)
