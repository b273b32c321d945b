"""How surprising each word of a passage is, what the model expected there, and how another reader does on it."""

import math
from collections.abc import Callable

import numpy as np

from backstory.evaluation.token_scores import TokenScores
from backstory.explanations.explanation import Explained, Progress, Subject
from backstory.explanations.passage_reading import (
    candidates_of,
    figures_of,
    gain_over,
    joined,
    nats_of,
    note_on,
    part_name,
    read_passage,
    scores_from,
    surprisal_layer,
)
from backstory.readers import Reader
from backstory.reports.passage import Candidates, Layer, Numbers


def surprisal(subject: Subject, progress: Progress) -> Explained:
    """Layers surprisal (or, against another reader, gain first), probability, rank, entropy and candidates."""
    total, done = len(subject.ids) * (1 if subject.against is None else 2), 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    scores = _scores(subject.reader, subject, subject.top, advance)
    nats = nats_of(subject, scores)
    figures, layers = figures_of(subject, scores), []
    if subject.against is not None:
        other = _scores(subject.against, subject, 0, advance)
        layers.append(gain_over(subject.against_name, nats_of(subject, other) - nats))
        figures["against_nats_per_token"] = figures_of(subject, other)["nats_per_token"]
    layers += _layers(subject, scores, nats)
    return Explained(figures, tuple(layers), note_on(subject, "rank, entropy and candidates"))


def _scores(reader: Reader, subject: Subject, top: int, advance: Callable[[int], None]) -> TokenScores:
    """The scores (1, tokens) of the passage."""
    found: list[TokenScores] = []
    read_passage(
        reader, subject, advance, lambda block, p, first: found.append(scores_from(p, block, first, subject, top))
    )
    return joined(found)


def _layers(subject: Subject, scores: TokenScores, nats: np.ndarray) -> list[Layer]:
    spans, vocabulary = subject.spans, subject.vocabulary
    first = [span.start for span in spans]
    layers: list[Layer] = [
        surprisal_layer("surprisal", nats, vocabulary),
        Numbers("plain", "probability", tuple((100 * np.exp(-nats)).tolist()), "%", 0.0, 100.0, digits=3),
        Numbers("plain", "rank", tuple(map(float, scores.rank[0, first])), high=float(len(vocabulary)), digits=0),
        Numbers("sequential", "entropy", tuple(scores.entropy[0, first].double().tolist()), "nats", 0.0,
                math.log(len(vocabulary)), note="How undecided the model was before the word."),
    ]  # fmt: skip
    if subject.top:
        part = part_name(subject.reader)
        layers.append(Candidates("expected", tuple({part: candidates_of(vocabulary, scores, at)} for at in first)))
    return layers
