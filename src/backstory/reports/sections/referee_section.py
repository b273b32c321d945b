"""Refereed predictors: score, verdict on each condition, and several predictors side by side."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from backstory.reports import document as pieces
from backstory.reports.document import Piece, Section, of_kind, print_text
from backstory.reports.tables import Table, columns, without_empty_columns
from backstory.results import RefereeFigures, Result, RunResults
from backstory.results.published_values import Published
from backstory.utils.errors import plural
from backstory.utils.formats import decimal, perplexity, quantity
from backstory.utils.scores import IN_BITS, bounded
from backstory.utils.terminal import one_line

Refereed = Result[RefereeFigures]


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the score of each refereed predictor and its conditions, with position and evidence of failures."""
    results = [result for run in runs for result in run.of(RefereeFigures)]
    for result in results:
        if failed := [_words(violation.condition) for violation in result.figures.violations]:
            yield pieces.Alarm(f"{_title(result)} failed: {', '.join(failed)}")
    if len(results) > 1:
        yield pieces.Tabular(predictors_table(results), "Refereed predictors")
    for result in results:
        yield pieces.Heading(_title(result))
        yield pieces.Facts(tuple((name.capitalize(), text) for name, text in _facts(result.figures)))


def predictors_table(results: Sequence[Refereed]) -> Table:
    """Return a row for each predictor: its verdict, its score and its text."""
    rows = []
    for result in results:
        f, verdict = result.figures, "passed" if result.figures.audit.passed else "FAILED"
        scores = decimal(f.bits_per_byte, 4), perplexity(f.perplexity)
        rows.append((one_line(result.name), verdict, *scores, f.unit, result.corpus.title()))
    heads = columns("Predictor", "Verdict", "Bits per byte#", "Perplexity#", "per", "Text")
    return without_empty_columns(Table(heads, tuple(rows)))


def describe(result: Refereed) -> str:
    """Return the score and the verdict as lines of text."""
    return "\n".join([_title(result), *(f"  {name:<22} {text}" for name, text in _facts(result.figures))])


def _terminal(result: Refereed, console: Console) -> None:
    print_text(console, describe(result))


def _title(result: Refereed) -> str:
    return f"{one_line(result.name)} on {result.corpus.title()}"


def _words(condition: str) -> str:
    return condition.replace("_", " ")


def _facts(figures: RefereeFigures) -> Iterator[tuple[str, str]]:
    """Yield the score, the verdict on each condition, and the extent of the tests."""
    failed = {violation.condition: violation for violation in figures.violations}
    yield "score", _score(figures)
    for condition in figures.audit.checks or {}:
        passed = "nothing was claimed" if condition == "as_reported" and not figures.claims else "passed"
        verdict = passed
        if violation := failed.get(condition):
            verdict = f"FAILED{':' if violation.token is None else ''} {violation.in_words()}"
        yield _words(condition), verdict
    yield "extent", f"{_extent(figures)}; seed {figures.audit.seed}"


def _score(figures: RefereeFigures) -> str:
    counted = f"over {quantity(figures.tokens, figures.unit)}"
    if figures.nats_per_token is None or figures.perplexity is None:
        return f"none, as a token has no probability, {counted}"
    numbers = [
        f"{figures.nats_per_token:.4f} nats and perplexity {bounded(figures.perplexity, '.4g')} per {figures.unit}"
    ]
    if figures.bits_per_byte is not None:
        numbers.insert(0 if figures.unit in IN_BITS else 1, f"{figures.bits_per_byte:.4f} bits per byte")
    fails = {violation.condition for violation in figures.violations} - {"as_reported"}
    invalid = "; it does not count, as the audit failed" if fails else ""
    return f"{', '.join(numbers)} {counted}{invalid}"


def _extent(figures: RefereeFigures) -> str:
    """Return the extent of the tests, and the chance that they miss a cheat."""
    if figures.decoded == figures.tokens:
        return "every token was decoded"
    return (
        f"{figures.decoded:,} random {plural(figures.unit, figures.decoded)} decoded and {figures.replayed:,} replayed; "
        f"decoding misses a cheat at 1 token in 100 in {100 * figures.missed:.2g}% of audits"
    )


SECTION = Section("Refereed", of_kind(RefereeFigures), _pieces, _terminal)
