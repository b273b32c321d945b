"""Read a stretch of text with several readers: what each gains on the others by block, by document and word by word.

The figure of "A language model with dynamic weights": gain per block along a sequence of articles, and passages.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.explanation_options import CompareOptions
from backstory.config.options import folder_name
from backstory.config.terminal import ProgressCallback
from backstory.context.bootstrap import BLOCK, resampled_means
from backstory.context.examined_text import read_scores
from backstory.data import Boundaries, Vocabulary, unknown_share, word_nats
from backstory.evaluation.opening import EvalSetup
from backstory.explanations.explained_text import (
    ExplainedText,
    OpenedReader,
    Span,
    first_token_read,
    other_folder_part,
    other_name,
    words_of,
)
from backstory.explanations.passage_reading import gain_layer, gain_scale, note_on_words, surprisal_layer, word_score_of
from backstory.readers import Reader
from backstory.readers.registry import names_readers, parse_stack, stack_name
from backstory.results.common import UnknownTokens
from backstory.results.explanation_record import (
    ComparedReader,
    ComparisonFigures,
    DocumentRecord,
    ExcerptRecord,
    GainRecord,
    PairRecord,
    PositionRecord,
)
from backstory.results.passage import Layer, Passage
from backstory.results.result_file import Result, write_result
from backstory.runs.run import Run

LONGEST_NAME = 180
"""The most characters of a result's folder; a longer name is cut and ends in a hash."""
ENOUGH = 8
"""The fewest documents, or blocks, for an interval of a gain: fewer say little about how documents differ."""
FIRST = 100
"""Tokens of the first stretch of a document; the second is as long, and every further one twice as long."""


@checked()
def compare_readers(
    run: Path | str | Run,
    options: CompareOptions | None = None,
    *,
    text: Path | BinaryIO | None = None,
    progress: ProgressCallback | None = None,
) -> Result[ComparisonFigures]:
    """Compare readers on a stretch of text and return the result (docs/reports.md describes it).

    `pairs` lists the comparisons. Each reader reads the text once and is scored before it learns; the scores are those of
    `evaluate --per-token`. `text` is a user's own text in place of a split: a file by its path, or one open for bytes. The
    result is written to `options.out`, else to RUN/explain-reading with the options that are not the default added to the
    name. Raises UserError.
    """
    options = (options or CompareOptions()).checked()
    against = options.against or ("static",)
    reader = stack_name(parse_stack(options.reader or "static"))
    names = _names(_first_name(run, reader, against), against)
    source = ExplainedText.open(run, reader, options, text)
    setup = source.setup
    end = min(options.at + options.tokens, len(setup.split.ids))
    for token in options.passage:
        if not options.at <= token < end:
            raise UserError(f"--passage {token} is outside the stretch, which has tokens {options.at} to {end - 1}")
    opened = [OpenedReader(reader, setup.run, setup.reader, setup.layers), *map(source.open_other, against)]
    readers = [replace(one, name=name) for one, name in zip(opened, names, strict=True)]
    destination = source.destination(_folder_name(source, options, reader, against), "comparison")
    provenance, began = setup.provenance(), time.perf_counter()
    scored = _read_stretch(setup, readers, options, end, progress)
    figures = _figures(source, scored, readers, options)
    provenance = replace(provenance, seconds=round(time.perf_counter() - began, 1))
    for one in readers:
        one.run.check_unchanged(destination)
    return write_result(destination, setup.run.name, figures, provenance)


def _folder_name(source: ExplainedText, options: CompareOptions, reader: str, against: Sequence[str]) -> str:
    """Return the name of the result's folder in the run."""
    others = [other_folder_part(one) for one in against]
    parts = options.name_parts(source.folder_part, reader, source.setup.reader.precision.name, others)
    folder = folder_name("explain", "reading", *parts)
    if len(folder) <= LONGEST_NAME:
        return folder
    return f"{folder[:LONGEST_NAME]}-{hashlib.sha256(folder.encode()).hexdigest()[:8]}"


def _read_stretch(
    setup: EvalSetup,
    readers: Sequence[OpenedReader],
    options: CompareOptions,
    end: int,
    progress: ProgressCallback | None,
) -> "ScoredText":
    """Read the text up to token `end` with each reader in turn, and return the scores of the stretch."""
    vocabulary, start = setup.dataset.vocabulary, first_token_read(options)
    boundaries = vocabulary.boundaries if options.word_score == "corrected" else None
    total, done = len(readers) * (end - start), 0

    def advance(tokens: int) -> None:
        nonlocal done
        done = min(done + tokens, total)
        if progress is not None:
            progress(done, total)

    ids, before = setup.split.ids[start:], options.at - start
    scores = np.stack(
        [
            token_nats(one.reader, ids, vocabulary.start, end - start, progress=advance, boundaries=boundaries)
            for one in readers
        ],
        axis=1,
    )
    return ScoredText(
        nats=scores[0, :, before:-1],
        at=options.at,
        documents=setup.split.documents,
        titles=setup.split.titles,
        log_begins=None if boundaries is None else scores[1, :, before:],
    )


def _figures(
    source: ExplainedText, scored: "ScoredText", readers: Sequence[OpenedReader], options: CompareOptions
) -> ComparisonFigures:
    """Return the figures of the comparison, as results record them."""
    setup, vocabulary, names = source.setup, source.setup.dataset.vocabulary, [one.name for one in readers]
    at, tokens = scored.at, scored.nats.shape[1]
    return ComparisonFigures(
        comparison="reading",
        title=source.title_from(at),
        text=source.name,
        at=at,
        context=at - first_token_read(options),
        tokens=tokens,
        **vars(UnknownTokens.counted(unknown_share(vocabulary, setup.split, slice(at, at + tokens)))),
        unit=vocabulary.tokenizer.unit,
        word_score=word_score_of(scored.boundaries(vocabulary), vocabulary),
        block=options.block,
        smooth=options.smooth,
        readers=tuple(map(_reader_record, readers, scored.nats.mean(1).tolist())),
        comparisons=comparisons(scored, names, options.block),
        documents=documents(scored),
        positions=positions(scored),
        passages=excerpts(scored, setup, names, options.passage, options.words),
    )


def _reader_record(opened: OpenedReader, nats: float) -> ComparedReader:
    """Return a reader with its mean nats per token, as results record it."""
    return ComparedReader(
        name=opened.name,
        layers=[layer.as_dict() for layer in opened.layers],
        **opened.run.identity(),
        nats_per_token=nats,
        perplexity=float(perplexities(np.array(nats))),
    )


def token_nats(
    reader: Reader,
    ids: np.ndarray,
    first: int,
    tokens: int,
    progress: Callable[[int], None],
    boundaries: Boundaries | None = None,
) -> np.ndarray:
    """Read ids once in one row and return scores (2, tokens + 1), float64.

    Row 0: minus the log-probability of each of the first `tokens`. Row 1, with `boundaries`: log of the mass of the tokens that
    begin a word, before each of them and after the last; 0 where every token begins a word or the ids end. The reader's last
    block is read whole where the ids continue, as rounding may depend on its length.
    """
    end = min(len(ids), -(-(tokens + (boundaries is not None)) // reader.block) * reader.block)
    uncertain = np.zeros(end, bool)
    if boundaries is not None:
        uncertain[1:] = ~boundaries.closed[ids[: end - 1]]
    scores = read_scores(
        reader,
        ids[None, :end],
        first,
        uncertain[None],
        boundaries,
        progress=lambda before, done: progress(done - before),
    )[:, 0, 0]
    return np.pad(scores, ((0, 0), (0, max(0, tokens + 1 - end))))[:, : tokens + 1]


def _first_name(run: Path | str | Run, reader: str, against: Sequence[str]) -> str:
    """Return the name of the first reader; compared with other runs only, which are all read the same way, that of its run."""
    if any(map(names_readers, against)):
        return reader
    return run.name if isinstance(run, Run) else Path(run).resolve().name


def _names(reader: str, against: Sequence[str]) -> list[str]:
    """Return the readers' names in the result. Raises UserError for a name that occurs twice."""
    names = [reader, *map(other_name, against)]
    # Runs whose folders have the same name are distinguished by their paths.
    names = [path if names.count(name) > 1 else name for name, path in zip(names, [reader, *against], strict=True)]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise UserError(
            f"{twice} would be compared with itself; name two different readers with --reader and --against"
        )
    return names


# --- gains ---


@dataclass(frozen=True)
class ScoredText:
    """A stretch of a text as several readers scored it."""

    nats: np.ndarray
    """(R, N): minus the log-probability of every token, by reader."""
    at: int
    """Start of the stretch in the text, in tokens."""
    documents: np.ndarray
    """(D,): where each document of the text begins, in tokens; the first at 0."""
    titles: Sequence[str]
    log_begins: np.ndarray | None = None
    """(R, N + 1): log of the mass of the tokens that begin a word, before every token and after the last; None: left out."""

    def boundaries(self, vocabulary: Vocabulary) -> Boundaries | None:
        """Return the tokens that begin words, if the scores of words are corrected."""
        return None if self.log_begins is None else vocabulary.boundaries

    @cached_property
    def within(self) -> np.ndarray:
        """Number of the document that each token is in (N,)."""
        places = np.arange(self.at, self.at + self.nats.shape[1])
        return np.searchsorted(self.documents, places, "right") - 1

    @cached_property
    def clusters(self) -> np.ndarray:
        """Cluster (N,) of each token for an interval: its document, or its block in a text whose documents are unknown."""
        if len(self.documents) > 1:
            return self.within
        return np.arange(self.at, self.at + self.nats.shape[1]) // BLOCK

    @cached_property
    def offsets(self) -> np.ndarray:
        """Number of tokens of its document before each token (N,)."""
        return np.arange(self.at, self.at + self.nats.shape[1]) - self.documents[self.within]

    @cached_property
    def gains(self) -> np.ndarray:
        """Nats that the first reader of each pair saves over the second at every token (C, N)."""
        return np.stack([self.nats[there] - self.nats[here] for here, there in pairs(len(self.nats))])

    def by_word(self, starts: np.ndarray) -> np.ndarray:
        """Return the nats (R, W) of words that begin at these tokens, and together are the stretch."""
        known = np.zeros((len(self.nats), self.nats.shape[1] + 1)) if self.log_begins is None else self.log_begins
        return word_nats(self.nats, known, starts)


def pairs(readers: int) -> list[tuple[int, int]]:
    """Return the pairs of readers that are compared: each with the next, from the last two on, and the first with the last.

    Gains in nats add up, so that any other comparison is a sum of these.
    """
    chain = [(i, i + 1) for i in reversed(range(readers - 1))]
    return chain if readers == 2 else [*chain, (0, readers - 1)]


def comparisons(scored: ScoredText, names: Sequence[str], block: int) -> tuple[PairRecord, ...]:
    """Return the gain of every pair over the whole stretch and in each of its blocks, in nats per token and in perplexity."""
    starts = np.arange(0, scored.nats.shape[1], block)
    lengths = np.diff([*starts, scored.nats.shape[1]])
    nats = np.add.reduceat(scored.nats, starts, axis=1) / lengths
    whole = perplexities(scored.nats.mean(1))
    return tuple(
        PairRecord(
            reader=names[here],
            over=names[there],
            **vars(interval(gain, scored.clusters)),
            perplexity_gain=float(whole[there] - whole[here]),
            blocks=tuple((nats[there] - nats[here]).tolist()),
            perplexity_blocks=tuple((perplexities(nats[there]) - perplexities(nats[here])).tolist()),
        )
        for (here, there), gain in zip(pairs(len(names)), scored.gains, strict=True)
    )


def perplexities(nats: np.ndarray) -> np.ndarray:
    """Return the perplexities of mean nats, bounded so that they do not overflow."""
    return np.exp(np.minimum(nats, 700.0))


def documents(scored: ScoredText) -> tuple[DocumentRecord, ...]:
    """Return the documents of the stretch in order, each with its tokens inside the stretch."""
    return tuple(
        DocumentRecord(
            document=int(number),
            title=scored.titles[number],
            start=int(scored.at + start),
            tokens=int(end - start),
            nats=tuple(scored.nats[:, start:end].mean(1).tolist()),
            gains=tuple(scored.gains[:, start:end].mean(1).tolist()),
        )
        for number, start, end in _runs(scored.within)
    )


def positions(scored: ScoredText) -> tuple[PositionRecord, ...]:
    """Return the gains by the distance of a token from the beginning of its document."""
    records, low, high = [], 0, FIRST
    longest = int(scored.offsets.max())
    while low <= longest:
        inside = (scored.offsets >= low) & (scored.offsets < high)
        if inside.any():
            within, clusters = scored.within[inside], scored.clusters[inside]
            records.append(
                PositionRecord(
                    from_=low,
                    to=high,
                    tokens=int(inside.sum()),
                    documents=len(np.unique(within)),
                    nats=tuple(scored.nats[:, inside].mean(1).tolist()),
                    gains=tuple(interval(gain[inside], clusters) for gain in scored.gains),
                )
            )
        low, high = high, 2 * high
    return tuple(records)


def interval(gains: np.ndarray, clusters: np.ndarray, seed: int = 0) -> GainRecord:
    """Return the mean gain of tokens (N,) with its 95% interval, by bootstrap over their documents or blocks (N,).

    Tokens of a document gain or lose together, so documents are resampled, not tokens. With too few documents the limits are
    None.
    """
    low = high = None
    if len(np.unique(clusters)) >= ENOUGH:
        means = resampled_means(gains[:, None], seed, clusters=clusters)
        low, high = map(float, np.quantile(means, [0.025, 0.975]))
    return GainRecord(gain=float(gains.mean()), low=low, high=high)


def notable(gains: np.ndarray, begins: Sequence[int], words: int) -> list[tuple[str, int]]:
    """Return passages worth a look, as (why, first word): most gained, most lost, and where a document begins.

    `gains` (W,) are those of the words of a stretch, `begins` the words at which documents begin, the longest first.
    """
    length = min(words, len(gains))
    sums = np.convolve(gains, np.ones(length), "valid")
    best, worst = int(sums.argmax()), int(sums.argmin())
    passages = [("the largest gain", best)]
    if sums[worst] < sums[best]:
        passages.append(("the largest loss" if sums[worst] < 0 else "the smallest gain", worst))
    return passages + [("the beginning of a document", at) for at in begins[:1] if at not in (best, worst)]


def _runs(values: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield (value, start, end) of every stretch of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    for start, end in pairwise(edges):
        yield int(values[start]), start, end


def excerpts(
    scored: ScoredText, setup: EvalSetup, names: Sequence[str], tokens: Sequence[int], words: int
) -> tuple[ExcerptRecord, ...]:
    """Return the passages that begin at these tokens of the text, else notable ones, with layers."""
    vocabulary = setup.dataset.vocabulary
    ids = np.asarray(setup.split.ids[scored.at : scored.at + scored.nats.shape[1]])
    spans = words_of(vocabulary, ids, len(ids))
    starts = np.array([span.start for span in spans])

    def word(token: int) -> int:
        """Return the word that a token of the text is in."""
        return int(np.searchsorted(starts, token - scored.at, "right")) - 1

    boundaries = scored.boundaries(vocabulary)
    if boundaries is not None and scored.log_begins is not None:
        uncertain = boundaries.uncertain(ids, starts)
        uncertain[0] = boundaries.begins[ids[0]]  # the stretch may begin inside a text
        scored = replace(scored, log_begins=np.where(uncertain, scored.log_begins, 0.0))
    nats = scored.by_word(starts)
    gains = np.stack([nats[there] - nats[here] for here, there in pairs(len(nats))])
    if tokens:
        passages = [("asked for", word(token)) for token in tokens]
    else:
        passages = notable(gains[-1], [word(token) for token in _begins(scored)], words)
    parts = [(why, spans[first : first + words], slice(first, first + words)) for why, first in passages]
    # All passages have one scale, so that a colour means the same everywhere.
    high = gain_scale(gains.ravel())
    return tuple(
        ExcerptRecord(
            why=why,
            at=scored.at + part[0].start,
            tokens=part[-1].end - part[0].start,
            gains=tuple(scored.gains[:, part[0].start : part[-1].end].mean(1).tolist()),
            passage=_passage(scored, setup, names, part, nats=nats[:, inside], gains=gains[:, inside], high=high),
        )
        for why, part, inside in parts
    )


def _begins(scored: ScoredText) -> list[int]:
    """Return the tokens where a document begins inside the stretch after another one, the longest document first."""
    inside = [int(token) for token in scored.documents if scored.at < token < scored.at + scored.nats.shape[1]]
    lengths = dict(zip(inside, np.diff([*inside, scored.at + scored.nats.shape[1]]).tolist(), strict=True))
    return sorted(inside, key=lambda token: -lengths[token])


def _passage(
    scored: ScoredText,
    setup: EvalSetup,
    names: Sequence[str],
    part: Sequence[Span],
    *,
    nats: np.ndarray,
    gains: np.ndarray,
    high: float,
) -> Passage:
    """Return the words with a layer for each comparison, the last and widest first, and one for each reader's surprisal.

    `nats` (R, W) and `gains` (C, W) are those of the words; `high` is the gain with the full colour.
    """
    start, end, vocabulary = part[0].start, part[-1].end, setup.dataset.vocabulary
    layers: list[Layer] = []
    for (here, there), gain in zip(reversed(pairs(len(names))), gains[::-1], strict=True):
        name = f"gain over {names[there]}" if here == 0 else f"gain of {names[here]} over {names[there]}"
        note = f"Blue: likelier with {names[here]} than with {names[there]}; orange and underlined: less likely."
        layers.append(gain_layer(name, gain, high, note))
    for name, of_reader in zip(names, nats, strict=True):
        layers.append(surprisal_layer(f"surprisal, {name}", of_reader, vocabulary))
    title = _title(scored, setup, start, end)
    about = note_on_words(vocabulary, word_score=word_score_of(scored.boundaries(vocabulary), vocabulary))
    return Passage(tuple(span.word for span in part), tuple(layers), title, about)


def _title(scored: ScoredText, setup: EvalSetup, start: int, end: int) -> str:
    """Return the title of a passage: the documents it is of, and where it begins."""
    numbers: list[int] = np.unique(scored.within[start:end]).tolist()
    titles = [scored.titles[number] or f"document {number + 1:,}" for number in numbers]
    named = " and ".join(titles) if len(titles) < 3 else f"{titles[0]} to {titles[-1]}"
    return f"{named}, from {setup.dataset.vocabulary.tokenizer.unit} {scored.at + start:,}"
