"""The earlier place of what `reinlm.runs.declarations` holds."""

from reinlm.renamed import renamed

renamed(
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
