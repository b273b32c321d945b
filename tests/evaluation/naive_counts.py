"""Counts of n-grams and their smoothing as the equations have them, in float64: the reference of the fast ones."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

Gram = tuple[int, ...]


def naive_grams(texts: Sequence[Sequence[int]], order: int, boundary: int | None) -> dict[Gram, int]:
    """Kneser-Ney counts of all n-grams up to a length; the first word of each text is context only."""
    seen: set[Gram] = set()
    tokens: Counter[Gram] = Counter()
    for text in texts:
        for end in range(1, len(text)):
            ending = [tuple(text[begin : end + 1]) for begin in range(max(0, end - order + 1), end + 1)]
            ending = [gram for gram in ending if boundary not in gram[1:-1]]
            seen.update(ending)
            tokens[max(ending, key=len)] += 1
    before = Counter(gram[1:] for gram in seen if len(gram) > 1)
    return {gram: tokens[gram] + before[gram] for gram in seen}


def naive_discounts(grams: dict[Gram, int], length: int) -> list[float]:
    n = Counter(count for gram, count in grams.items() if len(gram) == length)
    if not n[1] or not n[2]:
        return [0.0, 0.5, 0.5, 0.5]
    y = n[1] / (n[1] + 2 * n[2])
    two = 2 - 3 * y * n[3] / n[2]
    two = two if 0 < two < 2 else y
    three = 3 - 4 * y * n[4] / n[3] if n[3] else 0.0
    return [0.0, y, two, three if 0 < three < 3 else two]


def naive_context(history: Sequence[int], longest: int, boundary: int | None) -> Gram:
    """The longest context at the end of a history; only its first word may be the boundary."""
    context: list[int] = []
    for word in reversed(history):
        if len(context) == longest:
            break
        context.insert(0, word)
        if word == boundary:
            break
    return tuple(context)


def naive_interpolated(
    grams: dict[Gram, int], context: Gram, types: int, discounts: Sequence[Sequence[float]], escapes: bool = False
) -> np.ndarray:
    """p (V,) after a context; discounts of each length of n-gram, from 1; `escapes`: PPM's method C."""
    lower = np.full(types, 1 / types)
    if len(context):
        lower = naive_interpolated(grams, context[1:], types, discounts, escapes)
    counts = [grams.get((*context, word), 0) for word in range(types)]
    if not sum(counts):
        return lower
    different = sum(count > 0 for count in counts)
    if escapes:
        return np.array(counts) / (sum(counts) + different) + different / (sum(counts) + different) * lower
    taken = np.array([discounts[len(context)][min(count, 3)] for count in counts])
    return (np.array(counts) - taken) / sum(counts) + taken.sum() / sum(counts) * lower


def naive_exclusion(
    grams: dict[Gram, int],
    context: Gram,
    types: int,
    discount: float,
    escapes: bool,
    excluded: frozenset[int] = frozenset(),
) -> np.ndarray:
    """p (V,) of PPM with exclusion: what a context has shown is left out of all shorter ones. 0 for the words left out."""
    counts = {w: grams[*context, w] for w in range(types) if (*context, w) in grams and w not in excluded}
    p, after = np.zeros(types), excluded | counts.keys()
    if not counts:
        left = 1.0
    else:
        scale = sum(counts.values()) + (len(counts) if escapes else 0)
        for word, count in counts.items():
            p[word] = (count - (0 if escapes else discount)) / scale
        left = 1 - p.sum()
    if len(after) == types:
        return p / p.sum()
    if len(context):
        return p + left * naive_exclusion(grams, context[1:], types, discount, escapes, after)
    rest = [word for word in range(types) if word not in after]
    p[rest] = left / len(rest)
    return p
