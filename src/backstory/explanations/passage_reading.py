"""Read through a passage, sum scores over words, build layers from them, and explain surprisal."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from backstory.data import Boundaries, Vocabulary, WordScore, word_nats
from backstory.evaluation import Block, read
from backstory.evaluation.token_scores import TokenScores, token_scores
from backstory.explanations.explained_text import Explanation, PassageTask, shown
from backstory.models import Prediction
from backstory.readers import Reader
from backstory.results.passage import STEPS, Candidates, Layer, Numbers, Weights
from backstory.utils.scores import perplexity
from backstory.utils.terminal import ProgressCallback

FOLDED_HIGH = 15.0
"""Nats at which a word made of several tokens has the full colour."""
GAIN_SHARE = 0.95
"""Share of the words whose gains are within the scale; the others have the full colour."""
LINK_SHARE = 0.9
"""Share of the words whose strongest links are within the scale; the others have the full colour."""
LINKS = 5
"""Number of links of a word that are always kept, however weak."""

Parts = Mapping[str, Prediction]


def read_parts(
    task: PassageTask,
    progress: ProgressCallback,
    parts: Callable[[Prediction], Parts],
    at_word: Callable[[Parts, int, int], None] | None = None,
    reader: Reader | None = None,
    top: int | None = None,
) -> dict[str, TokenScores]:
    """Return the scores (1, tokens) of every part of a reader's predictions on the passage, by its name.

    The reader is `reader`, else the task's. It reads the context and the passage in one row, and one token more if the end of
    the last word is uncertain. Each word has `top` candidates, else the task's number. `at_word` receives, where each word
    begins, the parts, the position in their block, and the token of the passage. `progress` is called after every block.
    """
    reader, top = reader or task.reader, task.top if top is None else top
    scores: dict[str, list[TokenScores]] = {}
    starts, position = {span.start for span in task.spans}, 0
    beginning = None if task.boundaries is None else torch.from_numpy(task.boundaries.beginning)

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal position
        steps, device = block.targets.shape[1], block.targets.device
        first = max(task.start - position, 0)  # of the passage, in the block
        if first < steps:
            members = None if beginning is None else beginning.to(device)
            inside = torch.arange(steps, device=device)[None] >= first
            with reader.precision.context(device):
                named = parts(prediction)
                for name, part in named.items():
                    of_part = token_scores(part, block.targets, inside, top, members)
                    cut = TokenScores(*(value[:, first:].cpu() for value in vars(of_part).values()))
                    scores.setdefault(name, []).append(cut)
                for time in range(first, steps):
                    token = position + time - task.start
                    if at_word is not None and token in starts:
                        at_word(named, time, token)
        position += steps
        progress(min(position, len(task.ids)), len(task.ids))

    start = task.vocabulary.start
    read(reader, np.append(task.ids, start) if task.uncertain[-1] else task.ids, start, each=each)
    return {name: _joined(of_part) for name, of_part in scores.items()}


def _joined(scores: Sequence[TokenScores]) -> TokenScores:
    """Return the scores of consecutive blocks as those of one block."""
    return TokenScores(*(torch.cat([vars(s)[name] for s in scores], 1) for name in vars(scores[0])))


def nats_of(task: PassageTask, scores: TokenScores) -> np.ndarray:
    """Return the surprisal (words,) of the passage's words: sums over their tokens, corrected for where they begin and end."""
    log_mass = scores.log_mass[0].double().numpy()[: task.tokens + 1]
    log_begins = np.zeros(task.tokens + 1)
    log_begins[: len(log_mass)] = np.where(task.uncertain[: len(log_mass)], log_mass, 0.0)
    return word_nats(_token_nats(task, scores), log_begins, task.starts)


def figures_of(task: PassageTask, scores: TokenScores) -> dict[str, float]:
    """Return the passage's score as result files record it, over tokens."""
    per_token = float(_token_nats(task, scores).mean())
    return {"nats_per_token": per_token, "perplexity": perplexity(per_token)}


def _token_nats(task: PassageTask, scores: TokenScores) -> np.ndarray:
    return -scores.log_prob[0].double().numpy()[: task.tokens]


def candidates_of(vocabulary: Vocabulary, scores: TokenScores, token: int) -> tuple[tuple[str, float], ...]:
    """Return the likeliest types at a token with their probabilities; impossible ones are left out."""
    ids, probabilities = (
        scores.candidates[0, token].tolist(),
        scores.candidate_log_probs[0, token].double().exp().tolist(),
    )
    return tuple((shown(vocabulary, i), p) for i, p in zip(ids, probabilities, strict=True) if p > 0)


def expected_layer(task: PassageTask, scores: Mapping[str, TokenScores]) -> Candidates:
    """Return the candidates of each part where a word begins, for every word."""
    expected = [
        {name: candidates_of(task.vocabulary, part, span.start) for name, part in scores.items()} for span in task.spans
    ]
    return Candidates("expected", tuple(expected))


def part_name(reader: Reader) -> str:
    """Return the name of a reader among the parts of a prediction."""
    return "model" if reader.name == "static" else reader.name


def surprisal_layer(name: str, nats: np.ndarray, vocabulary: Vocabulary) -> Numbers:
    """Return nats (words,) on a scale on which the surprisal of a uniform distribution has the full colour."""
    whole = vocabulary.tokenizer.unit == "word"
    high = math.log(len(vocabulary)) if whole else FOLDED_HIGH
    meaning = f"{high:.1f} nats: as unlikely as if all {len(vocabulary):,} words were equally likely." if whole else ""
    return Numbers("sequential", name, tuple(nats.tolist()), "nats", high=high, note=meaning)


def gain_layer(name: str, gains: np.ndarray, high: float, note: str) -> Numbers:
    """Return gains in nats (words,): positive where a reader predicts the word better than another."""
    return Numbers("diverging", name, tuple(gains.tolist()), "nats", low=-high, high=high, note=note)


def gain_over(other: str, gains: np.ndarray) -> Numbers:
    """Return the gains of a reader over another in nats (words,), on a scale of their own."""
    note = f"Blue: likelier here than with {other}; orange and underlined: less likely."
    return gain_layer(f"gain over {other}", gains, gain_scale(gains), note)


def gain_scale(gains: np.ndarray) -> float:
    """Return the nats at which a gain has the full colour, from all shown gains."""
    return max(0.5, math.ceil(4 * float(np.quantile(np.abs(gains), GAIN_SHARE))) / 4)


def strong_high(strongest: Sequence[float]) -> float:
    """Return the weight with the full colour, from the strongest link of each word; rounded up to two digits."""
    high = float(np.quantile(strongest, LINK_SHARE)) or max(strongest)
    if not high:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(high)) - 1)
    return round(unit * math.ceil(high / unit - 1e-9), 12)


def weights_layer(
    name: str,
    links: Sequence[Mapping[int, float]],
    note: str,
    shown_links: int = LINKS,
    whole: int | None = None,
    full: float | None = None,
) -> Weights:
    """Return a layer of the links of every word to earlier ones (word: weight).

    Links too weak for a colour are left out, except for the `shown_links` strongest of a word and all links of the word
    `whole`. `full` is the weight of the full colour, else it comes from the links.
    """
    high = strong_high([max(of.values(), default=0.0) for of in links])
    least = high / (2 * STEPS)  # weaker links have no colour
    visible = []
    for i, of in enumerate(links):
        ordered = sorted(of.items(), key=lambda link: -link[1])
        strong = [link for n, link in enumerate(ordered) if i == whole or link[1] > (0 if n < shown_links else least)]
        visible.append(tuple(sorted(strong)))
    return Weights(name, tuple(visible), full or high, note)


def after(lead: int, layer: Numbers | Candidates) -> Layer:
    """Return a layer of the passage with no entries for the words before it."""
    if isinstance(layer, Candidates):
        return replace(layer, lists=({},) * lead + layer.lists)
    return replace(layer, values=(None,) * lead + layer.values)


def note_on_words(vocabulary: Vocabulary, of_first: str = "", word_score: WordScore | None = "sum") -> str:
    """Return a sentence on words of several tokens, and on figures of their first token; empty if words are tokens."""
    if vocabulary.tokenizer.unit == "word":
        return ""
    rest = f", its {of_first} are those of the first" if of_first else ""
    corrected = ", corrected for where words begin and end" if word_score == "corrected" else ""
    return f"A word is several {vocabulary.tokenizer.unit}s: its surprisal is their sum{corrected}{rest}."


def note_on(task: PassageTask, of_first: str) -> str:
    """Return `note_on_words` for a passage."""
    return note_on_words(task.vocabulary, of_first, word_score_of(task.boundaries, task.vocabulary))


def word_score_of(boundaries: Boundaries | None, vocabulary: Vocabulary) -> WordScore | None:
    """Return the name of the words' score in results; None where a word is a token."""
    if vocabulary.tokenizer.unit == "word":
        return None
    return "sum" if boundaries is None else "corrected"


def surprisal(task: PassageTask, progress: ProgressCallback) -> Explanation:
    """Return layers surprisal (or, against another reader, gain first), probability, rank, entropy and candidates."""
    passes = 1 if task.against is None else 2

    def score(reader: Reader, top: int, before: int) -> TokenScores:
        def advance(done: int, total: int) -> None:
            progress(before * total + done, passes * total)

        parts = read_parts(task, advance, lambda prediction: {reader.name: prediction}, reader=reader, top=top)
        return parts[reader.name]

    scores = score(task.reader, task.top, 0)
    nats = nats_of(task, scores)
    figures, layers = figures_of(task, scores), []
    if task.against is not None:
        other = score(task.against, 0, 1)
        layers.append(gain_over(task.against_name, nats_of(task, other) - nats))
        figures["against_nats_per_token"] = figures_of(task, other)["nats_per_token"]
    layers += _surprisal_layers(task, scores, nats)
    return Explanation(figures, tuple(layers), note_on(task, "rank, entropy and candidates"))


def _surprisal_layers(task: PassageTask, scores: TokenScores, nats: np.ndarray) -> list[Layer]:
    spans, vocabulary = task.spans, task.vocabulary
    first = [span.start for span in spans]
    entropy, note = tuple(scores.entropy[0, first].double().tolist()), "How undecided the model was before the word."
    layers: list[Layer] = [
        surprisal_layer("surprisal", nats, vocabulary),
        Numbers("plain", "probability", tuple((100 * np.exp(-nats)).tolist()), "%", high=100.0, digits=3),
        Numbers("plain", "rank", tuple(map(float, scores.rank[0, first])), high=float(len(vocabulary)), digits=0),
        Numbers("sequential", "entropy", entropy, "nats", high=math.log(len(vocabulary)), note=note),
    ]
    if task.top:
        part = part_name(task.reader)
        layers.append(Candidates("expected", tuple({part: candidates_of(vocabulary, scores, at)} for at in first)))
    return layers
