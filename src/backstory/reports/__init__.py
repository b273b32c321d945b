"""Result files to tables, plots and one self-contained HTML page; this package reads files only and imports no torch."""

from backstory.reports import passage_html, passage_terminal
from backstory.reports.document import Section
from backstory.reports.page import (
    check_page,
    render,
    render_comparison,
    render_passage,
    render_search,
    write,
    write_page,
)
from backstory.reports.sections.context_plots import context_curves
from backstory.reports.sections.figures_section import figures_table, learning_curves, trainings_table
from backstory.reports.tables import Column, Table, fill, to_markdown, to_text

__all__ = [
    "Column",
    "Section",
    "Table",
    "check_page",
    "context_curves",
    "figures_table",
    "fill",
    "learning_curves",
    "passage_html",
    "passage_terminal",
    "render",
    "render_comparison",
    "render_passage",
    "render_search",
    "to_markdown",
    "to_text",
    "trainings_table",
    "write",
    "write_page",
]
