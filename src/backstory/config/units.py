"""Measures of how well text is predicted, from mean nats per token."""

import math

IN_BITS = ("character", "byte")
"""The units whose score is told in bits of each (BPC), and not as a perplexity."""


def perplexity(nats: float) -> float:
    """exp of the mean nats per token, finite however bad they are."""
    return math.exp(min(nats, 700))


def nats(perplexity: float) -> float:
    """Mean nats per token, of a perplexity, which is 1 or more."""
    return math.log(max(perplexity, 1.0))


def bits(nats: float) -> float:
    """Mean bits per token, of mean nats: per character (BPC) or byte, where that is a token."""
    return nats / math.log(2)


def measure_of(unit: str | None) -> str:
    """What scores of a unit are: `perplexity`, or `bits per character`."""
    return f"bits per {unit}" if unit in IN_BITS else "perplexity"


def told(nats: float, unit: str) -> str:
    """What mean nats come to, with two or four decimals: `perplexity 98.12 per word`, or `1.1753 bits per character`."""
    if unit in IN_BITS:
        return f"{bits(nats):.4f} {measure_of(unit)}"
    return f"perplexity {perplexity(nats):.2f} per {unit}"
