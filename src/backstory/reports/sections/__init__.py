"""The sections of a report, each in one object; a section joins by a line in SECTIONS."""

from typing import Any

from rich.console import Console

from backstory.reports.sections import (
    answer_section,
    comparison_section,
    context_section,
    figures_section,
    gate_section,
    memory_section,
    passage_section,
    recency_section,
    reproduction_section,
    search_section,
    settings_section,
)
from backstory.reports.sections.section import Section
from backstory.results import Result

SECTIONS: tuple[Section, ...] = (
    reproduction_section.SECTION,
    search_section.SECTION,
    figures_section.FIGURES,
    figures_section.LEARNING,
    gate_section.SECTION,
    context_section.SECTION,
    memory_section.SECTION,
    answer_section.SECTION,
    recency_section.SECTION,
    comparison_section.SECTION,
    passage_section.SAMPLES,
    passage_section.PASSAGES,
    settings_section.OTHERS,
)
"""In the order of the page."""


def show(result: Result[Any], console: Console) -> None:
    """Print what the sections show of one result in a terminal."""
    for section in SECTIONS:
        if section.terminal and section.requires(result.figures):
            section.terminal(result, console)
