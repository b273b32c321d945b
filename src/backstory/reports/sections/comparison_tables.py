"""A comparison of readers along a text in sentences and tables."""

from typing import Any

from backstory.config import formats, plural
from backstory.config import scores as measures
from backstory.config.formats import MISSING, count, signed
from backstory.reports.tables import Column, Table, columns
from backstory.results import ComparisonFigures, Result
from backstory.results.explanation_record import ExcerptRecord, GainRecord, PairRecord

DIGITS = 3
"""Decimals of a score in nats."""
Comparison = Result[ComparisonFigures]


def gain(record: GainRecord, intervals: bool = True) -> str:
    """Return a gain with its interval, where it has one: `+0.120 (+0.100 to +0.140)`."""
    return f"{signed(record.gain)} ({_interval(record)})" if intervals and record.interval else signed(record.gain)


def _interval(record: GainRecord) -> str:
    return MISSING if record.interval is None else " to ".join(map(signed, record.interval))


def compared(result: Comparison) -> str:
    """Return one or two sentences on a comparison: how well each reads, and what is gained at first and further on."""
    f, pair = result.figures, result.figures.comparisons[-1]
    best, *others = _scores(f)
    measure = measures.measure_of(f.unit)
    scores = [f"{best} {measure}" if in_bits(f) else f"{measure} {best}", *others]
    read = ", ".join(f"{score} with {r.name}" for score, r in zip(scores, f.readers, strict=True))
    interval = f" (95%: {_interval(pair)})" if pair.interval else ""
    unknown = f.unknown_among(f.tokens).phrase()
    sentence = (
        f"{result.name} reads {count(f.tokens)} {plural(f.unit, f.tokens)}{unknown and f' ({unknown})'} in "
        f"{_documents(f)} at {read}: {pair.name} gains {signed(pair.gain)} nats per {f.unit}{interval}."
    )
    first, *later = f.positions
    if first.from_ or not later:
        return sentence
    # The last stretch may be of one long document alone.
    most = max(later, key=lambda position: position.tokens)
    return (
        f"{sentence} Among the first {count(first.to)} {plural(f.unit)} of a document it gains "
        f"{signed(first.gains[-1].gain)}, after {count(most.from_)} to {count(most.to)} {signed(most.gains[-1].gain)}."
    )


def in_bits(figures: ComparisonFigures) -> bool:
    """Return True if scores are bits of each token, and not perplexities."""
    return figures.unit in measures.IN_BITS


def _scores(figures: ComparisonFigures) -> list[str]:
    """Return the score of every reader."""
    return [formats.figure(r.nats_per_token, figures.unit) for r in figures.readers]


def _documents(figures: ComparisonFigures) -> str:
    number = len(figures.documents)
    return f"{count(number)} {plural('document', number)}"


def passage_title(one: ExcerptRecord, number: int, figures: ComparisonFigures) -> str:
    """Return the heading of a passage: `1. The largest gain, +0.420 nats per word`."""
    why = one.why[:1].upper() + one.why[1:]
    return f"{number}. {why}: {figures.comparisons[-1].name} {signed(one.gains[-1])} nats per {figures.unit}"


def readers_table(figures: ComparisonFigures) -> Table:
    """Return how well each reader reads the stretch, and how it was set."""
    f = figures
    heads = "Reader", f"{measures.measure_of(f.unit).capitalize()}#", f"Nats per {f.unit}#", "Over#", "Settings"
    rows = [
        (r.name, score if in_bits(f) else f"{score} per {f.unit}", formats.decimal(r.nats_per_token, DIGITS),
         f"{count(f.tokens)} {plural(f.unit, f.tokens)}", _settings(r.layers))
        for score, r in zip(_scores(f), f.readers, strict=True)
    ]  # fmt: skip
    return Table(columns(*heads), tuple(rows))


def _settings(layers: Any) -> str:
    """Return where the settings of a reader come from, and what they are."""
    parts = []
    for layer in layers if isinstance(layers, list) else []:
        settings = layer.get("settings") if isinstance(layer, dict) else None
        if isinstance(settings, dict) and settings:
            values = ", ".join(f"{name} {formats.plain(value)}" for name, value in settings.items())
            parts.append(f"{layer.get('name')}: {values} ({layer.get('origin')})")
    return "; ".join(parts) or MISSING


def pairs_table(figures: ComparisonFigures) -> Table:
    """Return what is gained by each comparison over the whole stretch."""
    f = figures
    rows = [(p.name, signed(p.gain), _interval(p), _gained(f, p), _documents(f)) for p in f.comparisons]
    measure = measures.measure_of(f.unit).capitalize()
    heads = columns("Gain of", f"Nats per {f.unit}#", "95% interval#", f"{measure} gain#", "Over#")
    return Table(heads, tuple(rows))


def _gained(figures: ComparisonFigures, pair: PairRecord) -> str:
    """Return a gain in the measure of the scores."""
    return signed(measures.bits(pair.gain)) if in_bits(figures) else signed(pair.perplexity_gain, 1)


def documents_table(figures: ComparisonFigures) -> Table:
    """Return every document of the stretch: how well each reader reads it, and the gains, in nats per token."""
    f = figures
    rows = [
        (
            d.title_at(i),
            count(d.start),
            count(d.tokens),
            *(formats.decimal(v, DIGITS) for v in d.nats),
            *map(signed, d.gains),
        )
        for i, d in enumerate(f.documents)
    ]
    heads = (Column("Document"), Column(f"From {f.unit}", True), Column(plural(f.unit).capitalize(), True))
    return Table((*heads, *(Column(r.name, True) for r in f.readers), *_gain_columns(f)), tuple(rows))


def positions_table(figures: ComparisonFigures, intervals: bool = True) -> Table:
    """Return the gains by how far into a document a token is, in nats per token, with their intervals unless they are wide."""
    rows = [
        (
            f"{count(p.from_)} to {count(p.to)}",
            count(p.tokens),
            count(p.documents),
            *(gain(g, intervals) for g in p.gains),
        )
        for p in figures.positions
    ]
    units = plural(figures.unit).capitalize()
    heads = columns(f"{units} into a document", f"{units}#", "Documents#")
    return Table((*heads, *_gain_columns(figures)), tuple(rows))


def _gain_columns(figures: ComparisonFigures) -> tuple[Column, ...]:
    return tuple(Column(p.name, True) for p in figures.comparisons)
