"""Explain a passage with a trained run: find it, read it with its context, and write result.json."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.config.explanation_options import EXPLANATION_SUMMARIES, LONGEST_PASSAGE, ExplainOptions
from backstory.config.options import folder_name
from backstory.data import unknown_share
from backstory.evaluation.opening import EvalSetup
from backstory.explanations.attention import CASES, MASS, CacheCase, buffer, cache, check_buffer, find_case
from backstory.explanations.explained_text import (
    LONGEST,
    ExplainedText,
    Explanation,
    OpenedReader,
    PassageTask,
    first_token_read,
    other_folder_part,
    words_of,
)
from backstory.explanations.memory_reads import check_memory, memory
from backstory.explanations.passage_reading import surprisal, word_score_of
from backstory.models.devices import restored_threads
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.reading_threads import choose_threads
from backstory.readers.registry import parse_stack, stack_name
from backstory.results.common import UnknownTokens
from backstory.results.explanation_record import CaseRecord, ExplanationFigures
from backstory.results.passage import Layer, Passage
from backstory.results.result_file import Result, write_result
from backstory.runs.run import Run
from backstory.utils.arguments import checked
from backstory.utils.clock import CLOCK
from backstory.utils.errors import UserError, check_name
from backstory.utils.terminal import ProgressCallback


@dataclass(frozen=True)
class Explainer:
    """Kind of explanation: its content, and the function that makes it."""

    description: str
    explain: Callable[[PassageTask, ProgressCallback], Explanation] | None
    """Explains a passage; None for the comparison of readers along a stretch of text (`compare_readers`)."""
    needs: str = ""
    """Name of a reader that it needs, which wraps the reader of the options."""
    check: Callable[[EvalSetup], None] = lambda setup: None
    """Raises UserError for a run or a reader that it cannot explain."""


EXPLANATIONS = {
    "surprisal": Explainer(EXPLANATION_SUMMARIES["surprisal"], surprisal),
    "reading": Explainer(EXPLANATION_SUMMARIES["reading"], None),
    "buffer": Explainer(EXPLANATION_SUMMARIES["buffer"], buffer, check=check_buffer),
    "memory": Explainer(EXPLANATION_SUMMARIES["memory"], memory, check=check_memory),
    "cache": Explainer(EXPLANATION_SUMMARIES["cache"], cache, "cache"),
}


@checked()
@restored_threads()
def explain_passage(
    run: Path | str | Run,
    name: str = "surprisal",
    options: ExplainOptions | None = None,
    *,
    text: Path | BinaryIO | None = None,
    progress: ProgressCallback | None = None,
) -> Result[ExplanationFigures]:
    """Explain a passage and return the result (docs/reports.md describes it).

    `text` is a user's own text in place of a split: a file by its path, or one open for bytes, which is read to its end.
    With `options.find` (for `cache` only) the passage ends with the case that `find_case` returns, from `at` on. The result
    is written to `options.out`, else to RUN/explain-NAME with the options that are not the default added to the name; that of
    a model from elsewhere (`hf:...`) only to `options.out`. Raises UserError.
    """
    check_name(name, EXPLANATIONS, "explanation", "backstory ls explanations")
    options, explainer = (options or ExplainOptions()).checked(), EXPLANATIONS[name]
    if explainer.explain is None:
        raise UserError(f"`explain {name}` has options of its own; see `backstory explain {name} --help`")
    stack = parse_stack(options.reader or "static")
    named = reader = stack_name(stack)
    if explainer.needs and explainer.needs not in [layer.name for layer in stack]:
        reader = stack_name(parse_stack([*map(str, stack), explainer.needs]))
    source = ExplainedText.open(run, reader, options, text)
    setup = source.setup
    explainer.check(setup)
    choose_threads(setup.reader, setup.split.ids, tokens=_at_least_read(options, len(setup.split.ids)))
    case, where = None, options
    progress = progress or (lambda done, total: None)
    if options.find is not None:
        case, progress = _find(setup, name, options, progress)
        where = _leading_to(case, setup, options)
    other = against_part = None
    if options.against is not None:
        other, against_part = source.open_other(options.against), other_folder_part(options.against)
    parts = options.name_parts(source.folder_part, named, setup.reader.precision.name, against_part)
    destination = source.destination(folder_name("explain", name, *parts), "explanation")
    provenance, began = setup.provenance(), CLOCK.seconds()
    task = _task(setup, where, other, last=case is not None)
    explanation = explainer.explain(task, progress)
    passage = _passage(source, where, task, explanation, case)
    figures = explanation.record(
        explanation=name,
        **_text_figures(source, where.at, task),
        reader=reader,
        against_weights=None if other is None else other.run.identity()["weights"],
        **{"against": None if other is None else other.name, **explanation.figures},
        found=None if case is None else CaseRecord(**vars(case), word=passage.words[-1].text),
        passage=passage,
    )
    provenance = replace(provenance, seconds=round(CLOCK.seconds() - began, 1))
    for run_read in (setup.run, *([other.run] if other else [])):
        run_read.check_unchanged(destination)
    return write_result(destination, setup.run.name, figures, provenance)


def _at_least_read(options: ExplainOptions, tokens: int) -> int:
    """Return how many of a text's tokens are read up to the passage; all, if it is searched for one."""
    return tokens if options.find is not None else options.at - first_token_read(options)


def _passage(
    source: ExplainedText, options: ExplainOptions, task: PassageTask, explanation: Explanation, case: CacheCase | None
) -> Passage:
    """Return the words with their layers; of a case, the layer of the cache's mass comes first. Raises UserError."""
    title = source.title_from(options.at)
    if case is not None:
        title = f"{source.title}, {CASES[case.case]}, {task.vocabulary.tokenizer.unit} {case.target:,}"
    words = explanation.words or tuple(span.word for span in task.spans)
    layers = _first(options.layer or (MASS if case else None), explanation.layers)
    return Passage(words, layers, title, explanation.note, explanation.chosen)


def _text_figures(source: ExplainedText, at: int, task: PassageTask) -> dict[str, Any]:
    """Return the figures of the result that describe the text and the passage, which begins at token `at`."""
    unknown = unknown_share(task.vocabulary, source.setup.split, slice(at, at + task.tokens))
    return {
        "text": source.name,
        "at": at,
        "context": task.start,
        "tokens": task.tokens,
        **vars(UnknownTokens.counted(unknown)),
        "unit": task.vocabulary.tokenizer.unit,
        "word_score": word_score_of(task.boundaries, task.vocabulary),
    }


def _find(
    setup: EvalSetup, name: str, options: ExplainOptions, progress: ProgressCallback
) -> tuple[CacheCase, ProgressCallback]:
    """Return the case of the options, and the progress of the second reading, which is at most as long as the search."""
    if name != "cache":
        raise UserError(f"--find looks for cases of a cache, and `explain {name}` has none; remove it")
    assert options.find is not None
    first = len(setup.split.ids)
    case = find_case(setup, options.find, options.at, lambda done, total: progress(done, 2 * total))
    return case, lambda done, total: progress(first + done, first + total)


def _leading_to(case: CacheCase, setup: EvalSetup, options: ExplainOptions) -> ExplainOptions:
    """Return options of a passage that ends with the case, and begins with the oldest word in its cache if it has room."""
    reader, words = setup.reader, options.words
    assert isinstance(reader, NeuralCache)
    if words is None:
        words = min(reader.settings.window + 1, LONGEST_PASSAGE)
    at = max(0, case.target + 1 - words)
    passage = words_of(setup.dataset.vocabulary, np.asarray(setup.split.ids[at : case.target + 1]), words)
    return replace(options, at=at, words=len(passage))


def _first(name: str | None, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers with the one of that name first. Raises UserError unless it exists and can colour words."""
    named = {layer.name: layer for layer in layers if layer.kind in ("sequential", "diverging", "weights")}
    if name is not None:
        check_name(name, named, "layer")
    return tuple(sorted(layers, key=lambda layer: layer.name != name))


def _task(setup: EvalSetup, options: ExplainOptions, against: OpenedReader | None, last: bool) -> PassageTask:
    """Return the passage that the options describe, with its last word shown first if `last` is True."""
    ids, vocabulary, at = setup.split.ids, setup.dataset.vocabulary, options.at
    longest = options.most_words * (1 if vocabulary.tokenizer.unit == "word" else 4 * LONGEST)
    words = words_of(vocabulary, np.asarray(ids[at : at + longest]), options.most_words)
    start = first_token_read(options)
    return PassageTask(
        setup.reader,
        vocabulary,
        ids=ids[start : at + words[-1].end],
        start=at - start,
        spans=words,
        top=options.top,
        against=None if against is None else against.reader,
        against_name="" if against is None else against.name,
        chosen=len(words) - 1 if last else None,
        boundaries=vocabulary.boundaries if options.word_score == "corrected" else None,
    )
