"""Pieces of HTML that the sections of a page are made of, and the page around them; every text is escaped by its template."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from backstory.reports.svg import Plot, clean
from backstory.reports.tables import Table
from backstory.reports.theme import CSS

TEMPLATES = Path(__file__).with_name("templates")
GENERATOR = Markup('<meta name="generator" content="Backstory">')
"""In the head of every page; by it a page is known for one of ours, which the next may replace."""
# The browser itself refuses everything that is not in the file, whatever a run's name or settings hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_ENVIRONMENT = jinja2.Environment(
    autoescape=True, trim_blocks=True, loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined
)


def rendered(template: str, **values: object) -> Markup:
    """Return a template with these values."""
    return Markup(_ENVIRONMENT.get_template(f"{template}.html").render(values))


def joined(parts: Iterable[Markup | None]) -> Markup:
    """Return pieces one below the other, without those that are empty."""
    return Markup("\n").join(part for part in parts if part)


def heading(text: str, level: int = 3) -> Markup:
    """Return a heading below those of the sections, which are of level 2."""
    return Markup(f"<h{level}>{{}}</h{level}>").format(text)


def note(text: str) -> Markup:
    """Return a small paragraph; empty for an empty text."""
    return Markup('<p class="note">{}</p>').format(text) if text else Markup()


def alarm(text: str) -> Markup:
    """Return a paragraph that nobody should overlook."""
    return Markup('<p class="alarm">{}</p>').format(text)


def paragraph(text: str) -> Markup:
    """Return a paragraph."""
    return Markup("<p>{}</p>").format(text)


def code(text: str) -> Markup:
    """Return text as it is, in a box; empty for an empty text."""
    return Markup("<pre>{}</pre>").format(text) if text else Markup()


def html_table(table: Table, about: str, look: str = "") -> Markup:
    """Return a table in a box that scrolls by itself; empty without rows. Columns of numbers have class `n`."""
    return scroll(rendered("table", table=table, look=look), about) if table.rows else Markup()


def scroll(inside: Markup, about: str) -> Markup:
    """Return a box for what may be wider than a phone; reachable by keyboard."""
    box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>')
    return box.format(about, inside)


def html_plot(plot: Plot | None, wide: bool = False) -> Markup:
    """Return a figure with its caption; a wide one scrolls on a phone. Empty without a figure."""
    if plot is None:
        return Markup()
    figure = Markup("<figure{}>{}<figcaption>{}</figcaption></figure>")
    look = Markup(' class="wide"') if wide else ""
    return figure.format(look, scroll(Markup(plot.svg), plot.title), plot.caption)


def details(heading: str, inside: Markup) -> Markup:
    """Return a part that is folded up until somebody opens it; empty where it would be."""
    part = Markup("<details><summary>{}</summary>\n{}\n</details>")
    return part.format(heading, inside) if inside else Markup()


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Return terms with their texts, as a list."""
    terms = (Markup("<dt>{}</dt><dd>{}</dd>").format(*pair) for pair in pairs)
    return Markup("<dl>{}</dl>").format(Markup().join(terms))


def html_page(
    title: str,
    sections: Sequence[tuple[str, Markup]],
    *,
    summaries: Sequence[str],
    footer: str,
    first: str = "",
    script: str = "",
    script_hash: str = "",
) -> str:
    """Return a whole page. `summaries` stand at its top, below `first` where there are several."""
    policy = f"{_POLICY}; script-src '{script_hash}'" if script else _POLICY
    values = {"policy": Markup(policy), "css": Markup(CSS), "generator": GENERATOR, "script": Markup(script)}
    page = rendered("page", title=title, sections=sections, summaries=summaries, first=first, footer=footer, **values)
    return clean(page)
