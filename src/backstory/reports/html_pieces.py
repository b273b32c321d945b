"""Pieces that the sections of a page are made of: tables and figures that scroll by themselves, lists of facts."""

from collections.abc import Sequence
from html import escape

from backstory.reports.plots import Plot
from backstory.reports.tables import Table, to_html


def section(heading: str, *parts: str) -> str:
    """A section of the page; parts that are empty are left out."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def scroll(inside: str, about: str) -> str:
    """A box of its own for what may be wider than a phone; reachable by keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(about)}">{inside}</div>'


def table(shown: Table, about: str) -> str:
    """A table that scrolls by itself; empty without rows."""
    return scroll(to_html(shown), about) if shown.rows else ""


def plot(shown: Plot | None, wide: bool = False) -> str:
    """A figure with its caption; a wide one scrolls on a phone."""
    if shown is None:
        return ""
    kind = ' class="wide"' if wide else ""
    return f"<figure{kind}>{scroll(shown.svg, shown.title)}<figcaption>{escape(shown.caption)}</figcaption></figure>"


def details(heading: str, inside: str) -> str:
    """What is folded up until it is asked for."""
    return f"<details><summary>{escape(heading)}</summary>\n{inside}\n</details>"


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Terms and what is said of them, as a list."""
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in pairs) + "</dl>"
