"""Reports on runs, from run folders alone; imports no training code."""

from reinlm.insight.report import write_report

__all__ = ["write_report"]
