"""How surprising each word of a passage is, what the model expected there, and how another reader does on it."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from backstory.explanations.subject import Explained, Progress, Subject
from backstory.explanations.words import Span, shown
from backstory.models import Prediction
from backstory.reading import Block, Reader, read
from backstory.reading.tokens import TokenScores, token_scores
from backstory.reports.passage import Candidates, Layer, Numbers
from backstory.text import Vocabulary

FOLDED_HIGH = 15.0
"""Nats at which a word made of several tokens has the full colour."""
GAIN_SHARE = 0.95
"""The share of the words whose gain lies on the scale; the others have the full colour."""


def surprisal(subject: Subject, progress: Progress) -> Explained:
    """Layers surprisal (or, against another reader, gain first), probability, rank, entropy and candidates."""
    total, done = len(subject.ids) * (1 if subject.against is None else 2), 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    scores = _scores(subject.reader, subject, subject.top, advance)
    nats = summed(subject.spans, -scores.log_prob[0].double().numpy())
    figures = {"nats_per_token": float(nats.sum()) / subject.spans[-1].end}
    figures["perplexity"] = math.exp(min(figures["nats_per_token"], 700))
    layers: list[Layer] = []
    if subject.against is not None:
        other = summed(subject.spans, -_scores(subject.against, subject, 0, advance).log_prob[0].double().numpy())
        there = subject.against_name
        note = f"Blue: likelier here than with {there}; orange and underlined: less likely."
        layers.append(gain_layer(f"gain over {there}", other - nats, gain_scale(other - nats), note))
        figures["against_nats_per_token"] = float(other.sum()) / subject.spans[-1].end
    layers += _layers(subject, scores, nats)
    several = folded(subject.vocabulary)
    note = f"{several}, its rank, entropy and candidates are those of the first." if several else ""
    return Explained(figures, tuple(layers), note)


def _scores(reader: Reader, subject: Subject, top: int, advance: Callable[[int], None]) -> TokenScores:
    """Read the context and the passage in one row; the scores (1, tokens) are of the passage."""
    found: list[TokenScores] = []
    position = 0

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal position
        end = position + block.targets.shape[1]
        first = max(subject.start - position, 0)
        if end > subject.start:
            inside = torch.arange(position, end, device=block.targets.device)[None] >= subject.start
            with reader.precision.context(block.targets.device):
                scores = token_scores(prediction, block.targets, inside, top)
            found.append(TokenScores(*(value[:, first:].cpu() for value in vars(scores).values())))
        position = end
        advance(block.targets.shape[1])

    read(reader, subject.ids, subject.vocabulary.start, each=each)
    return TokenScores(*(torch.cat([vars(s)[name] for s in found], 1) for name in vars(found[0])))


def summed(spans: Sequence[Span], values: np.ndarray) -> np.ndarray:
    """Sums (words,) of what each token of a word has, (tokens,)."""
    return np.add.reduceat(values, [span.start for span in spans])


def surprisal_layer(name: str, nats: np.ndarray, vocabulary: Vocabulary) -> Numbers:
    """Nats (words,) on a scale where a word that is no likelier than any other has the full colour."""
    whole = vocabulary.tokenizer.unit == "word"
    high = math.log(len(vocabulary)) if whole else FOLDED_HIGH
    meaning = f"{high:.1f} nats: as unlikely as if all {len(vocabulary):,} words were equally likely." if whole else ""
    return Numbers("sequential", name, tuple(nats.tolist()), "nats", 0.0, high, note=meaning)


def folded(vocabulary: Vocabulary) -> str:
    """The note on words that are several tokens; empty where a word is one."""
    unit = vocabulary.tokenizer.unit
    return "" if unit == "word" else f"A word is several {unit}s: its surprisal is their sum"


def gain_layer(name: str, gains: np.ndarray, high: float, note: str) -> Numbers:
    """Gains in nats (words,): positive where a reader predicts the word better than another."""
    return Numbers("diverging", name, tuple(gains.tolist()), "nats", -high, high, note=note)


def gain_scale(gains: np.ndarray) -> float:
    """Nats at which a gain has the full colour, from all gains that are shown."""
    return max(0.5, math.ceil(4 * float(np.quantile(np.abs(gains), GAIN_SHARE))) / 4)


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
        part = "model" if subject.reader.name == "static" else subject.reader.name
        lists = [
            tuple((shown(vocabulary.words[i]), p) for i, p in zip(ids, ps, strict=True))
            for ids, ps in zip(
                scores.candidates[0, first].tolist(),
                scores.candidate_log_probs[0, first].double().exp().tolist(),
                strict=True,
            )
        ]
        layers.append(Candidates("expected", tuple({part: tokens} for tokens in lists)))
    return layers
