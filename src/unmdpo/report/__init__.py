"""One HTML page from a finished run: self-contained, offline, and readable without knowing the run."""

from unmdpo.report.page import write_report

__all__ = ["write_report"]
