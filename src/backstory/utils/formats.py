"""Numbers as people read them: digits, thousands, signs and units, the same in every table, caption and sentence.

A number below zero has an ASCII hyphen, so that it can be copied into a program, and zero has no sign.
"""

import math
import re
from typing import Any

from backstory.utils import scores as measures
from backstory.utils.errors import plural

MISSING = "–"
"""Content of a cell without a value."""


def count(value: float | None) -> str:
    """Return a whole number with thousands separated: `20,123`."""
    return MISSING if value is None else f"{value:z,.0f}" if math.isfinite(value) else "not finite"


def quantity(number: float | None, noun: str) -> str:
    """Return a number of things, with their noun in the plural unless it is 1: `20,123 words`."""
    return f"{count(number)} {plural(noun, number)}"


def span(low: int, high: int | None) -> str:
    """Return a range of whole numbers, both ends included: `20–49`, `1,000 or more`."""
    return f"{count(low)} or more" if high is None else f"{count(low)}–{count(high)}"


def decimal(value: float | None, digits: int) -> str:
    """Return a number with a fixed number of decimals and thousands separated."""
    return MISSING if value is None else f"{value:z,.{digits}f}" if math.isfinite(value) else "not finite"


def perplexity(value: float | None) -> str:
    """Return a perplexity with the digits that differ between good runs: `2.351`, `98.1`, `1,204`."""
    if value is None or not math.isfinite(value):
        return decimal(value, 0)
    return measures.bounded(value, ",.3f" if value < 10 else ",.1f" if value < 1000 else ",.0f")


def score(nats: float, unit: str) -> str:
    """Return the score of a reading from its mean nats: `1.175 bits per character`, or `perplexity 98.1 per word`."""
    value = figure(nats, unit)
    return f"{value} bits per {unit}" if unit in measures.IN_BITS else f"perplexity {value} per {unit}"


def figure(nats: float, unit: str) -> str:
    """Return the number alone, without its unit."""
    return decimal(measures.bits(nats), 3) if unit in measures.IN_BITS else perplexity(measures.perplexity(nats))


def validation(value: float, unit: str | None) -> str:
    """Return a validation score: `validation perplexity 98.1 per word`, or `validation 1.175 bits per character`."""
    if unit in measures.IN_BITS:
        return f"validation {score(measures.nats(value), unit)}"
    return f"validation perplexity {perplexity(value)}" + (f" per {unit}" if unit else "")


def validation_cell(value: float | None, unit: str | None) -> str:
    """Return a validation score for a table: `98.1`, or `1.175` in bits."""
    if value is None:
        return MISSING
    return figure(measures.nats(value), unit) if unit in measures.IN_BITS else perplexity(value)


def alone(value: float) -> str:
    """Return a perplexity that may have no bound, as of a pointer alone or of words in characters: `175.31`, `above 10⁶`."""
    return measures.bounded(value, ",.2f")


def percent(value: float | None) -> str:
    """Return a percentage, already times 100: `50.7%`, `0.8%`, `1,204%`."""
    if value is None or not math.isfinite(value):
        return MISSING if value is None else "not finite%"
    return measures.bounded(value, ",.1f" if abs(value) < 1000 else ",.0f") + "%"


def signed(value: float | None, digits: int = 3) -> str:
    """Return a gain with its sign: `+0.120`; nothing is `0.000`."""
    return _with_sign(decimal(value, digits))


def signed_percent(value: float | None) -> str:
    """Return a change in percent with its sign: `+12.3%`, `-40.0%`; nothing is `0.0%`."""
    return _with_sign(percent(value))


def _with_sign(number: str) -> str:
    """Put a plus before a number above zero."""
    return f"+{number}" if number[0].isdigit() and re.search("[1-9]", number) else number


def duration(seconds: float | None) -> str:
    """Return a span of time in its two largest parts: `65 s` is `1 min 5 s`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, left = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {left} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def model_size(parameters: int, digits: int = 2) -> str:
    """Return a rounded number of parameters as people write it: `62,000`, `2.7 M`."""
    rounded = float(f"{parameters:.{digits}g}")
    return f"{rounded / 1e6:g} M" if rounded >= 1e6 else f"{rounded:,.0f}"


def setting(value: object) -> str:
    """Return the value of a setting with the digits that tell it from others."""
    return f"{value:z.3g}" if isinstance(value, float) else "none" if value is None else plain(value)


def plain(value: Any) -> str:
    """Return any value of a JSON file as text, for results this version does not know."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:z.6g}" if math.isfinite(value) else "not finite"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or "none"
    return str(value)
