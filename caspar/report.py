"""A solve in words and numbers: see `caspar.solver.result.report`, whose public names these are."""

from caspar.solver.result.report import (
    html_report,
    iteration_rows,
    report_facts,
    terminal_report,
    text_report,
)

__all__ = ["html_report", "iteration_rows", "report_facts", "terminal_report", "text_report"]
