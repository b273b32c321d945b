"""Measures of how well text is predicted, from mean nats per token."""

import math


def perplexity(nats: float) -> float:
    """exp of the mean nats per token, finite however bad they are."""
    return math.exp(min(nats, 700))
