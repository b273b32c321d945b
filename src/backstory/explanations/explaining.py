"""Explain a passage with a trained run: find it, read it with what comes before it, and write result.json."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from backstory.config import UserError, check_name
from backstory.config.arguments import checked
from backstory.config.explanation_options import EXPLANATION_SUMMARIES, LONGEST_PASSAGE, ExplainOptions
from backstory.config.options import folder_name
from backstory.config.terminal import ProgressCallback
from backstory.data import unknown_share
from backstory.evaluation.opening import EvalSetup
from backstory.explanations.attention import CASES, MASS, CacheCase, buffer, cache, check_buffer, find_case
from backstory.explanations.explained_text import (
    LONGEST,
    ExplainedText,
    Explanation,
    PassageTask,
    other_folder_part,
    other_name,
    words_of,
)
from backstory.explanations.memory_reads import check_memory, memory
from backstory.explanations.passage_reading import surprisal, word_score_of
from backstory.readers import Reader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.registry import parse_stack, stack_name
from backstory.results.common import UnknownTokens
from backstory.results.explanation_record import CaseRecord, ExplanationFigures
from backstory.results.passage import Layer, Passage
from backstory.results.result_file import Result, write_result
from backstory.runs.run import Run


@dataclass(frozen=True)
class Explainer:
    """Kind of explanation: what it shows, and the function that makes it."""

    description: str
    explain: Callable[[PassageTask, ProgressCallback], Explanation] | None
    """Explains a passage; None for the comparison of readers along a stretch of text (`compare_readers`)."""
    needs: str = ""
    """Reader that it is made with: it goes around the reader of the options."""
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
    With `options.find` (of `cache` alone) the passage leads up to a case that is looked for from `at` on (`find_case`). The
    result is written to `options.out`, else to RUN/explain-NAME with whatever is not usual added to the name; that of a model
    from elsewhere (`hf:...`) only to `options.out`. Raises UserError.
    """
    check_name(name, EXPLANATIONS, "explanation", "backstory ls explanations")
    options, explainer = (options or ExplainOptions()).checked(), EXPLANATIONS[name]
    if explainer.explain is None:
        raise UserError(f"`explain {name}` has options of its own; see `backstory explain {name} --help`")
    stack = parse_stack(options.reader or "static")
    named, reader = stack_name(stack), stack_name(stack)
    if explainer.needs and explainer.needs not in [layer.name for layer in stack]:
        reader = stack_name(parse_stack([*map(str, stack), explainer.needs]))
    source = ExplainedText.open(run, reader, options, text)
    setup = source.setup
    explainer.check(setup)
    case, where = None, options
    progress = progress or (lambda done, total: None)
    if options.find is not None:
        case, progress = _find(setup, name, options, progress)
        where = _leading_to(case, setup, options)
    other = against = against_part = None
    if options.against is not None:
        other, against = source.open_other(options.against), other_name(options.against)
        against_part = other_folder_part(options.against)
    parts = options.name_parts(source.folder_part, named, setup.reader.precision.name, against_part)
    destination = source.destination(folder_name("explain", name, *parts), "explanation")
    origin, began = setup.provenance(), time.perf_counter()
    task = _task(setup, where, None if other is None else other[1], against or "", last=case is not None)
    explanation = explainer.explain(task, progress)
    words = explanation.words or tuple(span.word for span in task.spans)
    layers = _first(options.layer or (MASS if case else None), explanation.layers)
    title = source.title_from(where.at)
    if case is not None:
        title = f"{source.title}, {CASES[case.case]}, {task.vocabulary.tokenizer.unit} {case.target:,}"
    unknown = unknown_share(task.vocabulary, setup.split, slice(where.at, where.at + task.tokens))
    figures = explanation.record(
        explanation=name,
        text=source.name,
        at=where.at,
        context=task.start,
        tokens=task.tokens,
        **vars(UnknownTokens.counted(unknown)),
        unit=task.vocabulary.tokenizer.unit,
        word_score=word_score_of(task.boundaries, task.vocabulary),
        reader=reader,
        against_weights=None if other is None else other[0].identity()["weights"],
        **{"against": against, **explanation.figures},
        found=None if case is None else CaseRecord(**vars(case), word=words[-1].text),
        passage=Passage(words, layers, title, explanation.note, explanation.chosen),
    )
    origin = replace(origin, seconds=round(time.perf_counter() - began, 1))
    for one in (setup.run, *([other[0]] if other else [])):
        one.check_unchanged(destination)
    return write_result(destination, setup.run.name, figures, origin)


def _find(
    setup: EvalSetup, name: str, options: ExplainOptions, progress: ProgressCallback
) -> tuple[CacheCase, ProgressCallback]:
    """Find the case of the options, and return it with the progress of the second reading, which is as long at most."""
    if name != "cache":
        raise UserError(f"cases are those of a cache, and `explain {name}` has none to find; leave --find out")
    assert options.find is not None
    first = len(setup.split.ids)
    case = find_case(setup, options.find, options.at, lambda done, total: progress(done, 2 * total))
    return case, lambda done, total: progress(first + done, first + total)


def _leading_to(case: CacheCase, setup: EvalSetup, options: ExplainOptions) -> ExplainOptions:
    """Return options of the passage that ends with the case and holds what its cache remembers, as far as there is room."""
    reader, words = setup.reader, options.words
    assert isinstance(reader, NeuralCache)
    if words is None:
        words = min(reader.settings.window + 1, LONGEST_PASSAGE)
    at = max(0, case.target + 1 - words)
    passage = words_of(setup.dataset.vocabulary, np.asarray(setup.split.ids[at : case.target + 1]), words)
    return replace(options, at=at, words=len(passage))


def _first(name: str | None, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers with the one of that name first. Raises UserError unless it is there and can colour words."""
    named = {layer.name: layer for layer in layers if layer.kind in ("sequential", "diverging", "weights")}
    if name is not None:
        check_name(name, named, "layer")
    return tuple(sorted(layers, key=lambda layer: layer.name != name))


def _task(setup: EvalSetup, options: ExplainOptions, against: Reader | None, name: str, last: bool) -> PassageTask:
    """Return the passage at the place of the options; `last` says that its last word is shown first."""
    ids, vocabulary, at = setup.split.ids, setup.dataset.vocabulary, options.at
    longest = options.most_words * (1 if vocabulary.tokenizer.unit == "word" else 4 * LONGEST)
    words = words_of(vocabulary, np.asarray(ids[at : at + longest]), options.most_words)
    start = 0 if options.context is None else max(0, at - options.context)
    return PassageTask(
        setup.reader,
        vocabulary,
        ids[start : at + words[-1].end],
        at - start,
        words,
        options.top,
        against,
        name,
        chosen=len(words) - 1 if last else None,
        boundaries=vocabulary.boundaries if options.word_score == "corrected" else None,
    )
