"""Cells of the table of evidence in words: scores, gains and measures, and the verdicts on them."""

import math
from collections.abc import Iterable, Mapping, Sequence

from backstory.papers.claims import OPPOSITE, YES
from backstory.papers.paper import PublishedValue
from backstory.results.reproduction_record import ClaimRecord, MeasureRecord
from backstory.utils.formats import MISSING, percent, signed_percent

CLOSE = 0.02
"""A score matches the paper's if it is within this share of it."""
LEVEL = 0.95
"""Level of the intervals, and of p-values after Holm's correction."""
SCORES = ("perplexity", "bits_per_token")


def protocol_cell(departures: Iterable[str]) -> str:
    # A suite's departures of a system are one text, and two systems of a claim share some of them.
    texts = list(dict.fromkeys(part for text in departures for part in text.split("; ")))
    return f"no: {'; '.join(texts)}" if texts else "yes"


def seeds_cell(done: Sequence[object], planned: Sequence[object]) -> str:
    return str(len(done)) if len(done) >= len(planned) else f"{len(done)} of {len(planned)}"


def _column(value: PublishedValue) -> str:
    """Return the split and the reader of a value: `test`, `valid, dynamic`."""
    return (
        value.split
        if value.reader == "static"
        else f"{value.split}, {value.reader.partition(':')[0].partition('+')[0]}"
    )


def printed_cell(values: Mapping[str, PublishedValue]) -> str:
    return scores_cell(values, {key: (value.value, value.deviation) for key, value in values.items()})


def scores_cell(values: Mapping[str, PublishedValue], scores: Mapping[str, tuple[float | None, float | None]]) -> str:
    """Return scores with their splits and readers: `valid 60.00; test 57.30 +- 0.10`."""
    texts = []
    for key in (key for key in values if key in scores):
        (score, deviation), metric = scores[key], values[key].metric
        if metric in SCORES and score is not None:
            digits = 2 if metric == "perplexity" else 4
            spread = "" if deviation is None else f" +- {deviation:.{digits}f}"
            texts.append(f"{_column(values[key])} {score:.{digits}f}{spread}")
        elif score is not None:
            texts.append(f"{score:g} tokens" if metric == "tokens" else f"{score:g}%")
    return "; ".join(texts)


def score_verdict(values: Mapping[str, PublishedValue], scores: Mapping[str, float | None], departs: bool) -> str:
    """Compare ours with the published values, on the test split if it was read."""
    keys = [key for key in scores if values[key].split == "test"] or list(scores)
    excess = {key: (scores[key] or 0.0) / values[key].value - 1 for key in keys}
    sides = [f"{abs(part):.1%} {'above' if part > 0 else 'below'}" for part in excess.values()]
    if len(keys) > 1:
        sides = [f"{_column(values[key])} {side}" for key, side in zip(keys, sides, strict=True)]
    side = f"{', '.join(sides)} the published value{'s' if len(keys) > 1 else ''}"
    if departs:
        return f"under other conditions: {side}"
    return f"yes: {side}" if all(abs(part) <= CLOSE for part in excess.values()) else f"no: {side}"


def gain_cell(record: ClaimRecord) -> str:
    interval = "" if record.low is None or record.high is None else f" ({record.low:.3g} to {record.high:.3g})"
    p = "" if record.holm_p_value is None else f", p (Holm) {record.holm_p_value:.2g}"
    return f"gain {record.gain:.3g}{interval}{p}"


def claim_verdict(record: ClaimRecord, departs: bool) -> str:
    decided = record.verdict in (YES, OPPOSITE) and (record.holm_p_value or 0.0) >= 1 - LEVEL
    verdict = f"{record.verdict}, but not decided after Holm's correction" if decided else record.verdict
    if not departs:
        return verdict
    return f"under other conditions: {verdict.replace(OPPOSITE, 'the opposite')}"


def measure_words(measure: MeasureRecord) -> str:
    """Format a number of a finding: `near +9.1% (+7.0% to +11.2%)`."""

    def number(value: float | None) -> str:
        if value is None:
            return "more than was tried" if measure.unit == "tokens" else MISSING
        if measure.unit == "tokens":
            return f"{value:,.0f} tokens"
        return percent(100 * value) if measure.unit == "share" else signed_percent(100 * math.expm1(min(value, 700)))

    value, low, high = map(number, (measure.value, measure.low, measure.high))
    return f"{measure.label or 'effective context'} {value}" + ("" if low == high else f" ({low} to {high})")
