"""What a reading of a synthetic task answers right, by the length of its sequences."""

from collections.abc import Sequence
from html import escape

from backstory.config.terminal import one_line
from backstory.reports import formats
from backstory.reports import html_pieces as pieces
from backstory.reports.formats import count, decimal
from backstory.reports.groups import groups, text_of
from backstory.reports.phrases import answered
from backstory.reports.results import Record, RunResults
from backstory.reports.tables import Table, columns, to_text

MOST = 24
"""Lengths that a terminal shows; of more, so many that lie as far apart."""


def body(runs: Sequence[RunResults]) -> str:
    """Everything about answers in HTML; empty where no evaluation has read a task."""
    parts, found = [], groups(runs, "answers")
    for group in found:
        text = text_of(group[0][1])
        parts.append(
            f'<p class="note">{escape(text)}: {escape(formats.plain(group[0][1].corpus.get("provenance")))}</p>'
        )
        for name, result in group:
            heading = f"Answers by length: {name}, {result.figures['split']}"
            parts.append(pieces.table(table(result.figures["answers"]), heading))
    return "\n".join(parts)


def table(answers: Record, most: int | None = None) -> Table:
    """A row for each length, and one for all."""
    found = answers["lengths"]
    if most is not None and len(found) > most:
        found = [found[round(i * (len(found) - 1) / (most - 1))] for i in range(most)]
    rows = [(count(one["length"]), *_row(one)) for one in found]
    return Table(columns("Length", "Documents#", "Nats#", "Tokens right#", "Bits right#", "Documents right#"),
                 (*rows, ("all", *_row(answers))))  # fmt: skip


def _row(one: Record) -> tuple[str, ...]:
    shares = (formats.percent(100 * one[f"{what}_accuracy"]) for what in ("token", "bit", "document"))
    return count(one["documents"]), decimal(one["nats_per_answer_token"], 3), *shares


def terminal(figures: Record) -> list[str]:
    """The answers of an evaluation's figures in lines: all of them, then a row for each length."""
    answers = figures["answers"]
    lines = to_text(table(answers, MOST)).splitlines()
    return [f"  {one_line(answers['task']):<11} {answered(answers)}; by length:", *(f"    {line}" for line in lines)]
