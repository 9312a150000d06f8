"""One HTML page from a finished run: self-contained, offline, readable by people who were not there."""

from unmdpo.report.page import write_report

__all__ = ["write_report"]
