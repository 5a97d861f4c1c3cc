"""What the declaration of a metric says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MetricInfo:
    """What a metric measures, and how to read it.

    Example:
        MetricInfo("groups/attempts", "rounds", "rounds of sampling that it took to fill the batch",
                   healthy="1 to 3", healthy_range=(1.0, 3.0), bad="many: the filter drops most groups")
    """

    name: str
    """`{name}` stands for a reward, `{set}` for an evaluation set, `{k}` for a number of samples."""
    unit: str
    meaning: str
    healthy: str = ""
    """What it does in a run that goes well; empty where every value is."""
    healthy_range: tuple[float | None, float | None] | None = None
    """The lowest and the highest healthy value, None for no bound; None altogether where no number tells."""
    bad: str = ""
    """What a bad value means and what to do about it."""


@dataclass(frozen=True)
class Section:
    """Metrics that answer one question."""

    title: str
    metrics: tuple[MetricInfo, ...]
    lead: str = ""
    """Markdown between the title and the table."""
