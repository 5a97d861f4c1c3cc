"""`docs/metrics.md`, written from the declarations."""

from __future__ import annotations

from reinlm.runs.names import SECTIONS, is_clock
from reinlm.runs.names.info import MetricInfo, Section

INTRODUCTION = """# Metrics

Every step of a run is one line of `metrics.jsonl`, and the same figures stand in the run's trackers (TensorBoard by
default) and in `report.html`. Names are those of TRL where TRL has one. This page says of each what it measures, what is
healthy, and what a bad value means. It is written from the declarations in `src/reinlm/runs/names/` by `reinlm metrics --page`.

Three rules hold for all of them:

- **A mean is a sum with its denominator.** Micro-batches of unequal size are merged by sums and counts, never by
  averaging averages, so a figure does not depend on how a batch was split.
- **What was not measured is absent**, not zero: a reward that scored nothing, or a KL that no one asked for.
- **What is not finite is `null`** in the file, because JSON has no NaN. `read_metrics` gives NaN back.

`{name}` stands for a reward function, `{set}` for an evaluation set, `{k}` for a number of samples.
"""

HEADER = """| name | unit | meaning | healthy | a bad value means |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *map(_section, SECTIONS)])


def _section(section: Section) -> str:
    lead = f"{section.lead}\n\n" if section.lead else ""
    return f"## {section.title}\n\n{lead}{HEADER}" + "".join(map(_row, section.metrics))


def _row(info: MetricInfo) -> str:
    unit = f"{info.unit}, *clock*" if is_clock(info.name) else info.unit
    cells = (f"`{info.name}`", unit, info.meaning, info.healthy, info.bad)
    return "".join(f"| {cell} " if cell else "| " for cell in (text.replace("|", r"\|") for text in cells)) + "|\n"
