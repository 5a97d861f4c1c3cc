"""Looks at runs: reads run folders, never the code that wrote them."""

from reinlm.insight.report import write_report

__all__ = ["write_report"]
