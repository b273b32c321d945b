"""What a comparison of readers found, in sentences and tables."""

from typing import Any

from backstory.config import plural
from backstory.config import scores as measures
from backstory.config.scores import UnknownShare
from backstory.reports import formats
from backstory.reports.formats import MISSING, count
from backstory.reports.results import Record, Result
from backstory.reports.tables import Column, Table, columns

DIGITS = 3
"""Decimals of a gain in nats."""


def name_of(pair: Record) -> str:
    """A comparison as it is called: `dynamic over static`."""
    return f"{pair['reader']} over {pair['over']}"


def signed(value: float, digits: int = DIGITS) -> str:
    """A gain with its sign: `+0.120`; nothing is `0.000`."""
    rounded = round(value, digits) or 0.0
    return f"{rounded:+.{digits}f}" if rounded else f"{0:.{digits}f}"


def has_interval(found: Record) -> bool:
    """Whether there were documents enough for one."""
    return found["low"] is not None and found["high"] is not None


def gain(found: Record, intervals: bool = True) -> str:
    """A gain with its interval, where it has one: `+0.120 (+0.100 to +0.140)`."""
    interval = f" ({_interval(found)})" if intervals and has_interval(found) else ""
    return f"{signed(found['gain'])}{interval}"


def compared(result: Result) -> str:
    """One or two sentences on a comparison: how well each reads, and what is gained at first and further on."""
    f = result.figures
    unit, pair = f["unit"], f["comparisons"][-1]
    best, *others = _scores(f)
    measure = measures.measure_of(unit)
    told = [f"{best} {measure}" if in_bits(f) else f"{measure} {best}", *others]
    read = ", ".join(f"{score} with {r['name']}" for score, r in zip(told, f["readers"], strict=True))
    low = f" (95%: {_interval(pair)})" if has_interval(pair) else ""
    sentence = (
        f"{result.name} reads {count(f['tokens'])} {plural(unit, f['tokens'])}{_unknown(f)} in {_documents(f)} at {read}: "
        f"{name_of(pair)} gains {signed(pair['gain'])} nats per {unit}{low}."
    )
    first, *later = [(p, p["gains"][-1]["gain"]) for p in f["positions"]]
    if first[0]["from"] or not later:
        return sentence
    # The last stretch may be of one long document alone.
    most = max(later, key=lambda pair: pair[0]["tokens"])
    return (
        f"{sentence} Among the first {count(first[0]['to'])} {plural(unit)} of a document it gains {signed(first[1])}, "
        f"after {count(most[0]['from'])} to {count(most[0]['to'])} {signed(most[1])}."
    )


def _unknown(figures: Record) -> str:
    told = UnknownShare.of(figures).phrase()
    return told and f" ({told})"


def in_bits(figures: Record) -> bool:
    """Whether scores are told in bits of each token, and not as perplexities."""
    return figures["unit"] in measures.IN_BITS


def _scores(figures: Record) -> list[str]:
    """The score of every reader."""
    return [formats.figure(r["nats_per_token"], figures["unit"]) for r in figures["readers"]]


def _documents(figures: Record) -> str:
    number = len(figures["documents"])
    return f"{count(number)} {plural('document', number)}"


def readers(result: Result) -> Table:
    """How well each reader reads the stretch, and how it was set."""
    f = result.figures
    heads = "Reader", f"{measures.measure_of(f['unit']).capitalize()}#", f"Nats per {f['unit']}#", "Over#", "Settings"
    rows = [
        (r["name"], told if in_bits(f) else f"{told} per {f['unit']}", formats.decimal(r["nats_per_token"], DIGITS),
         f"{count(f['tokens'])} {plural(f['unit'], f['tokens'])}", _settings(r.get("layers")))
        for told, r in zip(_scores(f), f["readers"], strict=True)
    ]  # fmt: skip
    return Table(columns(*heads), tuple(rows))


def pairs(result: Result) -> Table:
    """What is gained by each comparison over the whole stretch."""
    f = result.figures
    rows = [(name_of(p), signed(p["gain"]), _interval(p), _gained(f, p), _documents(f)) for p in f["comparisons"]]
    measure = measures.measure_of(f["unit"]).capitalize()
    heads = columns("Gain of", f"Nats per {f['unit']}#", "95% interval#", f"{measure} gain#", "Over#")
    return Table(heads, tuple(rows))


def _gained(figures: Record, pair: Record) -> str:
    """A gain in what scores are told in."""
    return signed(measures.bits(pair["gain"])) if in_bits(figures) else signed(pair["perplexity_gain"], 1)


def documents(result: Result) -> Table:
    """Every document of the stretch: how well each reader reads it, and the gains, in nats per token."""
    f = result.figures
    rows = [
        (title_of(d, i), count(d["start"]), count(d["tokens"]), *(formats.decimal(v, DIGITS) for v in d["nats"]),
         *map(signed, d["gains"]))
        for i, d in enumerate(f["documents"])
    ]  # fmt: skip
    heads = (Column("Document"), Column(f"From {f['unit']}", True), Column(plural(f["unit"]).capitalize(), True))
    return Table((*heads, *(Column(r["name"], True) for r in f["readers"]), *_gain_columns(f)), tuple(rows))


def positions(result: Result, intervals: bool = True) -> Table:
    """The gains by how far into a document a token is, in nats per token, with their intervals unless they are too wide."""
    f = result.figures
    rows = [
        (
            f"{count(p['from'])} to {count(p['to'])}",
            count(p["tokens"]),
            count(p["documents"]),
            *(gain(g, intervals) for g in p["gains"]),
        )
        for p in f["positions"]
    ]
    heads = columns(
        f"{plural(f['unit']).capitalize()} into a document", f"{plural(f['unit']).capitalize()}#", "Documents#"
    )
    return Table((*heads, *_gain_columns(f)), tuple(rows))


def title_of(document: Record, place: int) -> str:
    """A document's title, or its number in the stretch where it has none."""
    return document["title"] or f"document {count(place + 1)}"


def passage_title(one: Record, number: int, figures: Record) -> str:
    """The heading of a passage: `1. The largest gain, +0.420 nats per word`."""
    pair = figures["comparisons"][-1]
    why = one["why"][:1].upper() + one["why"][1:]
    return f"{number}. {why}: {name_of(pair)} {signed(one['gains'][-1])} nats per {figures['unit']}"


def _gain_columns(figures: Record) -> tuple[Column, ...]:
    return tuple(Column(name_of(p), True) for p in figures["comparisons"])


def _interval(found: Record) -> str:
    return MISSING if not has_interval(found) else f"{signed(found['low'])} to {signed(found['high'])}"


def _settings(layers: Any) -> str:
    """Where the settings of a reader come from, and what they are."""
    if not isinstance(layers, list):
        return MISSING
    told = []
    for layer in layers:
        settings = layer.get("settings") if isinstance(layer, dict) else None
        if isinstance(settings, dict) and settings:
            values = ", ".join(f"{key} {formats.plain(value)}" for key, value in settings.items())
            told.append(f"{layer.get('name')}: {values} ({layer.get('origin')})")
    return "; ".join(told) or MISSING
