"""Passages of a stretch that several readers read: what each gains on the others, word by word."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from backstory.explanations.gains import Scored, chosen, pairs
from backstory.explanations.passage_reading import gain_layer, gain_scale, note_on_words, summed, surprisal_layer
from backstory.explanations.words import Span, spans
from backstory.reading.opening import Opened
from backstory.reports.passage import Layer, Passage, to_json
from backstory.text import Vocabulary


def excerpts(
    scored: Scored, opened: Opened, names: Sequence[str], asked: Sequence[int], words: int
) -> list[dict[str, Any]]:
    """The passages that begin at the tokens `asked` of the text, else those that are chosen, with layers, as JSON values."""
    vocabulary = opened.dataset.vocabulary
    ids = np.asarray(opened.split.ids[scored.at : scored.at + scored.nats.shape[1]])
    found = spans(vocabulary, ids, len(ids))
    starts = np.array([span.start for span in found])

    def word(token: int) -> int:
        """The word that a token of the text is in."""
        return int(np.searchsorted(starts, token - scored.at, "right")) - 1

    if asked:
        places = [("asked for", word(token)) for token in asked]
    else:
        places = chosen(summed(found, scored.gains[-1]), [word(token) for token in _begins(scored)], words)
    shown = [(why, found[first : first + words]) for why, first in places]
    # One scale for all of them, so that a colour means the same everywhere.
    high = gain_scale(np.concatenate([summed(found, gain) for gain in scored.gains]))
    return [
        {
            "why": why,
            "at": scored.at + part[0].start,
            "tokens": part[-1].end - part[0].start,
            "gains": scored.gains[:, part[0].start : part[-1].end].mean(1).tolist(),
            "passage": to_json(_passage(scored, opened, names, part, high, vocabulary)),
        }
        for why, part in shown
    ]


def _begins(scored: Scored) -> list[int]:
    """The tokens of the text where a document begins inside the stretch after another one, the longest document first."""
    inside = [int(token) for token in scored.documents if scored.at < token < scored.at + scored.nats.shape[1]]
    lengths = dict(zip(inside, np.diff([*inside, scored.at + scored.nats.shape[1]]).tolist(), strict=True))
    return sorted(inside, key=lambda token: -lengths[token])


def _passage(
    scored: Scored, opened: Opened, names: Sequence[str], part: Sequence[Span], high: float, vocabulary: Vocabulary
) -> Passage:
    """The words with a layer for each comparison, the last and widest first, and one for each reader's surprisal."""
    start, end = part[0].start, part[-1].end
    local = [Span(span.word, span.start - start, span.end - start) for span in part]
    layers: list[Layer] = []
    for (here, there), gain in zip(reversed(pairs(len(names))), scored.gains[::-1], strict=True):
        name = f"gain over {names[there]}" if here == 0 else f"gain of {names[here]} over {names[there]}"
        note = f"Blue: likelier with {names[here]} than with {names[there]}; orange and underlined: less likely."
        layers.append(gain_layer(name, summed(local, gain[start:end]), high, note))
    for name, nats in zip(names, scored.nats, strict=True):
        layers.append(surprisal_layer(f"surprisal, {name}", summed(local, nats[start:end]), vocabulary))
    title = _title(scored, opened, start, end)
    return Passage(tuple(span.word for span in part), tuple(layers), title, note_on_words(vocabulary))


def _title(scored: Scored, opened: Opened, start: int, end: int) -> str:
    """The documents it is of, and where it begins."""
    numbers: list[int] = np.unique(scored.within[start:end]).tolist()
    titles = [scored.titles[number] or f"document {number + 1:,}" for number in numbers]
    named = " and ".join(titles) if len(titles) < 3 else f"{titles[0]} to {titles[-1]}"
    return f"{named}, from {opened.dataset.vocabulary.tokenizer.unit} {scored.at + start:,}"
