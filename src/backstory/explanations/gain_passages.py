"""Passages of a stretch of text that show what a reader gains: where it gains or loses most, word by word."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from backstory.evaluation.opening import EvalSetup
from backstory.explanations.explained_text import Span, words_of
from backstory.explanations.gains import ScoredText, pairs
from backstory.explanations.passage_reading import gain_layer, gain_scale, note_on_words, surprisal_layer, word_score_of
from backstory.results.explanation_record import ExcerptRecord
from backstory.results.passage import Layer, Passage


def notable(gains: np.ndarray, begins: Sequence[int], words: int) -> list[tuple[str, int]]:
    """Return notable passages as (reason, first word): the largest gain, the largest loss, and the start of a document.

    `gains` (W,) are those of the words of a stretch, `begins` the words at which documents begin, the longest first.
    """
    length = min(words, len(gains))
    sums = np.convolve(gains, np.ones(length), "valid")
    best, worst = int(sums.argmax()), int(sums.argmin())
    passages = [("the largest gain", best)]
    if sums[worst] < sums[best]:
        passages.append(("the largest loss" if sums[worst] < 0 else "the smallest gain", worst))
    return passages + [("the beginning of a document", at) for at in begins[:1] if at not in (best, worst)]


def excerpts(
    scored: ScoredText, setup: EvalSetup, names: Sequence[str], tokens: Sequence[int], words: int
) -> tuple[ExcerptRecord, ...]:
    """Return the passages at these tokens of the text, or else notable ones, with layers."""
    vocabulary = setup.dataset.vocabulary
    ids = np.asarray(setup.split.ids[scored.at : scored.at + scored.nats.shape[1]])
    spans = words_of(vocabulary, ids, len(ids))
    starts = np.array([span.start for span in spans])

    def word(token: int) -> int:
        """Return the word that a token of the text is in."""
        return int(np.searchsorted(starts, token - scored.at, "right")) - 1

    boundaries = scored.boundaries(vocabulary)
    if boundaries is not None and scored.log_begins is not None:
        uncertain = boundaries.uncertain(ids, starts)
        uncertain[0] = boundaries.begins[ids[0]]  # the stretch may begin inside a text
        scored = replace(scored, log_begins=np.where(uncertain, scored.log_begins, 0.0))
    nats = scored.by_word(starts)
    gains = np.stack([nats[there] - nats[here] for here, there in pairs(len(nats))])
    if tokens:
        passages = [("asked for", word(token)) for token in tokens]
    else:
        passages = notable(gains[-1], [word(token) for token in _begins(scored)], words)
    parts = [(why, spans[first : first + words], slice(first, first + words)) for why, first in passages]
    # All passages share a scale, so that a colour means the same everywhere.
    high = gain_scale(gains.ravel())
    return tuple(
        ExcerptRecord(
            why=why,
            at=scored.at + part[0].start,
            tokens=part[-1].end - part[0].start,
            gains=tuple(scored.gains[:, part[0].start : part[-1].end].mean(1).tolist()),
            passage=_passage(scored, setup, names, part, nats=nats[:, inside], gains=gains[:, inside], high=high),
        )
        for why, part, inside in parts
    )


def _begins(scored: ScoredText) -> list[int]:
    """Return the tokens where a document begins inside the stretch after another one, the longest document first."""
    inside = [int(token) for token in scored.documents if scored.at < token < scored.at + scored.nats.shape[1]]
    lengths = dict(zip(inside, np.diff([*inside, scored.at + scored.nats.shape[1]]).tolist(), strict=True))
    return sorted(inside, key=lambda token: -lengths[token])


def _passage(
    scored: ScoredText,
    setup: EvalSetup,
    names: Sequence[str],
    part: Sequence[Span],
    *,
    nats: np.ndarray,
    gains: np.ndarray,
    high: float,
) -> Passage:
    """Return the words with a layer for each comparison, the last and widest first, and one for each reader's surprisal.

    `nats` (R, W) and `gains` (C, W) are those of the words; `high` is the gain with the full colour.
    """
    start, end, vocabulary = part[0].start, part[-1].end, setup.dataset.vocabulary
    layers: list[Layer] = []
    for (here, there), gain in zip(reversed(pairs(len(names))), gains[::-1], strict=True):
        name = f"gain over {names[there]}" if here == 0 else f"gain of {names[here]} over {names[there]}"
        note = f"Blue: likelier with {names[here]} than with {names[there]}; orange and underlined: less likely."
        layers.append(gain_layer(name, gain, high, note))
    for name, of_reader in zip(names, nats, strict=True):
        layers.append(surprisal_layer(f"surprisal, {name}", of_reader, vocabulary))
    title = _title(scored, setup, start, end)
    about = note_on_words(vocabulary, word_score=word_score_of(scored.boundaries(vocabulary), vocabulary))
    return Passage(tuple(span.word for span in part), tuple(layers), title, about)


def _title(scored: ScoredText, setup: EvalSetup, start: int, end: int) -> str:
    """Return the title of a passage: its documents and its position."""
    numbers: list[int] = np.unique(scored.within[start:end]).tolist()
    titles = [scored.titles[number] or f"document {number + 1:,}" for number in numbers]
    named = " and ".join(titles) if len(titles) < 3 else f"{titles[0]} to {titles[-1]}"
    return f"{named}, from {setup.dataset.vocabulary.tokenizer.unit} {scored.at + start:,}"
