"""What explanations share: reading up to a passage and through it, sums over words, and layers made of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from backstory.config.scores import perplexity
from backstory.data import Boundaries, Vocabulary, WordScore, word_nats
from backstory.evaluation import Block, read
from backstory.evaluation.token_scores import TokenScores, token_scores
from backstory.explanations.explanation import Explanation, PassageTask, Progress, shown
from backstory.models import Prediction
from backstory.readers import Reader
from backstory.results.passage import STEPS, Candidates, Layer, Numbers, Weights

FOLDED_HIGH = 15.0
"""Nats at which a word made of several tokens has the full colour."""
GAIN_SHARE = 0.95
"""The share of the words whose gain lies on the scale; the others have the full colour."""
LINK_SHARE = 0.9
"""The share of the words whose strongest link lies on the scale; the others have the full colour."""
LINKS = 5
"""Links of a word that are kept however weak they are."""

Parts = Mapping[str, Prediction]


def read_passage(
    reader: Reader, task: PassageTask, advance: Callable[[int], None], look: Callable[[Block, Prediction, int], None]
) -> None:
    """Read the context and the passage in one row, and what comes after it where the end of its last word is not certain.

    `look` is given every block that reaches into the passage, its prediction, and the first of its positions inside;
    `advance` is told how many tokens a block had.
    """
    position = 0

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal position
        steps = block.targets.shape[1]
        first = max(task.start - position, 0)
        if first < steps:
            with reader.precision.context(block.targets.device):
                look(block, prediction, first)
        advance(min(steps, len(task.ids) - position))
        position += steps

    start = task.vocabulary.start
    ids = np.append(task.ids, start) if task.uncertain[-1] else task.ids
    read(reader, ids, start, each=each)


def read_parts(
    task: PassageTask,
    progress: Progress,
    parts: Callable[[Prediction], Parts],
    at_word: Callable[[Parts, int, int], None],
) -> dict[str, TokenScores]:
    """The scores (1, tokens) of every part of the reader's predictions on the passage, by its name.

    `at_word` is given the parts where each word begins: their position in a block, and the token of the passage.
    """
    found: list[dict[str, TokenScores]] = []
    starts, place, done = {span.start for span in task.spans}, 0, 0

    def look(block: Block, prediction: Prediction, first: int) -> None:
        nonlocal place
        named = parts(prediction)
        found.append({name: scores_from(part, block, first, task) for name, part in named.items()})
        for time in range(first, block.targets.shape[1]):
            if place in starts:
                at_word(named, time, place)
            place += 1

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, len(task.ids))

    read_passage(task.reader, task, advance, look)
    return {name: joined([scores[name] for scores in found]) for name in found[0]}


def scores_from(
    prediction: Prediction, block: Block, first: int, task: PassageTask, top: int | None = None
) -> TokenScores:
    """The scores (1, n) of a block's targets from a position on, on the CPU; with `top` candidates, else the task's."""
    inside = torch.arange(block.targets.shape[1], device=block.targets.device)[None] >= first
    members = None
    if task.boundaries is not None:
        members = torch.from_numpy(task.boundaries.beginning).to(block.targets.device)
    scores = token_scores(prediction, block.targets, inside, task.top if top is None else top, members)
    return TokenScores(*(value[:, first:].cpu() for value in vars(scores).values()))


def joined(found: Sequence[TokenScores]) -> TokenScores:
    """Scores of blocks that follow each other as those of one."""
    return TokenScores(*(torch.cat([vars(s)[name] for s in found], 1) for name in vars(found[0])))


def nats_of(task: PassageTask, scores: TokenScores) -> np.ndarray:
    """Surprisal (words,) of the passage's words: the sum of their tokens', corrected for where they begin and end."""
    known = np.zeros(task.tokens + 1)
    found = scores.log_mass[0].double().numpy()[: len(known)]
    known[: len(found)][task.uncertain[: len(found)]] = found[task.uncertain[: len(found)]]
    return word_nats(_token_nats(task, scores), known, task.starts)


def figures_of(task: PassageTask, scores: TokenScores) -> dict[str, float]:
    """The figures of a passage that result files name: those of its tokens."""
    per_token = float(_token_nats(task, scores).mean())
    return {"nats_per_token": per_token, "perplexity": perplexity(per_token)}


def _token_nats(task: PassageTask, scores: TokenScores) -> np.ndarray:
    return -scores.log_prob[0].double().numpy()[: task.tokens]


def candidates_of(vocabulary: Vocabulary, scores: TokenScores, place: int) -> tuple[tuple[str, float], ...]:
    """The likeliest tokens at a place with their probabilities; impossible ones are left out."""
    ids, log_probs = scores.candidates[0, place].tolist(), scores.candidate_log_probs[0, place].double().exp().tolist()
    return tuple((shown(vocabulary.words[i]), p) for i, p in zip(ids, log_probs, strict=True) if p > 0)


def expected_layer(task: PassageTask, scores: Mapping[str, TokenScores]) -> Candidates:
    """What each part expected where every word begins."""
    expected = [
        {name: candidates_of(task.vocabulary, part, span.start) for name, part in scores.items()} for span in task.spans
    ]
    return Candidates("expected", tuple(expected))


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


def strong_high(strongest: Sequence[float]) -> float:
    """The weight at which a link has the full colour, from the strongest of each word; rounded up to two digits."""
    high = float(np.quantile(strongest, LINK_SHARE)) or max(strongest)
    if not high:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(high)) - 1)
    return round(unit * math.ceil(high / unit - 1e-9), 12)


def weights_layer(
    name: str,
    links: Sequence[Mapping[int, float]],
    note: str,
    kept: int = LINKS,
    whole: int | None = None,
    full: float | None = None,
) -> Weights:
    """Links of every word to earlier ones (word: weight), without those that have no colour, but for the `kept` strongest.

    All links of the word `whole` stay. `full` is the weight of the full colour, if it is not to come from the links.
    """
    high = strong_high([max(of.values(), default=0.0) for of in links])
    least = high / (2 * STEPS)  # what is below has no colour
    found = []
    for i, of in enumerate(links):
        ordered = sorted(of.items(), key=lambda link: -link[1])
        told = [link for n, link in enumerate(ordered) if i == whole or link[1] > (0 if n < kept else least)]
        found.append(tuple(sorted(told)))
    return Weights(name, tuple(found), full or high, note)


def after(lead: int, layer: Numbers | Candidates) -> Layer:
    """A layer of the passage with no entries for the words before it."""
    if isinstance(layer, Candidates):
        return replace(layer, lists=({},) * lead + layer.lists)
    return replace(layer, values=(None,) * lead + layer.values)


def note_on_words(vocabulary: Vocabulary, of_first: str = "", word_score: WordScore | None = "sum") -> str:
    """Where words are several tokens, a sentence on it, and on which of a word's figures are those of its first."""
    if vocabulary.tokenizer.unit == "word":
        return ""
    rest = f", its {of_first} are those of the first" if of_first else ""
    corrected = ", corrected for where words begin and end" if word_score == "corrected" else ""
    return f"A word is several {vocabulary.tokenizer.unit}s: its surprisal is their sum{corrected}{rest}."


def note_on(task: PassageTask, of_first: str) -> str:
    """The same for a passage."""
    return note_on_words(task.vocabulary, of_first, word_score_of(task.boundaries, task.vocabulary))


def word_score_of(boundaries: Boundaries | None, vocabulary: Vocabulary) -> WordScore | None:
    """How results call the words' score; None where a word is a token."""
    if vocabulary.tokenizer.unit == "word":
        return None
    return "sum" if boundaries is None else "corrected"


def surprisal(task: PassageTask, progress: Progress) -> Explanation:
    """Layers surprisal (or, against another reader, gain first), probability, rank, entropy and candidates."""
    total, done = len(task.ids) * (1 if task.against is None else 2), 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    scores = _passage_scores(task.reader, task, task.top, advance)
    nats = nats_of(task, scores)
    figures, layers = figures_of(task, scores), []
    if task.against is not None:
        other = _passage_scores(task.against, task, 0, advance)
        layers.append(gain_over(task.against_name, nats_of(task, other) - nats))
        figures["against_nats_per_token"] = figures_of(task, other)["nats_per_token"]
    layers += _surprisal_layers(task, scores, nats)
    return Explanation(figures, tuple(layers), note_on(task, "rank, entropy and candidates"))


def _passage_scores(reader: Reader, task: PassageTask, top: int, advance: Callable[[int], None]) -> TokenScores:
    """The scores (1, tokens) of the passage."""
    found: list[TokenScores] = []
    read_passage(reader, task, advance, lambda block, p, first: found.append(scores_from(p, block, first, task, top)))
    return joined(found)


def _surprisal_layers(task: PassageTask, scores: TokenScores, nats: np.ndarray) -> list[Layer]:
    spans, vocabulary = task.spans, task.vocabulary
    first = [span.start for span in spans]
    layers: list[Layer] = [
        surprisal_layer("surprisal", nats, vocabulary),
        Numbers("plain", "probability", tuple((100 * np.exp(-nats)).tolist()), "%", 0.0, 100.0, digits=3),
        Numbers("plain", "rank", tuple(map(float, scores.rank[0, first])), high=float(len(vocabulary)), digits=0),
        Numbers("sequential", "entropy", tuple(scores.entropy[0, first].double().tolist()), "nats", 0.0,
                math.log(len(vocabulary)), note="How undecided the model was before the word."),
    ]  # fmt: skip
    if task.top:
        part = part_name(task.reader)
        layers.append(Candidates("expected", tuple({part: candidates_of(vocabulary, scores, at)} for at in first)))
    return layers
