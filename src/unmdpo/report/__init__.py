"""One HTML page from a finished run: self-contained, offline, and readable without knowing the run."""

from unmdpo.report.page import write_report
from unmdpo.report.several import write_comparison

__all__ = ["write_comparison", "write_report"]
