"""Attention of a span buffer or a neural cache to earlier words, with its predictions and its gains."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from backstory.config import SpanBufferConfig, to_dict
from backstory.context import fold
from backstory.data import Split, Vocabulary
from backstory.data.tokenizers.built_in import END, UNKNOWN
from backstory.evaluation import Block, read
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.token_scores import TokenScores
from backstory.explanations.explained_text import Explanation, PassageTask, Span, led_by
from backstory.explanations.passage_reading import (
    LINK_SHARE,
    LINKS,
    Parts,
    after,
    expected_layer,
    figures_of,
    gain_over,
    nats_of,
    note_on,
    part_name,
    read_parts,
    strong_high,
    surprisal_layer,
    weights_layer,
)
from backstory.models import Interpolation, Prediction
from backstory.models.prediction import Pointer
from backstory.models.span_buffer import SpanBuffer, span_buffer_of
from backstory.readers import Reader
from backstory.readers.neural_cache import NeuralCache
from backstory.results.passage import MOST_SHOWN, Candidates, Layer, Numbers
from backstory.utils.errors import UserError, check_name
from backstory.utils.formats import quantity
from backstory.utils.terminal import ProgressCallback

BUFFER, MODEL, MIXTURE = "buffer", "model", "mixture"
"""Names of the parts: the buffer (q), the sequence model (p), and the mixture of both."""


def check_buffer(opened: EvalSetup) -> None:
    """Raise UserError unless the run has a span buffer, and its reader adds no prediction to the model's."""
    reader = opened.reader
    if span_buffer_of(opened.run.model) is None:
        raise UserError(f"{opened.run.argument} has no span buffer; train one with --model.buffer.kind span-buffer")
    if reader.inner is not None:
        raise UserError(f"`explain buffer` shows the model's own buffer; leave the reader {reader.name} out")


def buffer(task: PassageTask, progress: ProgressCallback) -> Explanation:
    """Return layers attention, gain, gate, surprisals and candidates, from the first word that the passage attends to.

    The chosen word is the first of the passage; if that attends to nothing, the one that gains most. Raises UserError
    if there is another reader to compare with, because gains are over the sequence model.
    """
    if task.against is not None:
        raise UserError("`explain buffer` compares with the sequence model beside the buffer; leave --against out")
    auxiliary = span_buffer_of(task.reader.model)
    assert auxiliary is not None
    words, all_of_it = _words(task, auxiliary)
    lead, trace = len(words) - len(task.spans), _BufferTrace(task, auxiliary, words)
    scores = read_parts(task, progress, _buffer_parts, trace.at_word)
    nats = {name: nats_of(task, part) for name, part in scores.items()}
    gains = nats[MODEL] - nats[MIXTURE]
    first_shown = _first_shown(trace.links, gains)
    layers = [
        weights_layer(
            "attention",
            [{}] * lead + trace.links,
            _buffer_note(auxiliary.config),
            shown_links=LINKS * auxiliary.spans.length,
            whole=lead + first_shown,
        ),
        *(after(lead, layer) for layer in _buffer_numbers(task, nats, trace)),
    ]
    if task.top:
        layers.append(after(lead, _expected(expected_layer(task, scores), trace.filled)))
    figures: dict[str, Any] = {
        "against": "the sequence model alone",
        "settings": to_dict(auxiliary.config),
        **_compared_figures(task, scores[MIXTURE], scores[MODEL], gains),
        "gate_percent": 100 * float(np.mean(trace.gates)),
    }
    shown = tuple(span.word for span in words)
    return Explanation(figures, tuple(layers), _about(task, lead, all_of_it), shown, lead + first_shown)


def _buffer_parts(prediction: Prediction) -> Parts:
    assert isinstance(prediction, Interpolation)
    return {BUFFER: prediction.q, MODEL: prediction.p, MIXTURE: prediction}


class _BufferTrace:
    """Attention and gate of the buffer at each word of a passage."""

    def __init__(self, task: PassageTask, auxiliary: SpanBuffer, words: Sequence[Span]) -> None:
        self.start, self.auxiliary = task.start, auxiliary
        self.owner = {token: i for i, span in enumerate(words) for token in range(span.start, span.end)}
        self.links: list[dict[int, float]] = []
        """Attention to each word, by its number."""
        self.gates: list[float] = []
        self.filled: list[bool] = []
        """True where the buffer holds something."""

    def at_word(self, named: Parts, time: int, token: int) -> None:
        """Add the word that begins at a token of the passage; `time` is the token's position in the block."""
        interpolation, position = named[MIXTURE], self.start + token
        assert isinstance(interpolation, Interpolation) and interpolation.attention is not None
        # The start token is read first, so a position is one further than the word that was read there.
        covered = self.auxiliary.covered(position, position - time)
        spans = {i: (first - 1 - self.start, last - 1 - self.start) for i, (first, last) in covered.items()}
        self.filled.append(bool(covered))
        self.links.append(buffer_links(interpolation.attention[0, time].tolist(), spans, self.owner))
        self.gates.append(interpolation.log_gates()[0][0, time].exp().item())


def _compared_figures(
    task: PassageTask, scores: TokenScores, other: TokenScores, gains: np.ndarray
) -> dict[str, float]:
    """Return the figures of a passage and of another prediction, over which its words gain (words,) nats."""
    return {
        **figures_of(task, scores),
        "against_nats_per_token": figures_of(task, other)["nats_per_token"],
        "helped_percent": 100 * float((gains > 0).mean()),
    }


def buffer_links(
    weights: Sequence[float], spans: Mapping[int, tuple[int, int]], owner: Mapping[int, int]
) -> dict[int, float]:
    """Return the weight of each word: the sum of the weights of all spans that hold it.

    `spans` are the first and last token of each span, by its index in the weights; `owner` is the word of a token. Tokens
    outside the shown words are left out.
    """
    mass: dict[int, float] = {}
    for index, (first, last) in spans.items():
        for word in {owner[token] for token in range(first, last + 1) if token in owner}:
            mass[word] = mass.get(word, 0.0) + weights[index]
    return mass


def _words(task: PassageTask, auxiliary: SpanBuffer) -> tuple[list[Span], bool]:
    """Return the words that the passage's first may attend to, then the passage, and whether all of them fit."""
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


def _buffer_numbers(task: PassageTask, nats: Mapping[str, np.ndarray], trace: _BufferTrace) -> list[Numbers]:
    of_buffer = surprisal_layer(f"surprisal, {BUFFER}", nats[BUFFER], task.vocabulary)
    # A pointer gives no probability to a word that the buffer does not hold.
    values = tuple(
        value if some and value is not None and math.isfinite(value) else None
        for value, some in zip(of_buffer.values, trace.filled, strict=True)
    )
    percent = tuple(100 * gate for gate in trace.gates)
    note = "lambda: the share of the buffer in the mixture."
    return [
        gain_over(MODEL, nats[MODEL] - nats[MIXTURE]),
        Numbers("sequential", "gate", percent, "%", high=max(1.0, strong_high(percent)), note=note),
        surprisal_layer("surprisal", nats[MIXTURE], task.vocabulary),
        replace(of_buffer, values=values),
        surprisal_layer(f"surprisal, {MODEL}", nats[MODEL], task.vocabulary),
    ]


def _expected(layer: Candidates, filled: Sequence[bool]) -> Candidates:
    """Return the candidates without those of an empty buffer."""
    lists = (
        {name: tokens for name, tokens in parts.items() if some or name != BUFFER}
        for parts, some in zip(layer.lists, filled, strict=True)
    )
    return replace(layer, lists=tuple(lists))


def _buffer_note(config: SpanBufferConfig) -> str:
    """Return a note on the meaning of the attention's shades."""
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
    before = f"The passage begins after {quantity(lead, 'word')}, which {'is' if lead == 1 else 'are'} {what}."
    return f"{before} {note}".rstrip()


CaseName = Literal["success", "failure"]
CASES: dict[CaseName, str] = {
    "success": "the most peaked success of the cache",
    "failure": "the flattest failure of the cache",
}
MASS = "cache mass"
_CACHE_NOTE = "Share of the cache's mass that lies on each earlier word; what came before the passage is not shown."
EVEN = 8
"""Mass with the full colour, as a multiple of an even share, if a word is shown first."""
_SCALE = f"Full colour: {EVEN} times an even share, or more."
Scores = dict[str, TokenScores]
"""Scores of the passage, by part: cache, model (or the reader below the cache) and mixture."""


def cache(task: PassageTask, progress: ProgressCallback) -> Explanation:
    """Return layers gain, cache mass, confidence, surprisal, probabilities, entropy and candidates.

    The reader must be a cache. Raises UserError if there is another reader to compare with, because gains are over the
    reader below the cache.
    """
    if task.against is not None:
        raise UserError("`explain cache` compares with the reader below the cache; leave --against out")
    reader = task.reader
    assert isinstance(reader, NeuralCache)
    below = part_name(reader.inner)
    confidence: list[float] = []
    links: list[dict[int, float]] = []
    words = [i for i, span in enumerate(task.spans) for _ in range(span.start, span.end)]

    def parts(prediction: Prediction) -> Parts:
        return {"cache": prediction.parts()["q"], below: prediction.parts()["p"], "mixture": prediction}

    def at_word(named: Parts, time: int, token: int) -> None:
        q = named["cache"]
        assert isinstance(q, Pointer)
        confidence.append(q.confidence()[0, time].item())
        links.append(cache_links(q, time, token, words))

    scores = read_parts(task, progress, parts, at_word)
    nats = nats_of(task, scores["mixture"])
    gains = nats_of(task, scores[below]) - nats
    figures: dict[str, Any] = {
        "against": reader.inner.name,
        "settings": to_dict(reader.settings),
        **_compared_figures(task, scores["mixture"], scores[below], gains),
    }
    mass = weights_layer(MASS, links, _CACHE_NOTE)
    if task.chosen is not None:
        full = EVEN / min(reader.settings.window, task.start + task.chosen)
        mass = weights_layer(MASS, links, f"{_CACHE_NOTE} {_SCALE}", whole=task.chosen, full=min(1.0, full))
    layers: list[Layer] = [gain_over(reader.inner.name, gains), mass]
    layers += _cache_numbers(task, scores, nats, confidence)
    if task.top:
        layers.append(expected_layer(task, scores))
    note = note_on(task, "links, confidence and candidates")
    return Explanation(figures, tuple(layers), note, chosen=task.chosen)


def cache_links(q: Pointer, time: int, token: int, words: Sequence[int]) -> dict[int, float]:
    """Return the cache's mass on each earlier word of the passage, at position `time` of a block.

    `token` is the same position counted from the passage's first token, and words (tokens,) the number of each token's word.
    The last of the N remembered pairs belongs to the previous token. Mass on text before the passage is left out.
    """
    weights = q.weights[0, time].tolist()
    oldest = token - len(weights)
    mass: dict[int, float] = {}
    for pair in range(max(0, -oldest), len(weights)):
        word = words[oldest + pair]
        mass[word] = mass.get(word, 0.0) + weights[pair]
    return mass


def _cache_numbers(task: PassageTask, scores: Scores, nats: np.ndarray, confidence: list[float]) -> list[Numbers]:
    first = [span.start for span in task.spans]
    percent = [100 * value for value in confidence]
    high = max(1.0, math.ceil(float(np.quantile(percent, LINK_SHARE))))
    shares = {f"probability ({name})": 100 * np.exp(-nats_of(task, part)) for name, part in scores.items()}
    note = "The share of the cache's mass on its likeliest place: high where it is peaked, low where it is flat."
    entropy = tuple(scores["cache"].entropy[0, first].double().tolist())
    return [
        Numbers("sequential", "confidence", tuple(percent), "%", high=high, digits=1, note=note),
        surprisal_layer("surprisal", nats, task.vocabulary),
        *(Numbers("plain", name, tuple(p.tolist()), "%", high=100.0, digits=3) for name, p in shares.items()),
        Numbers("plain", "entropy of the cache", entropy, "nats", high=math.log(len(task.vocabulary))),
    ]


@dataclass(frozen=True)
class CacheCase:
    """A word at which a cache succeeds or fails."""

    case: CaseName
    target: int
    """Position of the word in the text in tokens."""
    entropy: float
    """Entropy of the cache's mass over the positions that it remembers, in nats."""
    share: float
    """Share of the mass on positions of the word itself."""


def find_case(setup: EvalSetup, name: CaseName, at: int, progress: ProgressCallback) -> CacheCase:
    """Return the success with the lowest entropy, or the failure with the highest, among the words from token `at` on.

    In a success more than half of the cache's mass is on the word itself, and the reader below gives it less than half; in a
    failure the cache does not hold the word. Enough text to fill the cache comes before either, or half the text. `<unk>`,
    `<eos>` and words of several pieces are neither. Raises UserError if there is no such word, or if the tokens are neither
    words nor pieces that hold all of a text.
    """
    check_name(name, CASES, "case of the cache")
    vocabulary, ids = setup.dataset.vocabulary, np.asarray(setup.split.ids)
    assert isinstance(setup.reader, NeuralCache)
    possible = _whole_words(vocabulary, setup.split)
    entropies, shares, below = _scan(setup.reader, ids, vocabulary.start, progress)
    possible[: max(at, min(setup.reader.settings.window, len(ids) // 2))] = False
    possible &= (shares > 0.5) & (below < 0.5) if name == "success" else shares == 0.0
    if not possible.any():
        raise UserError(f"there is no {name} of the cache in this text; choose another split, or --at")
    measured = np.where(possible, entropies, math.inf if name == "success" else -math.inf)
    target = int(measured.argmin() if name == "success" else measured.argmax())
    return CacheCase(name, target, float(entropies[target]), float(shares[target]))


def _whole_words(vocabulary: Vocabulary, split: Split) -> np.ndarray:
    """Return a mask (N,) of the tokens that are words by themselves, and neither `<unk>` nor `<eos>`. Raises UserError."""
    ids, unit = np.asarray(split.ids), vocabulary.tokenizer.unit
    if unit == "word":
        special = [vocabulary.unknown, vocabulary.index.get(END)]
        return ~np.isin(ids, [i for i in special if i is not None])
    folded = fold(vocabulary, split, word_score="sum")
    if folded is None:
        raise UserError(f"cases of the cache are words, and the tokens here are {unit}s; choose --at")
    named = [len(word) == 1 and vocabulary.decode(word).strip() not in ("", UNKNOWN) for word in folded.pieces]
    whole = np.zeros(len(ids), bool)
    whole[folded.starts] = np.array(named)[folded.ids]
    return whole


def _scan(
    reader: Reader, ids: np.ndarray, first: int, progress: ProgressCallback
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every token (N,), the entropy of the cache's mass over positions, the mass's share on the token, and
    the token's probability under the reader below.
    """
    entropies: list[Tensor] = []
    shares: list[Tensor] = []
    below: list[Tensor] = []
    done = 0

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        q = prediction.parts()["q"]
        assert isinstance(q, Pointer)
        entropies.append(torch.special.entr(q.weights[0]).sum(1).double().cpu())
        shares.append((q.weights[0] * (q.words[0] == block.targets[0, :, None])).sum(1).double().cpu())
        with reader.precision.context(block.targets.device):
            below.append(prediction.parts()["p"].log_prob(block.targets)[0].double().exp().cpu())
        done += block.targets.shape[1]
        progress(done, len(ids))

    read(reader, ids, first, each=each)
    return torch.cat(entropies).numpy(), torch.cat(shares).numpy(), torch.cat(below).numpy()
