"""The sections of a report, one object each, listed in SECTIONS."""

from typing import Any

from rich.console import Console

from backstory.reports.document import Section
from backstory.reports.sections import (
    comparison_section,
    context_section,
    evaluation_section,
    figures_section,
    gains_section,
    gate_section,
    passage_section,
    referee_section,
    reproduction_section,
    search_section,
    settings_section,
)
from backstory.results import Result

SECTIONS: tuple[Section, ...] = (
    reproduction_section.SECTION,
    search_section.SECTION,
    referee_section.SECTION,
    gains_section.SECTION,
    figures_section.FIGURES,
    figures_section.LEARNING,
    gate_section.SECTION,
    context_section.SECTION,
    evaluation_section.MEMORY,
    evaluation_section.ANSWERS,
    evaluation_section.RECENCY,
    comparison_section.SECTION,
    passage_section.SAMPLES,
    passage_section.PASSAGES,
    settings_section.OTHERS,
)
"""Sections in the order of the page."""


def show(result: Result[Any], console: Console) -> None:
    """Print one result in a terminal, section by section."""
    for section in SECTIONS:
        if section.terminal and section.requires(result.figures):
            section.terminal(result, console)
