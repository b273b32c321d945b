"""Passages of a stretch that several readers read: what each gains on the others, word by word."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backstory.evaluation.opening import EvalSetup
from backstory.explanations.displayed_words import Span, spans
from backstory.explanations.gains import Scored, chosen, pairs
from backstory.explanations.passage_reading import (
    gain_layer,
    gain_scale,
    note_on_words,
    surprisal_layer,
    word_score_of,
)
from backstory.reports.passage import Layer, Passage, to_json


def excerpts(
    scored: Scored, opened: EvalSetup, names: Sequence[str], asked: Sequence[int], words: int
) -> list[dict[str, Any]]:
    """The passages that begin at the tokens `asked` of the text, else those that are chosen, with layers, as JSON values."""
    vocabulary = opened.dataset.vocabulary
    ids = np.asarray(opened.split.ids[scored.at : scored.at + scored.nats.shape[1]])
    found = spans(vocabulary, ids, len(ids))
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
            "passage": to_json(_passage(scored, opened, names, part, (nats[:, words], gains[:, words]), high)),
        }
        for why, part, words in shown
    ]


def _begins(scored: Scored) -> list[int]:
    """The tokens of the text where a document begins inside the stretch after another one, the longest document first."""
    inside = [int(token) for token in scored.documents if scored.at < token < scored.at + scored.nats.shape[1]]
    lengths = dict(zip(inside, np.diff([*inside, scored.at + scored.nats.shape[1]]).tolist(), strict=True))
    return sorted(inside, key=lambda token: -lengths[token])


def _passage(
    scored: Scored,
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


def _title(scored: Scored, opened: EvalSetup, start: int, end: int) -> str:
    """The documents it is of, and where it begins."""
    numbers: list[int] = np.unique(scored.within[start:end]).tolist()
    titles = [scored.titles[number] or f"document {number + 1:,}" for number in numbers]
    named = " and ".join(titles) if len(titles) < 3 else f"{titles[0]} to {titles[-1]}"
    return f"{named}, from {opened.dataset.vocabulary.tokenizer.unit} {scored.at + start:,}"
