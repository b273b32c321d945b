"""A report as GitHub Markdown: tables, captions, and figures where they are saved beside it."""

import re
from collections.abc import Iterable, Iterator, Mapping

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
)
from backstory.reports.tables import escape_markdown, to_markdown

MARK = "<!-- Backstory report -->"
"""The first line, by which a file is known for one of ours."""


def markdown(document: Document, figures: Mapping[str, str] | None = None) -> str:
    """Return a document as Markdown. `figures` are the paths of saved figures by the names of their plots."""
    blocks = [MARK, f"# {escape_markdown(document.title)}"]
    blocks += [f"**{escape_markdown(document.headline)}**"] if document.headline else []
    blocks += ["\n".join(f"- {escape_markdown(sentence)}" for sentence in document.summaries)]
    for heading, pieces in document.sections:
        blocks += [f"## {escape_markdown(heading)}"] if heading else []
        blocks += _blocks(pieces, figures or {})
    return "\n\n".join(filter(None, [*blocks, escape_markdown(document.footer)])) + "\n"


def _blocks(pieces: Iterable[Piece], figures: Mapping[str, str]) -> Iterator[str]:
    for piece in pieces:
        match piece:
            case Heading(text, level):
                yield f"{'#' * level} {escape_markdown(text)}"
            case Paragraph(text) | Note(text):
                yield escape_markdown(text)
            case Alarm(text):
                yield f"**{escape_markdown(text)}**"
            case Code(text):
                yield _fenced(text)
            case Tabular(table):
                yield to_markdown(table)
            case Figure(plot, commands):
                if path := figures.get(plot.name):
                    yield f"![{escape_markdown(plot.title)}]({path}.png)"
                yield f"*{escape_markdown(plot.title)}.* {escape_markdown(plot.caption)}"
                yield _fenced("\n".join(commands)) if commands else ""
            case Details(heading, inside):
                yield f"<details><summary>{escape_markdown(heading)}</summary>"
                yield from _blocks(inside, figures)
                yield "</details>"
            case Facts(pairs):
                yield "\n".join(f"- {escape_markdown(term)}: {escape_markdown(text)}" for term, text in pairs)
            case Quote(prompt, text):
                yield f"> *{escape_markdown(prompt)}* {escape_markdown(text)}"
            case Words(passage):
                text = "".join(word.before + word.text for word in passage.words)
                yield f"> {escape_markdown(text)}"


def _fenced(text: str) -> str:
    """Return text as it is, in a fence that it cannot end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
