"""A comparison of readers as HTML: the picture along the text, tables, and the passages word by word."""

from html import escape

from backstory.reports import comparisons, passage_html
from backstory.reports import html_pieces as pieces
from backstory.reports.comparison_plots import along, by_position
from backstory.reports.passage import from_json
from backstory.reports.results import Result

MOST_ROWS = 15
"""Documents of a table that is not folded up."""


def body(result: Result, name: str, level: str) -> str:
    """All of it, under headings of that level (`h2`); `name` begins its ids and must differ on a page."""
    f = result.figures
    documents = pieces.table(comparisons.documents(result), "Gain of every document")
    heading = f"Every document ({len(f['documents']):,})"
    if len(f["documents"]) > MOST_ROWS:
        documents = pieces.details(heading, documents)
    else:
        documents = f"<{level}>{heading}</{level}>\n{documents}"
    parts = [
        pieces.table(comparisons.readers(result), "Readers"),
        pieces.table(comparisons.pairs(result), "What is gained"),
        pieces.plot(along(result, f"{name}-nats"), wide=True),
        "" if comparisons.in_bits(f) else _in_perplexity(result, name),
        pieces.plot(by_position(result, f"{name}-positions"), wide=True),
        pieces.details("Every place in a document", pieces.table(comparisons.positions(result), "Gain by place")),
        documents,
    ]
    for number, one in enumerate(f["passages"], start=1):
        passage = from_json(one["passage"], result.source)
        parts.append(f"<{level}>{escape(comparisons.passage_title(one, number, f))}</{level}>")
        parts.append(f'<p class="note">{escape(passage.title)}</p>')
        parts.append(passage_html.figure(passage, f"{name}-passage{number}"))
    return "\n".join(part for part in parts if part)


def _in_perplexity(result: Result, name: str) -> str:
    """The gain along the text once more, of perplexities, for whoever opens it."""
    note = '<p class="note">Differences of perplexities do not add up, and a few hard blocks outweigh all others.</p>'
    return pieces.details(
        "The same in perplexity", pieces.plot(along(result, f"{name}-perplexity", "perplexity"), wide=True) + note
    )
