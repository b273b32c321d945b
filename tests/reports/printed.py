"""Lines that a section of a report prints in a terminal."""

import io
import json
from typing import Any

from rich.console import Console

from backstory.reports import Section
from backstory.results import result_from


def terminal_lines(section: Section, content: dict[str, Any]) -> list[str]:
    """Return the lines that a section prints for a result."""
    assert section.terminal is not None
    console = Console(file=io.StringIO(), width=200)
    section.terminal(result_from(json.dumps(content), "x"), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()
