"""Where the neural cache looks at each word of a passage, what it expects there, and whether it helps."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from backstory.config import UserError, to_dict
from backstory.evaluation.token_scores import TokenScores
from backstory.explanations.explanation import Explained, Progress, Subject
from backstory.explanations.passage_reading import (
    LINK_SHARE,
    Parts,
    expected_layer,
    figures_of,
    gain_over,
    nats_of,
    note_on,
    part_name,
    read_parts,
    surprisal_layer,
    weights_layer,
)
from backstory.models import Prediction
from backstory.models.prediction import Pointer
from backstory.readers.neural_cache import NeuralCache
from backstory.reports.passage import Layer, Numbers

MASS = "cache mass"
_NOTE = "Share of the cache's mass that lies on each earlier word; what came before the passage is not shown."
EVEN = 8
"""How many times an even share of the mass has the full colour where one word is told of first: an even one still has some."""
_SCALE = f"Full colour: {EVEN} times an even share, or more."
Scores = dict[str, TokenScores]
"""Of the passage, by part: cache, model (or the reader below the cache) and mixture."""


def cache(subject: Subject, progress: Progress) -> Explained:
    """Layers gain, cache mass, confidence, surprisal, probabilities, entropy and candidates.

    The reader must be a cache. Raises UserError when there is another reader to compare with: the gain is over the reader
    below the cache.
    """
    if subject.against is not None:
        raise UserError("`explain cache` compares with the reader below the cache; leave --against out")
    reader = subject.reader
    assert isinstance(reader, NeuralCache)
    below = part_name(reader.inner)
    confidence: list[float] = []
    links: list[dict[int, float]] = []
    words = [i for i, span in enumerate(subject.spans) for _ in range(span.start, span.end)]

    def parts(prediction: Prediction) -> Parts:
        return {"cache": prediction.parts()["q"], below: prediction.parts()["p"], "mixture": prediction}

    def at_word(named: Parts, time: int, place: int) -> None:
        q = named["cache"]
        assert isinstance(q, Pointer)
        confidence.append(q.confidence()[0, time].item())
        links.append(links_of(q, time, place, words))

    scores = read_parts(subject, progress, parts, at_word)
    nats, inner = nats_of(subject, scores["mixture"]), nats_of(subject, scores[below])
    figures: dict[str, Any] = {
        "against": reader.inner.name,
        "settings": to_dict(reader.settings),
        **figures_of(subject, scores["mixture"]),
        "against_nats_per_token": figures_of(subject, scores[below])["nats_per_token"],
        "helped_percent": 100 * float((inner > nats).mean()),
    }
    mass = weights_layer(MASS, links, _NOTE)
    if subject.chosen is not None:
        full = EVEN / min(reader.settings.window, subject.start + subject.chosen)
        mass = weights_layer(MASS, links, f"{_NOTE} {_SCALE}", whole=subject.chosen, full=min(1.0, full))
    layers: list[Layer] = [gain_over(reader.inner.name, inner - nats), mass]
    layers += _numbers(subject, scores, nats, confidence)
    if subject.top:
        layers.append(expected_layer(subject, scores))
    note = note_on(subject, "links, confidence and candidates")
    return Explained(figures, tuple(layers), note, chosen=subject.chosen)


def links_of(q: Pointer, time: int, place: int, words: Sequence[int]) -> dict[int, float]:
    """The cache's mass at a position of a block, summed by the word of the passage whose place it remembers.

    `place` is the position counted from the passage's first token, and words (tokens,) the number of each token's word. The
    last of the N remembered pairs is that of the token before; mass on what came before the passage is left out.
    """
    weights = q.weights[0, time].tolist()
    oldest = place - len(weights)
    mass: dict[int, float] = {}
    for pair in range(max(0, -oldest), len(weights)):
        word = words[oldest + pair]
        mass[word] = mass.get(word, 0.0) + weights[pair]
    return mass


def _numbers(subject: Subject, scores: Scores, nats: np.ndarray, confidence: list[float]) -> list[Numbers]:
    first = [span.start for span in subject.spans]
    percent = [100 * value for value in confidence]
    high = max(1.0, math.ceil(float(np.quantile(percent, LINK_SHARE))))
    shares = {f"probability ({name})": 100 * np.exp(-nats_of(subject, part)) for name, part in scores.items()}
    return [
        Numbers("sequential", "confidence", tuple(percent), "%", 0.0, high, 1,
                "The share of the cache's mass on its likeliest place: high where it is peaked, low where it is flat."),
        surprisal_layer("surprisal", nats, subject.vocabulary),
        *(Numbers("plain", name, tuple(p.tolist()), "%", 0.0, 100.0, digits=3) for name, p in shares.items()),
        Numbers("plain", "entropy of the cache", tuple(scores["cache"].entropy[0, first].double().tolist()), "nats", 0.0,
                math.log(len(subject.vocabulary))),
    ]  # fmt: skip
