"""What one reader gains on another, from the nats of every token: by block, by document and by place in a document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from backstory.context.bootstrap import BLOCK, resampled_means
from backstory.data import word_nats
from backstory.evaluation.opening import EvalSetup
from backstory.explanations.explanation import Span, words_of
from backstory.explanations.passage_reading import (
    gain_layer,
    gain_scale,
    note_on_words,
    surprisal_layer,
    word_score_of,
)
from backstory.results.passage import Layer, Passage

ENOUGH = 8
"""Documents, or blocks, from which on a gain has an interval: fewer say little of how they differ."""
FIRST = 100
"""Tokens of the first stretch of a document; the second is as long, and every further one twice as long."""


@dataclass(frozen=True)
class ScoredText:
    """A stretch of a text as several readers scored it."""

    nats: np.ndarray
    """(R, N): minus the log-probability of every token, by reader."""
    at: int
    """Where the stretch begins in the text, in tokens."""
    documents: np.ndarray
    """(D,): where each document of the text begins, in tokens; the first at 0."""
    titles: Sequence[str]
    log_begins: np.ndarray | None = None
    """(R, N + 1): log of the mass of the tokens that begin a word, before every token and after the last; None: left out."""

    @cached_property
    def within(self) -> np.ndarray:
        """(N,): the number of the document that each token is in."""
        places = np.arange(self.at, self.at + self.nats.shape[1])
        return np.searchsorted(self.documents, places, "right") - 1

    @cached_property
    def clusters(self) -> np.ndarray:
        """(N,): what is drawn as a whole for an interval: documents, and long blocks of a text whose documents are unknown."""
        if len(self.documents) > 1:
            return self.within
        return np.arange(self.at, self.at + self.nats.shape[1]) // BLOCK

    @cached_property
    def offsets(self) -> np.ndarray:
        """(N,): how many tokens of its document come before each token."""
        return np.arange(self.at, self.at + self.nats.shape[1]) - self.documents[self.within]

    @cached_property
    def gains(self) -> np.ndarray:
        """(C, N): what the first reader of each pair saves over the second at every token."""
        return np.stack([self.nats[there] - self.nats[here] for here, there in pairs(len(self.nats))])

    def by_word(self, starts: np.ndarray) -> np.ndarray:
        """(R, W): the nats of words that begin at these tokens, and together are the stretch."""
        known = np.zeros((len(self.nats), self.nats.shape[1] + 1)) if self.log_begins is None else self.log_begins
        return word_nats(self.nats, known, starts)


def pairs(readers: int) -> list[tuple[int, int]]:
    """Which reader is compared with which: each with the next, from the last two on, and the first with the last.

    Gains in nats add up, so that any other comparison is a sum of these.
    """
    chain = [(i, i + 1) for i in reversed(range(readers - 1))]
    return chain if readers == 2 else [*chain, (0, readers - 1)]


def comparisons(scored: ScoredText, names: Sequence[str], block: int) -> list[dict[str, Any]]:
    """The gain of every pair over the whole stretch and in each of its blocks, in nats per token and in perplexity."""
    starts = np.arange(0, scored.nats.shape[1], block)
    lengths = np.diff([*starts, scored.nats.shape[1]])
    nats = np.add.reduceat(scored.nats, starts, axis=1) / lengths
    whole = perplexities(scored.nats.mean(1))
    return [
        {
            "reader": names[here],
            "over": names[there],
            **interval(gain, scored.clusters),
            "perplexity_gain": float(whole[there] - whole[here]),
            "blocks": (nats[there] - nats[here]).tolist(),
            "perplexity_blocks": (perplexities(nats[there]) - perplexities(nats[here])).tolist(),
        }
        for (here, there), gain in zip(pairs(len(names)), scored.gains, strict=True)
    ]


def perplexities(nats: np.ndarray) -> np.ndarray:
    """Perplexities of mean nats, kept from overflowing."""
    return np.exp(np.minimum(nats, 700.0))


def documents(scored: ScoredText) -> list[dict[str, Any]]:
    """Every document of the stretch, in order, as far as it lies in it."""
    return [
        {
            "document": int(number),
            "title": scored.titles[number],
            "start": int(scored.at + start),
            "tokens": int(end - start),
            "nats": scored.nats[:, start:end].mean(1).tolist(),
            "gains": scored.gains[:, start:end].mean(1).tolist(),
        }
        for number, start, end in _runs(scored.within)
    ]


def positions(scored: ScoredText) -> list[dict[str, Any]]:
    """The gains by how far into its document a token is."""
    found, low, high = [], 0, FIRST
    longest = int(scored.offsets.max())
    while low <= longest:
        inside = (scored.offsets >= low) & (scored.offsets < high)
        if inside.any():
            within, clusters = scored.within[inside], scored.clusters[inside]
            found.append(
                {
                    "from": low,
                    "to": high,
                    "tokens": int(inside.sum()),
                    "documents": len(np.unique(within)),
                    "nats": scored.nats[:, inside].mean(1).tolist(),
                    "gains": [interval(gain[inside], clusters) for gain in scored.gains],
                }
            )
        low, high = high, 2 * high
    return found


def interval(gains: np.ndarray, clusters: np.ndarray, seed: int = 0) -> dict[str, float | None]:
    """The mean gain of tokens (N,) and its 95% interval: bootstrap over the documents or blocks (N,) that they are in.

    Tokens of a document gain or lose together, so documents are drawn, not tokens. None where there are too few of them.
    """
    low = high = None
    if len(np.unique(clusters)) >= ENOUGH:
        means = resampled_means(gains[:, None], seed, clusters=clusters)
        low, high = map(float, np.quantile(means, [0.025, 0.975]))
    return {"gain": float(gains.mean()), "low": low, "high": high}


def chosen(gains: np.ndarray, begins: Sequence[int], words: int) -> list[tuple[str, int]]:
    """Passages worth a look, as (why, first word): most gained, most lost, and where a document begins.

    `gains` (W,) are those of the words of a stretch, `begins` the words at which documents begin, the longest first.
    """
    length = min(words, len(gains))
    sums = np.convolve(gains, np.ones(length), "valid")
    best, worst = int(sums.argmax()), int(sums.argmin())
    found = [("the largest gain", best)]
    if sums[worst] < sums[best]:
        found.append(("the largest loss" if sums[worst] < 0 else "the smallest gain", worst))
    taken = {place for _, place in found}
    return found + [("the beginning of a document", place) for place in begins[:1] if place not in taken]


def _runs(values: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(value, start, end) of every stretch of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for start, end in pairwise(edges):
        yield int(values[start]), start, end


def excerpts(
    scored: ScoredText, opened: EvalSetup, names: Sequence[str], asked: Sequence[int], words: int
) -> list[dict[str, Any]]:
    """The passages that begin at the tokens `asked` of the text, else those that are chosen, with layers, as JSON values."""
    vocabulary = opened.dataset.vocabulary
    ids = np.asarray(opened.split.ids[scored.at : scored.at + scored.nats.shape[1]])
    found = words_of(vocabulary, ids, len(ids))
    starts = np.array([span.start for span in found])

    def word(token: int) -> int:
        """The word that a token of the text is in."""
        return int(np.searchsorted(starts, token - scored.at, "right")) - 1

    boundaries = None if scored.log_begins is None else vocabulary.boundaries
    if boundaries is not None and scored.log_begins is not None:
        uncertain = boundaries.uncertain(ids, starts)
        uncertain[0] = boundaries.begins[ids[0]]  # the stretch may begin inside a text
        scored = replace(scored, log_begins=np.where(uncertain, scored.log_begins, 0.0))
    nats = scored.by_word(starts)
    gains = np.stack([nats[there] - nats[here] for here, there in pairs(len(nats))])
    if asked:
        places = [("asked for", word(token)) for token in asked]
    else:
        places = chosen(gains[-1], [word(token) for token in _begins(scored)], words)
    shown = [(why, found[first : first + words], slice(first, first + words)) for why, first in places]
    # One scale for all of them, so that a colour means the same everywhere.
    high = gain_scale(gains.ravel())
    return [
        {
            "why": why,
            "at": scored.at + part[0].start,
            "tokens": part[-1].end - part[0].start,
            "gains": scored.gains[:, part[0].start : part[-1].end].mean(1).tolist(),
            "passage": _passage(scored, opened, names, part, (nats[:, words], gains[:, words]), high).to_dict(),
        }
        for why, part, words in shown
    ]


def _begins(scored: ScoredText) -> list[int]:
    """The tokens of the text where a document begins inside the stretch after another one, the longest document first."""
    inside = [int(token) for token in scored.documents if scored.at < token < scored.at + scored.nats.shape[1]]
    lengths = dict(zip(inside, np.diff([*inside, scored.at + scored.nats.shape[1]]).tolist(), strict=True))
    return sorted(inside, key=lambda token: -lengths[token])


def _passage(
    scored: ScoredText,
    opened: EvalSetup,
    names: Sequence[str],
    part: Sequence[Span],
    of_words: tuple[np.ndarray, np.ndarray],
    high: float,
) -> Passage:
    """The words with a layer for each comparison, the last and widest first, and one for each reader's surprisal.

    `of_words` are their nats (R, W) and gains (C, W).
    """
    start, end, vocabulary = part[0].start, part[-1].end, opened.dataset.vocabulary
    layers: list[Layer] = []
    for (here, there), gain in zip(reversed(pairs(len(names))), of_words[1][::-1], strict=True):
        name = f"gain over {names[there]}" if here == 0 else f"gain of {names[here]} over {names[there]}"
        note = f"Blue: likelier with {names[here]} than with {names[there]}; orange and underlined: less likely."
        layers.append(gain_layer(name, gain, high, note))
    for name, nats in zip(names, of_words[0], strict=True):
        layers.append(surprisal_layer(f"surprisal, {name}", nats, vocabulary))
    title = _title(scored, opened, start, end)
    boundaries = None if scored.log_begins is None else vocabulary.boundaries
    about = note_on_words(vocabulary, word_score=word_score_of(boundaries, vocabulary))
    return Passage(tuple(span.word for span in part), tuple(layers), title, about)


def _title(scored: ScoredText, opened: EvalSetup, start: int, end: int) -> str:
    """The documents it is of, and where it begins."""
    numbers: list[int] = np.unique(scored.within[start:end]).tolist()
    titles = [scored.titles[number] or f"document {number + 1:,}" for number in numbers]
    named = " and ".join(titles) if len(titles) < 3 else f"{titles[0]} to {titles[-1]}"
    return f"{named}, from {opened.dataset.vocabulary.tokenizer.unit} {scored.at + start:,}"
