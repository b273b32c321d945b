"""Result files to tables, plots and one self-contained HTML page; this room reads files only and imports no torch."""

from backstory.reports.kinds import SCHEMA
from backstory.reports.markdown import fill
from backstory.reports.page import (
    check_page,
    render,
    render_comparison,
    render_passage,
    render_search,
    write,
    write_page,
)
from backstory.reports.passage import Candidates, Layer, Numbers, Passage, Weights, Word
from backstory.reports.plots import Plot, context_curves, learning_curves
from backstory.reports.results import Result, RunResults, read, result_at, result_from, result_or_none
from backstory.reports.tables import Column, Table, to_html, to_markdown, to_text

__all__ = [
    "SCHEMA",
    "Candidates",
    "Column",
    "Layer",
    "Numbers",
    "Passage",
    "Plot",
    "Result",
    "RunResults",
    "Table",
    "Weights",
    "Word",
    "check_page",
    "context_curves",
    "fill",
    "learning_curves",
    "read",
    "render",
    "render_comparison",
    "render_passage",
    "render_search",
    "result_at",
    "result_from",
    "result_or_none",
    "to_html",
    "to_markdown",
    "to_text",
    "write",
    "write_page",
]
