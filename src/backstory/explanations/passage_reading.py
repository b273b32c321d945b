"""What explanations share: reading up to a passage and through it, sums over words, and layers made of them."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from backstory.explanations.subject import Subject
from backstory.explanations.words import Span, shown
from backstory.models import Prediction
from backstory.reading import Block, Reader, read
from backstory.reading.stream import perplexity
from backstory.reading.tokens import TokenScores, token_scores
from backstory.reports.passage import Numbers
from backstory.text import Vocabulary

FOLDED_HIGH = 15.0
"""Nats at which a word made of several tokens has the full colour."""
GAIN_SHARE = 0.95
"""The share of the words whose gain lies on the scale; the others have the full colour."""


def read_passage(
    reader: Reader, subject: Subject, advance: Callable[[int], None], look: Callable[[Block, Prediction, int], None]
) -> None:
    """Read the context and the passage in one row.

    `look` is given every block that reaches into the passage, its prediction, and the first of its positions inside;
    `advance` is told how many tokens a block had.
    """
    position = 0

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal position
        steps = block.targets.shape[1]
        first = max(subject.start - position, 0)
        if first < steps:
            with reader.precision.context(block.targets.device):
                look(block, prediction, first)
        position += steps
        advance(steps)

    read(reader, subject.ids, subject.vocabulary.start, each=each)


def scores_from(prediction: Prediction, block: Block, first: int, top: int) -> TokenScores:
    """The scores (1, n) of a block's targets from a position on, on the CPU."""
    inside = torch.arange(block.targets.shape[1], device=block.targets.device)[None] >= first
    scores = token_scores(prediction, block.targets, inside, top)
    return TokenScores(*(value[:, first:].cpu() for value in vars(scores).values()))


def joined(found: Sequence[TokenScores]) -> TokenScores:
    """Scores of blocks that follow each other as those of one."""
    return TokenScores(*(torch.cat([vars(s)[name] for s in found], 1) for name in vars(found[0])))


def nats_of(subject: Subject, scores: TokenScores) -> np.ndarray:
    """Surprisal (words,) of the passage's words: the sum of their tokens'."""
    return summed(subject.spans, -scores.log_prob[0].double().numpy())


def summed(spans: Sequence[Span], values: np.ndarray) -> np.ndarray:
    """Sums (words,) of what each token of a word has, (tokens,)."""
    return np.add.reduceat(values, [span.start for span in spans])


def figures_of(subject: Subject, nats: np.ndarray) -> dict[str, float]:
    """The figures of a passage that result files name."""
    per_token = float(nats.sum()) / subject.spans[-1].end
    return {"nats_per_token": per_token, "perplexity": perplexity(per_token)}


def candidates_of(vocabulary: Vocabulary, scores: TokenScores, place: int) -> tuple[tuple[str, float], ...]:
    """The likeliest tokens at a place with their probabilities; impossible ones are left out."""
    ids, log_probs = scores.candidates[0, place].tolist(), scores.candidate_log_probs[0, place].double().exp().tolist()
    return tuple((shown(vocabulary.words[i]), p) for i, p in zip(ids, log_probs, strict=True) if p > 0)


def part_name(reader: Reader) -> str:
    """What a reader is called among the parts of a prediction."""
    return "model" if reader.name == "static" else reader.name


def surprisal_layer(name: str, nats: np.ndarray, vocabulary: Vocabulary) -> Numbers:
    """Nats (words,) on a scale where a word that is no likelier than any other has the full colour."""
    whole = vocabulary.tokenizer.unit == "word"
    high = math.log(len(vocabulary)) if whole else FOLDED_HIGH
    meaning = f"{high:.1f} nats: as unlikely as if all {len(vocabulary):,} words were equally likely." if whole else ""
    return Numbers("sequential", name, tuple(nats.tolist()), "nats", 0.0, high, note=meaning)


def gain_layer(name: str, gains: np.ndarray, high: float, note: str) -> Numbers:
    """Gains in nats (words,): positive where a reader predicts the word better than another."""
    return Numbers("diverging", name, tuple(gains.tolist()), "nats", -high, high, note=note)


def gain_over(other: str, gains: np.ndarray) -> Numbers:
    """What a reader saves over another, in nats (words,), on a scale of its own."""
    note = f"Blue: likelier here than with {other}; orange and underlined: less likely."
    return gain_layer(f"gain over {other}", gains, gain_scale(gains), note)


def gain_scale(gains: np.ndarray) -> float:
    """Nats at which a gain has the full colour, from all gains that are shown."""
    return max(0.5, math.ceil(4 * float(np.quantile(np.abs(gains), GAIN_SHARE))) / 4)


def note_on_words(vocabulary: Vocabulary, of_first: str = "") -> str:
    """Where words are several tokens, a sentence on it, and on which of a word's figures are those of its first."""
    if vocabulary.tokenizer.unit == "word":
        return ""
    rest = f", its {of_first} are those of the first" if of_first else ""
    return f"A word is several {vocabulary.tokenizer.unit}s: its surprisal is their sum{rest}."
