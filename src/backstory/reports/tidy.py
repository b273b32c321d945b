"""The figures of runs as a tidy CSV: one row each, with interval, text and conditions of measurement."""

import io
from collections.abc import Iterator, Sequence
from typing import Any

from backstory.reports.phrases import audit_word
from backstory.results import (
    ComparisonFigures,
    EvaluationFigures,
    ExaminationFigures,
    Figures,
    OtherFigures,
    RefereeFigures,
    ReproductionFigures,
    Result,
    RunResults,
    SearchFigures,
    TrainingFigures,
)
from backstory.results.validation import is_number
from backstory.storage.csv_rows import row_writer

COLUMNS = (
    "run", "result", "split", "reader", "what", "metric", "value", "low", "high", "unit", "tokens", "audit", "stale",
    "seed", "corpus", "weights", "command",
)  # fmt: skip
_SCORES = (
    "perplexity",
    "nats_per_token",
    "bits_per_token",
    "bits_per_character",
    "bits_per_byte",
    "open_bits_per_byte",
    "perplexity_per_word",
)
_TRAINING = ("valid_perplexity", "valid_nats", "parameters", "epochs", "best_epoch", "tokens_per_second")
Figure = tuple[str, str, Any, Any, Any]
"""Subject, metric, value, and the ends of its interval."""


def tidy_csv(runs: Sequence[RunResults]) -> str:
    """Return every figure of the runs as a row; a cell without a value is empty."""
    text = io.StringIO()
    write = row_writer(text)
    write(COLUMNS)
    for run in runs:
        for result in run.results:
            for row in _rows(run.name, result):
                write(row)
    return text.getvalue()


def _rows(name: str, result: Result[Any]) -> Iterator[list[Any]]:
    f, origin = result.figures, result.provenance
    unit, tokens = getattr(f, "unit", ""), getattr(f, "tokens", getattr(f, "targets", ""))
    audit = audit_word(f.audit) if isinstance(f, EvaluationFigures | TrainingFigures | RefereeFigures) else ""
    reader = result.name if isinstance(f, RefereeFigures) else f.read_by
    weights = origin.weights if isinstance(origin.weights, str) else ""
    for what, metric, value, low, high in _figures(f):
        if is_number(value):
            yield [name, f.label, getattr(f, "split", ""), reader, what, metric, value, low, high, unit,
                   tokens if is_number(tokens) else "", audit, result.stale or "", origin.seed,
                   result.corpus.title(""), weights, origin.command]  # fmt: skip


def _figures(figures: Figures) -> Iterator[Figure]:
    match figures:
        case EvaluationFigures() | RefereeFigures():
            yield from (("", metric, getattr(figures, metric, None), "", "") for metric in _SCORES)
        case TrainingFigures():
            yield from (("", metric, getattr(figures, metric), "", "") for metric in _TRAINING)
            yield from ((f"epoch {e.epoch}", "valid_perplexity", e.valid_perplexity, "", "") for e in figures.curve)
        case ExaminationFigures():
            yield from _examined(figures)
        case ComparisonFigures():
            yield from ((r.name, "nats_per_token", r.nats_per_token, "", "") for r in figures.readers)
            yield from ((p.name, "gain", p.gain, p.low, p.high) for p in figures.comparisons)
        case ReproductionFigures(metric=metric):
            for s in figures.systems:
                what = f"{s.system}, {s.place.described()}"
                yield from ((what, name, value, "", "") for name, value in
                            ((f"published {metric}", s.published), (metric, s.mean), ("deviation", s.deviation)))  # fmt: skip
            yield from ((claim.sentence, "gain", claim.gain, claim.low, claim.high) for claim in figures.claims)
        case SearchFigures():
            yield from ((f"trial {t.trial}", "valid_perplexity", t.valid_perplexity, "", "") for t in figures.trials)
        case OtherFigures():
            yield from (("", str(key), value, "", "") for key, value in figures.values.items())


def _examined(figures: ExaminationFigures) -> Iterator[Figure]:
    yield "baseline", "perplexity", figures.baseline.perplexity, "", ""
    if context := getattr(figures, "effective_context", None):
        low, high = context.interval or ("", "")
        yield "", "effective_context", context.context, low, high
    named = [("", figures.conditions), *((f"{g.by} {g.group}: ", g.conditions) for g in figures.groups)]
    for group, conditions in named:
        for c in conditions:
            what = f"{group}{c.name}"
            low, high = c.interval or ("", "")
            yield what, "added_nats", c.effect, low, high
            yield what, "perplexity", c.perplexity, "", ""
