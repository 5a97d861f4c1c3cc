"""Declarations of metrics. Each is declared once, beside the code that logs it, and stored in the run folder.

    declare_metrics(Metric("mine/drift", "nats", "divergence from the first answers", healthy="below 1"))

`metrics_info.json` in a run folder holds the declarations of the metrics in its `metrics.jsonl`, so that a report needs
the folder alone. Names are those that users of TRL know where one exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from reinlm.errors import InputError, unknown
from reinlm.renamed import renamed
from reinlm.runs.files import write_json

METRICS_INFO_FILE = "metrics_info.json"

Section = Literal["learning", "signal", "answers", "bounds", "critic", "sampler", "progress", "control", "own"]
"""The sections of `docs/metrics.md`, and "own" for metrics of users, which are not on that page."""


@dataclass(frozen=True)
class Metric:
    """What a metric measures, and how to read it.

    Example:
        Metric("groups/attempts", "rounds", "rounds of sampling that it took to fill the batch",
               healthy="1 to 3", healthy_range=(1.0, 3.0), bad="many: the filter drops most groups")

    Raises:
        InputError: for an empty name, unit or meaning, a name whose `{…}` repeat, or a range that is none.
    """

    name: str
    """`{name}` stands for a reward, `{set}` for an evaluation set, `{k}` for a number of samples."""
    unit: str
    """"none" for a number without one."""
    meaning: str
    healthy: str = ""
    """Values in a healthy run; empty if every value is healthy."""
    healthy_range: tuple[float | None, float | None] | None = None
    """The lowest and the highest healthy value, None for no bound; None if there is no range."""
    bad: str = ""
    """What a bad value means and what to do about it."""
    section: Section = "own"

    def __post_init__(self) -> None:
        texts = {"name": self.name, "unit": self.unit, "meaning": self.meaning}
        for field, text in {**texts, "healthy": self.healthy, "bad": self.bad}.items():
            if not isinstance(text, str) or (field in texts and not text):
                raise InputError(f"metric {self.name!r}: {field} must be a text, not {text!r}")
        try:
            pattern(self.name)
        except re.error as error:
            raise InputError(f"metric {self.name!r}: {error}", hint="write {name} once, in letters") from None
        if self.healthy_range is not None and not _is_range(self.healthy_range):
            raise InputError(
                f"metric {self.name!r}: healthy_range must be (lowest, highest), not {self.healthy_range!r}",
                hint="None stands for no bound at one end, as in (None, 0.1)",
            )


METRICS: dict[str, Metric] = {}
"""Every metric declared by the packages that are imported, by its name; `declare_metrics` adds to it."""

CLOCKS = frozenset({"time", "step_time", "tokens_per_second", "samples_per_second"})
"""Fields that depend on the clock, together with every `time/…`: two equal runs differ in these alone."""


def declare_metrics(*metrics: Metric, section: Section = "own") -> tuple[Metric, ...]:
    """Register metrics: the report shows their unit, meaning and healthy range.

    Args:
        metrics: their names may have `{…}` where a logged name has any text without a slash.
        section: the library's own metrics name their section of `docs/metrics.md`; no callback may log these.

    Returns:
        The metrics, in this section.

    Raises:
        InputError: for a name that is declared otherwise already, or an unknown section.
    """
    if section not in get_args(Section):
        raise unknown("section", section, get_args(Section))
    declared = tuple(replace(metric, section=section) for metric in metrics)
    for metric in declared:
        if METRICS.setdefault(metric.name, metric) != metric:
            raise InputError(
                f"the metric {metric.name!r} is declared twice: as {METRICS[metric.name].meaning!r} "
                f"({METRICS[metric.name].unit}), and as {metric.meaning!r} ({metric.unit})",
                hint=f"a metric of your own takes another name, such as 'mine/{metric.name}'",
            )
    return declared


@cache
def pattern(name: str) -> re.Pattern[str]:
    """What matches the names that `name` stands for, with a group for each of `{name}`, `{set}` and `{k}`."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda match: f"(?P<{match[1]}>[^/]+)", re.escape(name)))


def find_metric(name: str, metrics: Mapping[str, Metric] = METRICS) -> Metric | None:
    """The declaration for a logged name such as `eval/gsm8k/pass@8`; None without one."""
    forms = [metric for known, metric in metrics.items() if "{" in known and pattern(known).fullmatch(name)]
    return metrics.get(name) or min(forms, key=lambda metric: metric.name.count("{"), default=None)  # the closest one


NAME_CHARACTERS = "letters, digits and ./@%()=_- only"
"""What the name of a logged metric, or of a reward in it, consists of."""


def is_metric_name(name: Any) -> bool:
    """Whether a value can be the name of a logged metric, or of a reward in it: a text of `NAME_CHARACTERS`."""
    return isinstance(name, str) and re.fullmatch(r"[\w./@%()=-]+", name) is not None


def is_library_name(name: str) -> bool:
    """Whether a declaration of the library itself matches this logged name."""
    return (
        find_metric(name, {known: metric for known, metric in METRICS.items() if metric.section != "own"}) is not None
    )


def is_clock(name: str) -> bool:
    """Whether a metric measures time and so differs between two equal runs."""
    return name in CLOCKS or name.startswith("time/")


def without_clocks(record: Mapping[str, Any]) -> dict[str, Any]:
    """A step's record without its clock fields: what two runs from one seed share to the last bit."""
    return {name: value for name, value in record.items() if not is_clock(name)}


def write_metrics_info(run_folder: Path, metrics: Iterable[Metric]) -> None:
    """Write `metrics_info.json`: the fields of each metric, by its name."""
    rows = {metric.name: {key: value for key, value in asdict(metric).items() if key != "name"} for metric in metrics}
    write_json(Path(run_folder) / METRICS_INFO_FILE, rows)


def read_metrics_info(run_folder: Path) -> dict[str, Metric]:
    """The declarations that a run folder carries, by name; empty for a run of an earlier version, which has none.

    Raises:
        InputError: for a damaged file, named.
    """
    path = Path(run_folder) / METRICS_INFO_FILE
    if not path.is_file():
        return {}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {name: _from_plain(name, row) for name, row in rows.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: holds no declarations of metrics: {error}", hint="remove the file") from None


def _from_plain(name: str, row: Mapping[str, Any]) -> Metric:
    bounds = row.get("healthy_range")
    return Metric(name, **{**row, "healthy_range": bounds if bounds is None else tuple(bounds)})


def _is_range(bounds: Any) -> bool:
    if not isinstance(bounds, tuple) or len(bounds) != 2 or bounds == (None, None):
        return False
    numbers = [bound for bound in bounds if bound is not None]
    return all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers) and numbers == sorted(numbers)


renamed(__name__, {"describe": "reinlm.runs.declarations:find_metric"})
