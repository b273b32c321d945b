"""Write the pieces of a report as an HTML page, GitHub Markdown or a LaTeX fragment."""

import re
from collections.abc import Iterable, Iterator, Mapping

from markupsafe import Markup

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
    Plain,
    Quote,
    Tabular,
    Words,
)
from backstory.reports.passage_html import SCRIPT, SCRIPT_HASH
from backstory.reports.passage_html import figure as passage_figure
from backstory.reports.svg import clean
from backstory.reports.tables import Table, escape_markdown, to_markdown
from backstory.reports.theme import CSS, rendered, slug
from backstory.storage.provenance import versions

GENERATOR = Markup('<meta name="generator" content="Backstory">')
"""In the head of every page. It marks the page as a report, which a new one may replace."""
# The browser refuses to load anything else, whatever a run's name or settings contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_pieces(pieces: Iterable[Piece]) -> Markup:
    """Return the pieces in sequence."""
    return Markup("\n").join(map(html_piece, pieces))


def html_piece(piece: Piece) -> Markup:
    """Return one piece."""
    match piece:
        case Heading(text, level):
            return Markup(f"<h{level}>{{}}</h{level}>").format(text)
        case Plain(text):
            return _TEXTS[type(piece)].format(text)
        case Tabular(table, about, look):
            # A box that scrolls, also by keyboard, as a table may be wider than a phone.
            box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">{}</div>')
            return box.format(about, rendered("table", table=table, look=look))
        case Figure(plot, commands):
            return rendered("figure", plot=plot, wide=Markup(plot.svg), narrow=Markup(plot.narrow()), commands=commands)
        case Details(heading, inside):
            part = Markup("<details><summary>{}</summary>\n{}\n</details>")
            return part.format(heading, html_pieces(inside))
        case Facts(pairs):
            terms = (Markup("<dt>{}</dt><dd>{}</dd>").format(*pair) for pair in pairs)
            return Markup("<dl>{}</dl>").format(Markup().join(terms))
        case Quote(prompt, text):
            return Markup('<blockquote dir="auto"><span class="prompt">{}</span>{}</blockquote>').format(prompt, text)
        case Words(passage, name):
            return passage_figure(passage, name)


_TEXTS: dict[type[Piece], Markup] = {
    Paragraph: Markup("<p>{}</p>"),
    Note: Markup('<p class="note">{}</p>'),
    Alarm: Markup('<p class="alarm">{}</p>'),
    Code: Markup("<pre>{}</pre>"),
}


def html_page(document: Document) -> str:
    """Return a whole page, which loads nothing. It contains a script only if it has interactive passages."""
    scripted = any(isinstance(piece, Words) for piece in document.pieces())
    policy = f"{_POLICY}; script-src '{SCRIPT_HASH}'" if scripted else _POLICY
    sections = [(heading, html_pieces(pieces)) for heading, pieces in document.sections]
    values = {"policy": Markup(policy), "css": Markup(CSS), "generator": GENERATOR,
              "script": Markup(SCRIPT if scripted else ""), "bibtex": bibtex()}  # fmt: skip
    return clean(rendered("page", document=document, sections=sections, **values))


MARKDOWN_MARK = "<!-- Backstory report -->"
"""First line, which marks a file as a report."""


def markdown(document: Document, figures: Mapping[str, str] | None = None) -> str:
    """Return a document as Markdown. `figures` maps plot names to the paths of saved figures."""
    blocks = [MARKDOWN_MARK, f"# {escape_markdown(document.title)}"]
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
                    yield f"![{escape_markdown(plot.title)}](<{path}.png>)"
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
    """Return verbatim text in a fence that it cannot close."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


LATEX_MARK = "% Backstory report"
"""Beginning of the first line, which marks a file as a report."""
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "—": "---", "−": "$-$", "…": r"\ldots{}", "‘": "`", "’": "'",
    "“": "``", "”": "''", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "±": r"$\pm$", "½": r"$\frac{1}{2}$",
    "→": r"$\rightarrow$", "λ": r"$\lambda$", "θ": r"$\theta$", "β": r"$\beta$", "κ": r"$\kappa$",
    **{digit: rf"\textsuperscript{{{i}}}" for i, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}  # fmt: skip
_BELOW_ZERO = re.compile(r"(?<![^\s(])-(?=\d)")
LONG = 28
"""Cell length in characters from which a column is set as paragraphs."""
MANY = 7
"""Number of columns from which a table is set small."""


def latex(document: Document, figures: Mapping[str, str] | None = None) -> str:
    r"""Return a document's tables that are not collapsed. `figures` maps plot names to the paths of saved figures.

    The preamble needs `\usepackage{booktabs}`, and for figures `\usepackage{graphicx}`.
    """
    packages = r"\usepackage{booktabs}" + (r" \usepackage{graphicx}" if figures else "")
    head = [f"{LATEX_MARK}: {' '.join(document.title.split())}", f"% In the preamble: {packages}"]
    head += [f"% {' '.join(sentence.split())}" for sentence in (document.headline, *document.summaries) if sentence]
    head += [f"% {line}" for line in bibtex().splitlines()]
    return "\n\n".join(("\n".join(head), *_floats(document, figures or {}))) + "\n"


def escape_latex(text: str) -> str:
    """Escape the special characters of TeX, and set the sign of a number as a minus, not as a hyphen."""
    escaped = "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))
    return _BELOW_ZERO.sub("$-$", escaped)


def _floats(document: Document, figures: Mapping[str, str]) -> Iterator[str]:
    number = 0
    for heading, pieces in document.sections:
        for piece in pieces:
            if isinstance(piece, Tabular):
                number += 1
                yield _table(piece, f"{_label(heading)}-{number}")
            elif isinstance(piece, Figure) and piece.plot.name in figures:
                yield "\n".join((
                    r"\begin{figure}[t]", r"\centering",
                    rf"\includegraphics[width=\linewidth]{{{figures[piece.plot.name]}.pdf}}",
                    rf"\caption{{{escape_latex(f'{piece.plot.title}. {piece.plot.caption}')}}}",
                    rf"\label{{fig:backstory-{_label(piece.plot.name)}}}", r"\end{figure}",
                ))  # fmt: skip


def _label(text: str) -> str:
    return slug(text) or "results"


def _table(piece: Tabular, label: str) -> str:
    table, caption = piece.table, f"{piece.about}. {piece.same}" if piece.same else piece.about
    size = r"\footnotesize\setlength{\tabcolsep}{3pt}" if len(table.columns) >= MANY else r"\small"
    head, *rows = (
        " & ".join(map(escape_latex, line)) + r" \\" for line in ([c.heading for c in table.columns], *table.rows)
    )
    return "\n".join((
        r"\begin{table}[t]", rf"\centering{size}", rf"\caption{{{escape_latex(caption)}}}",
        rf"\label{{tab:backstory-{label}}}", rf"\begin{{tabular}}{{@{{}}{_columns(table)}@{{}}}}", r"\toprule", head,
        r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ))  # fmt: skip


def _columns(table: Table) -> str:
    """Return the column specification: numbers right-aligned, long text in paragraphs."""
    kinds = []
    for i, column in enumerate(table.columns):
        longest = max(len(row[i]) for row in table.rows)
        kinds.append("r" if column.numeric else r"p{0.25\linewidth}" if longest > LONG else "l")
    return "".join(kinds)


def bibtex() -> str:
    """Return a BibTeX entry of this version."""
    fields = {
        "title": "{Backstory}: a library for language models that remember",
        "author": "{The Backstory developers}",
        "version": versions().get("backstory", "unknown"),
        "note": "MIT license",
    }
    width = max(map(len, fields))
    lines = (f"  {name:<{width}} = {{{value}}}," for name, value in fields.items())
    return "\n".join(("@software{backstory,", *lines, "}"))
