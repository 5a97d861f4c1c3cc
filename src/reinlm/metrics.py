"""Every metric that reinlm logs, and `docs/metrics.md`, which `reinlm metrics --page` writes from their declarations.

Each package declares the metrics that it makes, in a module of its own; importing this one imports them all.
"""

from __future__ import annotations

import reinlm.classical.metrics
import reinlm.composition.metrics
import reinlm.loop.metrics
import reinlm.runs.metrics
import reinlm.training.metrics
from reinlm.renamed import renamed
from reinlm.runs.declarations import METRICS, Metric, Section, declare_metrics, find_metric, is_clock, without_clocks

__all__ = [
    "LIBRARY",
    "METRICS",
    "Metric",
    "declare_metrics",
    "find_metric",
    "is_clock",
    "metrics_page",
    "without_clocks",
]

LIBRARY: tuple[Metric, ...] = (
    *reinlm.composition.metrics.METRICS,
    *reinlm.training.metrics.METRICS,
    *reinlm.loop.metrics.METRICS,
    *reinlm.runs.metrics.METRICS,
    *reinlm.classical.metrics.METRICS,
)
"""The library's own, in the order in which a section of the page shows them."""

INTRODUCTION = """# Metrics

Every step of a run is one line of `metrics.jsonl`, and the same figures stand in the run's trackers (TensorBoard by
default) and in `report.html`. Names are those of TRL where TRL has one. This page says of each what it measures, what is
healthy, and what a bad value means. It is written by `reinlm metrics --page` from the declarations beside the code that logs
each metric (the modules `metrics` of `composition`, `training`, `loop`, `runs` and `classical`). The declarations of what a run
logged stand in its `metrics_info.json`, for its report. How to declare metrics of one's own is in
[callbacks.md](callbacks.md#metrics-of-ones-own).

Three rules hold for all of them:

- **A mean is a sum with its denominator.** Micro-batches of unequal size are merged by sums and counts, never by
  averaging averages, so a figure does not depend on how a batch was split.
- **What was not measured is absent**, not zero: a reward that scored nothing, or a KL that no one asked for.
- **What is not finite is `null`** in the file, because JSON has no NaN. `read_metrics` gives NaN back.

`{name}` stands for a reward function, `{set}` for an evaluation set, `{k}` for a number of samples.
"""

SECTIONS: dict[Section, tuple[str, str]] = {
    "learning": ("Is it learning?", ""),
    "signal": ("Is there a signal?", ""),
    "answers": ("What are the answers like?", ""),
    "bounds": ("Does the update stay in bounds?", ""),
    "critic": ("How good is the critic?", """Only for algorithms with a critic."""),
    "sampler": (
        "Do sampler and trainer agree?",
        """The sampler reports a log-probability for each token that it chose, and the trainer computes that of the same token
under the same weights (`rollout_logprobs` and `old_logprobs`). Where they differ, the data are off-policy without anyone
having said so.""",
    ),
    "progress": (
        "Where is the run, and how fast?",
        """The names marked *clock*, and every `time/…`, depend on the machine. Two runs from one seed are equal in all other
fields (`reinlm.runs.without_clocks` drops them).""",
    ),
    "control": (
        "Control tasks",
        """Of `reinlm classical`. A step of these runs is a step of the environment, or an episode, as the budget was given.
`entropy`, `kl/old`, `clip_ratio/region_mean`, `explained_variance`, `value_loss` and `grad_norm` are as above, with actions
in place of tokens.""",
    ),
}
"""Title, and the Markdown between title and table, in the order of the page."""

HEADER = """| name | unit | meaning | healthy | a bad value means |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(section, *texts) for section, texts in SECTIONS.items())])


def _section(section: Section, title: str, lead: str) -> str:
    rows = "".join(_row(metric) for metric in LIBRARY if metric.section == section)
    return f"## {title}\n\n{lead}\n\n{HEADER}{rows}" if lead else f"## {title}\n\n{HEADER}{rows}"


def _row(metric: Metric) -> str:
    unit = f"{metric.unit}, *clock*" if is_clock(metric.name) else metric.unit
    cells = (f"`{metric.name}`", unit, metric.meaning, metric.healthy, metric.bad)
    return "".join(f"| {cell} " if cell else "| " for cell in (text.replace("|", r"\|") for text in cells)) + "|\n"


renamed(__name__, {"describe": "reinlm.runs.declarations:find_metric", "page": "reinlm.metrics:metrics_page"})
