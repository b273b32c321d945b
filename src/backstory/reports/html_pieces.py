"""A report as one HTML page: pieces as HTML, each text escaped by its template, and the page around them."""

from collections.abc import Iterable

from markupsafe import Markup

from backstory.reports.citation import bibtex
from backstory.reports.document import (
    Alarm,
    Code,
    Details,
    Document,
    Facts,
    Figure,
    Heading,
    Note,
    Paragraph,
    Piece,
    Quote,
    Tabular,
    Words,
    present,
)
from backstory.reports.passage_html import SCRIPT, SCRIPT_HASH
from backstory.reports.passage_html import figure as passage_figure
from backstory.reports.svg import clean
from backstory.reports.templating import rendered
from backstory.reports.theme import CSS

GENERATOR = Markup('<meta name="generator" content="Backstory">')
"""In the head of every page; by it a page is known for one of ours, which the next may replace."""
# The browser itself refuses everything that is not in the file, whatever a run's name or settings hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_pieces(pieces: Iterable[Piece | None]) -> Markup:
    """Return pieces one below the other, without those that are empty."""
    return Markup("\n").join(html_piece(piece) for piece in present(pieces))


def html_piece(piece: Piece) -> Markup:
    """Return one piece; figures and tables may scroll by themselves where a screen is too narrow for them."""
    match piece:
        case Heading(text, level):
            return Markup(f"<h{level}>{{}}</h{level}>").format(text)
        case Paragraph(text):
            return Markup("<p>{}</p>").format(text)
        case Note(text):
            return Markup('<p class="note">{}</p>').format(text)
        case Alarm(text):
            return Markup('<p class="alarm">{}</p>').format(text)
        case Code(text):
            return Markup("<pre>{}</pre>").format(text)
        case Tabular(table, about, look):
            return _scroll(rendered("table", table=table, look=look), about)
        case Figure(plot, commands):
            return rendered("figure", plot=plot, wide=Markup(plot.svg), narrow=Markup(plot.narrow()), commands=commands)
        case Details(heading, inside):
            part = Markup("<details><summary>{}</summary>\n{}\n</details>")
            return part.format(heading, html_pieces(inside))
        case Facts(pairs):
            terms = (Markup("<dt>{}</dt><dd>{}</dd>").format(*pair) for pair in pairs)
            return Markup("<dl>{}</dl>").format(Markup().join(terms))
        case Quote(prompt, text):
            return Markup('<blockquote><span class="prompt">{}</span>{}</blockquote>').format(prompt, text)
        case Words(passage, name):
            return passage_figure(passage, name)


def _scroll(inside: Markup, about: str) -> Markup:
    """Return a box for what may be wider than a phone; reachable by keyboard."""
    box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>')
    return box.format(about, inside)


def html_page(document: Document) -> str:
    """Return a whole page, which loads nothing. It holds a script only where there are words that answer."""
    scripted = any(isinstance(piece, Words) for piece in document.pieces())
    policy = f"{_POLICY}; script-src '{SCRIPT_HASH}'" if scripted else _POLICY
    sections = [(heading, html_pieces(pieces)) for heading, pieces in document.sections]
    values = {"policy": Markup(policy), "css": Markup(CSS), "generator": GENERATOR,
              "script": Markup(SCRIPT if scripted else ""), "bibtex": bibtex()}  # fmt: skip
    return clean(rendered("page", document=document, sections=sections, **values))
