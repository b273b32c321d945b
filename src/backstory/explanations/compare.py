"""Read a stretch of text with several readers, and compare them by block, by document and word by word.

The figure of "A language model with dynamic weights": gain per block along a sequence of articles, and passages.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from backstory.config.explanation_options import CompareOptions
from backstory.config.options import folder_name
from backstory.context.examined_text import read_scores
from backstory.data import Boundaries, unknown_share
from backstory.evaluation.opening import EvalSetup
from backstory.explanations.explained_text import (
    ExplainedText,
    OpenedReader,
    first_token_read,
    other_folder_part,
    other_name,
)
from backstory.explanations.gain_passages import excerpts
from backstory.explanations.gains import ScoredText, comparisons, documents, perplexities, positions
from backstory.explanations.passage_reading import word_score_of
from backstory.models.devices import restored_threads
from backstory.readers import Reader
from backstory.readers.reading_threads import choose_threads
from backstory.readers.registry import names_readers, parse_stack, stack_name
from backstory.results.common import UnknownTokens
from backstory.results.explanation_record import ComparedReader, ComparisonFigures
from backstory.results.result_file import Result, write_result
from backstory.runs.run import Run
from backstory.utils.arguments import checked
from backstory.utils.clock import CLOCK
from backstory.utils.errors import UserError
from backstory.utils.small_file import resolved
from backstory.utils.terminal import ProgressCallback

LONGEST_NAME = 180
"""Maximum length of a result folder's name; a longer one is cut and ends in a hash."""


@checked()
@restored_threads()
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
    choose_threads(setup.reader, setup.split.ids, tokens=len(readers) * (end - first_token_read(options)))
    provenance, began = setup.provenance(), CLOCK.seconds()
    scored = _read_stretch(setup, readers, options, end, progress)
    figures = _figures(source, scored, readers, options)
    provenance = replace(provenance, seconds=round(CLOCK.seconds() - began, 1))
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
    """Return the record of a reader with its mean nats per token."""
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

    Row 0: minus the log-probability of each of the first `tokens`. Row 1, with `boundaries`: log of the mass of the
    tokens that begin a word, before each of them and after the last; 0 where every token begins a word or the ids end.
    The last block is read whole if the ids continue, because rounding may depend on its length.
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
    """Return the name of the first reader; of its run if only runs are compared, which share the reader."""
    if any(map(names_readers, against)):
        return reader
    return run.name if isinstance(run, Run) else resolved(run).name


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
