r"""A report as a LaTeX fragment for `\input`: its tables with the rules of booktabs, and its figures where they are saved."""

import re
from collections.abc import Iterator, Mapping

from backstory.reports.citation import bibtex
from backstory.reports.document import Document, Figure, Tabular
from backstory.reports.tables import Table

MARK = "% Backstory report"
"""The beginning of the first line, by which a file is known for one of ours."""
_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "—": "---", "−": "$-$", "…": r"\ldots{}", "‘": "`", "’": "'",
    "“": "``", "”": "''", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "±": r"$\pm$", "½": r"$\frac{1}{2}$",
    "→": r"$\rightarrow$", "λ": r"$\lambda$", "θ": r"$\theta$", "β": r"$\beta$", "κ": r"$\kappa$",
    **{digit: rf"\textsuperscript{{{i}}}" for i, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}  # fmt: skip
LONG = 28
"""Characters from which on the cells of a column are set as paragraphs."""
MANY = 7
"""Columns from which on a table is set small."""


def latex(document: Document, figures: Mapping[str, str] | None = None) -> str:
    r"""Return a document's tables that are not folded up. `figures` are the paths of saved figures by the names of plots.

    The preamble needs `\usepackage{booktabs}`, and for figures `\usepackage{graphicx}`.
    """
    packages = r"\usepackage{booktabs}" + (r" \usepackage{graphicx}" if figures else "")
    head = [f"{MARK}: {' '.join(document.title.split())}", f"% In the preamble: {packages}"]
    head += [f"% {' '.join(sentence.split())}" for sentence in (document.headline, *document.summaries) if sentence]
    head += [f"% {line}" for line in bibtex().splitlines()]
    return "\n\n".join(("\n".join(head), *_floats(document, figures or {}))) + "\n"


def escape_latex(text: str) -> str:
    """Return text in which no character commands TeX."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


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
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "results"


def _table(piece: Tabular, label: str) -> str:
    table = piece.table
    size = r"\footnotesize\setlength{\tabcolsep}{3pt}" if len(table.columns) >= MANY else r"\small"
    head, *rows = (
        " & ".join(map(escape_latex, line)) + r" \\" for line in ([c.heading for c in table.columns], *table.rows)
    )
    return "\n".join((
        r"\begin{table}[t]", rf"\centering{size}", rf"\caption{{{escape_latex(piece.about)}}}",
        rf"\label{{tab:backstory-{label}}}", rf"\begin{{tabular}}{{@{{}}{_columns(table)}@{{}}}}", r"\toprule", head,
        r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ))  # fmt: skip


def _columns(table: Table) -> str:
    """Return how each column is set: numbers flush right, long text in a paragraph."""
    kinds = []
    for i, column in enumerate(table.columns):
        longest = max(len(row[i]) for row in table.rows)
        kinds.append("r" if column.numeric else r"p{0.25\linewidth}" if longest > LONG else "l")
    return "".join(kinds)
