"""Answers to a synthetic task, by the length of its sequences."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup
from rich.console import Console

from backstory.config import formats
from backstory.config.formats import count, decimal
from backstory.config.terminal import one_line
from backstory.reports import html_pieces as html
from backstory.reports.sections.section import Section, print_lines
from backstory.reports.sections.side_by_side import Evaluation, grouped_by_text, title_of_text
from backstory.reports.tables import Table, columns, to_text
from backstory.results import EvaluationFigures, RunResults
from backstory.results.evaluation_record import AnswerCounts, AnswersRecord
from backstory.results.examination_record import Published

MOST_LENGTHS = 24
"""Lengths that a terminal shows; of more, so many that lie as far apart."""


def _html(runs: Sequence[RunResults], published: Published | None) -> Iterator[Markup]:
    for group in grouped_by_text(runs, lambda f: f.answers):
        first = group[0][1]
        yield html.note(f"{title_of_text(first)}: {formats.plain(first.corpus.provenance)}")
        for name, result in group:
            if result.figures.answers:
                heading = f"Answers by length: {name}, {result.figures.split}"
                yield html.html_table(answers_table(result.figures.answers), heading)


def answers_table(answers: AnswersRecord, most: int | None = None) -> Table:
    """Return a row for each length, and one for all."""
    lengths = answers.lengths
    if most is not None and len(lengths) > most:
        lengths = [lengths[round(i * (len(lengths) - 1) / (most - 1))] for i in range(most)]
    rows = [(count(one.length), *_row(one)) for one in lengths]
    heads = columns("Length", "Documents#", "Nats#", "Tokens right#", "Bits right#", "Documents right#")
    return Table(heads, (*rows, ("all", *_row(answers))))


def _row(one: AnswerCounts) -> tuple[str, ...]:
    shares = (one.token_accuracy, one.bit_accuracy, one.document_accuracy)
    return (
        count(one.documents),
        decimal(one.nats_per_answer_token, 3),
        *(formats.percent(100 * share) for share in shares),
    )


def _terminal(result: Evaluation, console: Console) -> None:
    """Print all answers, then a row for each length."""
    if answers := result.figures.answers:
        print_lines(console, [f"  {one_line(answers.task):<11} {answers.in_words()}; by length:"])
        print_lines(console, (f"    {line}" for line in to_text(answers_table(answers, MOST_LENGTHS)).splitlines()))


SECTION = Section("Answers", lambda f: isinstance(f, EvaluationFigures) and f.answers is not None, _html, _terminal)
