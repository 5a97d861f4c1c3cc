"""The earlier place of what `reinlm.runs.declarations` holds."""

from typing import TYPE_CHECKING

from reinlm.renamed import renamed

if not TYPE_CHECKING:  # for a type checker a module with __getattr__ has every name
    __getattr__ = renamed(
        __name__,
        {
            "describe": "reinlm.runs.declarations:find_metric",
            "MetricInfo": "reinlm.runs.declarations:Metric",
            **{
                name: f"reinlm.runs.declarations:{name}"
                for name in ("CLOCKS", "METRICS", "is_clock", "pattern", "without_clocks")
            },
        },
    )
