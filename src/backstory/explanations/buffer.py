"""Attention of a span buffer to the words before each, its expectations and gains (figure 5 and table 4 of its paper)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backstory.config import SpanBufferConfig, UserError, plural, to_dict
from backstory.evaluation.opening import EvalSetup
from backstory.explanations.explained_text import Explanation, PassageTask, Progress, Span, led_by
from backstory.explanations.passage_reading import (
    LINKS,
    Parts,
    after,
    expected_layer,
    figures_of,
    gain_over,
    nats_of,
    note_on,
    read_parts,
    strong_high,
    surprisal_layer,
    weights_layer,
)
from backstory.models import Interpolation, Prediction
from backstory.models.span_buffer import SpanBuffer, span_buffer_of
from backstory.results.passage import MOST_SHOWN, Candidates, Numbers

BUFFER, MODEL, MIXTURE = "buffer", "model", "mixture"
"""Names of the parts: the buffer (q), the sequence model beside it (p), and both."""


def check_buffer(opened: EvalSetup) -> None:
    """Raise UserError unless the run has a span buffer, and its reader predicts with nothing but the model."""
    reader = opened.reader
    if span_buffer_of(opened.run.model) is None:
        raise UserError(f"{opened.run.argument} has no span buffer; train one with --model.buffer.kind span-buffer")
    if reader.inner is not None:
        raise UserError(f"`explain buffer` shows what the model itself is made of; leave the reader {reader.name} out")


def buffer(task: PassageTask, progress: Progress) -> Explanation:
    """Return layers attention, gain, gate, surprisals and candidates, from the first word that is attended to.

    The chosen word is the first of the passage, or, where that attends to nothing, the one that gains most. Raises UserError
    when there is another reader to compare with: the gain is over the sequence model.
    """
    if task.against is not None:
        raise UserError("`explain buffer` compares with the sequence model beside the buffer; leave --against out")
    auxiliary = span_buffer_of(task.reader.model)
    assert auxiliary is not None
    words, all_of_it = _words(task, auxiliary)
    lead = len(words) - len(task.spans)
    owner = {token: i for i, span in enumerate(words) for token in range(span.start, span.end)}
    links: list[dict[int, float]] = []
    gates: list[float] = []
    filled: list[bool] = []

    def parts(prediction: Prediction) -> Parts:
        assert isinstance(prediction, Interpolation)
        return {BUFFER: prediction.q, MODEL: prediction.p, MIXTURE: prediction}

    def at_word(named: Parts, time: int, token: int) -> None:
        interpolation, position = named[MIXTURE], task.start + token
        assert isinstance(interpolation, Interpolation) and interpolation.attention is not None
        # What is read first is no word of the text, so a position is one further than the word that was read there.
        covered = auxiliary.covered(position, position - time)
        spans = {i: (first - 1 - task.start, last - 1 - task.start) for i, (first, last) in covered.items()}
        filled.append(bool(covered))
        links.append(links_of(interpolation.attention[0, time].tolist(), spans, owner))
        gates.append(interpolation.log_gates()[0][0, time].exp().item())

    scores = read_parts(task, progress, parts, at_word)
    nats = {name: nats_of(task, part) for name, part in scores.items()}
    gains = nats[MODEL] - nats[MIXTURE]
    first_shown = _first_shown(links, gains)
    layers = [
        weights_layer(
            "attention",
            [{}] * lead + links,
            _note(auxiliary.config),
            LINKS * auxiliary.spans.length,
            lead + first_shown,
        ),
        *(after(lead, layer) for layer in _numbers(task, nats, gates, filled)),
    ]
    if task.top:
        layers.append(after(lead, _expected(expected_layer(task, scores), filled)))
    figures: dict[str, Any] = {
        "against": "the sequence model alone",
        "settings": to_dict(auxiliary.config),
        **figures_of(task, scores[MIXTURE]),
        "against_nats_per_token": figures_of(task, scores[MODEL])["nats_per_token"],
        "helped_percent": 100 * float((gains > 0).mean()),
        "gate_percent": 100 * float(np.mean(gates)),
    }
    shown = tuple(span.word for span in words)
    return Explanation(figures, tuple(layers), _about(task, lead, all_of_it), shown, lead + first_shown)


def links_of(
    weights: Sequence[float], spans: Mapping[int, tuple[int, int]], owner: Mapping[int, int]
) -> dict[int, float]:
    """Return the weight of each word: the sum over the spans that it is in, undivided.

    `spans` are the first and last token of each, by its index in the weights; `owner` is the word of a token. Tokens that no
    shown word owns are left out.
    """
    mass: dict[int, float] = {}
    for index, (first, last) in spans.items():
        for word in {owner[token] for token in range(first, last + 1) if token in owner}:
            mass[word] = mass.get(word, 0.0) + weights[index]
    return mass


def _words(task: PassageTask, auxiliary: SpanBuffer) -> tuple[list[Span], bool]:
    """Return the words of the passage after those that its first may attend to, and True if there was room for all of these."""
    reached = auxiliary.covered(task.start).values()
    oldest = max(0, min((first for first, _ in reached), default=task.start + 1) - 1)
    begin = max(oldest, task.start - (MOST_SHOWN - len(task.spans)))
    before = task.ids[begin : task.start]
    words = led_by(task.vocabulary, before, int(task.ids[task.start]), task.spans)
    return words, begin == oldest


def _first_shown(links: Sequence[Mapping[int, float]], gains: np.ndarray) -> int:
    """Return the first word if it attends to any, else the one that gains most among those that do."""
    if links[0]:
        return 0
    return max(range(len(links)), key=lambda i: (bool(links[i]), gains[i]))


def _numbers(
    task: PassageTask, nats: Mapping[str, np.ndarray], gates: Sequence[float], filled: Sequence[bool]
) -> list[Numbers]:
    own = surprisal_layer(f"surprisal, {BUFFER}", nats[BUFFER], task.vocabulary)
    # A word that a pointer has nowhere to point to has no number either.
    values = tuple(
        value if some and value is not None and math.isfinite(value) else None
        for value, some in zip(own.values, filled, strict=True)
    )
    percent = tuple(100 * gate for gate in gates)
    note = "lambda: the share of the buffer in the mixture."
    return [
        gain_over(MODEL, nats[MODEL] - nats[MIXTURE]),
        Numbers("sequential", "gate", percent, "%", 0.0, max(1.0, strong_high(percent)), note=note),
        surprisal_layer("surprisal", nats[MIXTURE], task.vocabulary),
        replace(own, values=values),
        surprisal_layer(f"surprisal, {MODEL}", nats[MODEL], task.vocabulary),
    ]


def _expected(layer: Candidates, filled: Sequence[bool]) -> Candidates:
    """Return the candidates without those of a buffer that held nothing."""
    lists = (
        {name: tokens for name, tokens in parts.items() if some or name != BUFFER}
        for parts, some in zip(layer.lists, filled, strict=True)
    )
    return replace(layer, lists=tuple(lists))


def _note(config: SpanBufferConfig) -> str:
    """Return a note on what a shade of the attention means."""
    if config.vectors == "words":
        of = "The weight of the state after each word"
    else:
        of = f"The weight of the span of {config.span} that each word is in, the whole of it"
    return f"{of}; weights add up to 1.{_of_values(config)}"


def _of_values(config: SpanBufferConfig) -> str:
    points = config.prediction == "pointer"
    if config.values == "following":
        return f" What the buffer {'points to' if points else 'expects of it'} is the word that follows."
    return " What the buffer points to is the last of them." if points and config.vectors != "words" else ""


def _about(task: PassageTask, lead: int, all_of_it: bool) -> str:
    """Return a note on the words before the passage, and on words of several tokens."""
    note = note_on(task, "attention, gate and candidates")
    if not lead:
        return note
    what = "what its first word may attend to" if all_of_it else "the last of what its first word may attend to"
    before = f"The passage begins after {lead:,} {plural('word', lead)}, which {'is' if lead == 1 else 'are'} {what}."
    return f"{before} {note}".rstrip()
