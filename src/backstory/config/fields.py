"""Fields of settings whose ranges `strict.validate` checks."""

from dataclasses import field
from typing import Any


def between(default: float | None, low: float, high: float = float("inf"), *, above: bool = False) -> Any:
    """A number field whose range, [low, high] or (low, high] if `above`, is checked by `strict.validate`."""
    return field(default=default, metadata={"range": (low, high, above)})


def probability(default: float | None) -> Any:
    """A dropout probability, in [0, 1)."""
    return field(default=default, metadata={"range": (0.0, 0.999, False)})
