"""The earlier place of what `reinlm.runs.declarations` holds."""

from typing import TYPE_CHECKING

from reinlm.renamed import renamed

if not TYPE_CHECKING:  # a type checker would take any name for one that exists
    __getattr__ = renamed(
        __name__,
        {
            "MetricInfo": "reinlm.runs.declarations:Metric",
            **{
                name: f"reinlm.runs.declarations:{name}"
                for name in ("CLOCKS", "METRICS", "describe", "is_clock", "pattern", "without_clocks")
            },
        },
    )
