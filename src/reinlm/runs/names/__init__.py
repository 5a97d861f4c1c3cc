"""Every metric that reinlm logs, declared once: unit, meaning, what is healthy and what a bad value means.

Names are those that users of TRL know where one exists. A module of this package declares the metrics of one question, a
`Section` of `docs/metrics.md`; `describe` and the report read them, and `reinlm metrics --page` writes that page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reinlm.runs.names import answers, bounds, control, critic, groups, learning, progress, sampler
from reinlm.runs.names.info import MetricInfo, Section

SECTIONS: tuple[Section, ...] = (
    learning.SECTION,
    groups.SECTION,
    answers.SECTION,
    bounds.SECTION,
    critic.SECTION,
    sampler.SECTION,
    progress.SECTION,
    control.SECTION,
)
"""In the order of the page."""

METRICS: dict[str, MetricInfo] = {info.name: info for section in SECTIONS for info in section.metrics}
"""Every declaration by its name."""

CLOCKS = frozenset({"time", "step_time", "tokens_per_second", "samples_per_second"})
"""Fields that depend on the clock, together with every `time/…`: two equal runs differ in these alone."""


def pattern(name: str) -> re.Pattern[str]:
    """What matches the names that `name` stands for, with a group for each of `{name}`, `{set}` and `{k}`."""
    return re.compile(re.sub(r"\\\{(\w+)\\\}", lambda match: f"(?P<{match[1]}>[^/]+)", re.escape(name)))


_PATTERNS = {name: pattern(name) for name in METRICS if "{" in name}


def describe(name: str) -> MetricInfo | None:
    """What is known of a logged name such as `eval/gsm8k/pass@8`; None for a user's own metric."""
    exact = METRICS.get(name)
    return exact or next((METRICS[known] for known, form in _PATTERNS.items() if form.fullmatch(name)), None)


def is_clock(name: str) -> bool:
    """Whether a metric measures time and so differs between two equal runs."""
    return name in CLOCKS or name.startswith("time/")


def without_clocks(record: Mapping[str, Any]) -> dict[str, Any]:
    """A step's record without its clock fields: what two runs from one seed share to the last bit."""
    return {name: value for name, value in record.items() if not is_clock(name)}
