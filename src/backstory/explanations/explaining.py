"""Explain a passage with a trained run: find it, read it with what comes before it, and write result.json."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.config import UserError, check_name
from backstory.config.arguments import checked
from backstory.config.eval_options import folder_name
from backstory.data import WordScore, check_word_score, unknown_share
from backstory.evaluation.opening import EvalSetup, Readers
from backstory.explanations.cache_attention import MASS
from backstory.explanations.cases import Case, Name, find_case
from backstory.explanations.displayed_words import LONGEST, spans
from backstory.explanations.explainers import EXPLANATIONS, check_explanation
from backstory.explanations.explanation import Progress, Subject
from backstory.explanations.passage_reading import word_score_of
from backstory.explanations.sources import (
    case_title,
    open_at,
    open_other,
    other_name,
    other_part,
    place_of,
    reading_options,
    source_name,
    text_part,
    title,
)
from backstory.readers import Reader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.registry import parse_stack, stack_name
from backstory.reports.passage import MOST_WORDS, Layer, Passage, to_json
from backstory.storage.provenance import write_result

WORDS = 200
"""Words of a passage unless somebody asks for more or fewer."""


@checked(at=0, words=1, context=0)
@dataclass(frozen=True)
class Place:
    """Which words are explained, and how much before them is read."""

    split: str | None = None
    """train, valid or test; None: test, unless a text is given."""
    at: int = 0
    """Token of the text at which the passage begins."""
    words: int | None = None
    """Words of the passage, fewer where the text ends; None: 200, or up to a case of the cache as many as it can hold."""
    context: int | None = None
    """Tokens before it that are read; None: all there are."""
    text: Path | BinaryIO | None = None
    """A text of one's own in place of a split: a file by its path, or one open for bytes, which is read to its end."""


@checked(top=0)
def explain_run(
    folder: Path | str,
    name: str = "surprisal",
    place: Place | None = None,
    *,
    reader: Readers = "static",
    against: str | None = None,
    top: int = 5,
    layer: str | None = None,
    find: Name | None = None,
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
    corpus: str | None = None,
    word_score: WordScore = "corrected",
    out: Path | str | None = None,
    allow_unknown: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Explain a passage and return the content of its result.json (docs/reports.md describes it).

    `find` (of `cache` alone) is a case that is looked for from the place on (`find_case`): the passage leads up to it.
    `against` is the name of a reader, or the folder of a run over the same vocabulary, to compare with; `layer` is the one
    that colours the words first; `word_score` says how tokens become a word's score. The result is written to `out`, else to
    RUN/explain-NAME with whatever is not usual added to the name; of a model from elsewhere (`hf:...`), which reads the
    `corpus` of this name or path, only where there is an `out`. Raises UserError.
    """
    check_explanation(name)
    check_word_score(word_score)
    make = EXPLANATIONS[name].run
    if make is None:
        raise UserError(f"`explain {name}` goes over a stretch of text; `backstory explain {name} --help` tells how")
    path, place, stack = Path(folder), place or Place(), parse_stack(reader)
    needed = EXPLANATIONS[name].needs
    if needed and needed not in [layer.name for layer in stack]:
        stack = parse_stack([*map(str, stack), needed])
    asked, reader = stack_name(parse_stack(reader)), stack_name(stack)
    _check(place)
    options = reading_options(
        place.split,
        place.text,
        reader=reader,
        precision=precision,
        device=device,
        data_dir=data_dir,
        corpus=corpus,
        allow_unknown=allow_unknown,
    )
    opened = open_at(path, options, place.at)
    EXPLANATIONS[name].check(opened)
    own_text, wanted, found = place.text is not None, place, None
    told = reading = progress or (lambda done, total: None)
    if find is not None:
        found, reading = _find(opened, name, find, place.at, told)
        place = _leading_to(found, opened, place)
    other = None if against is None else open_other(against, path, opened, options)
    compared = None if against is None else other_name(against)
    called = _folder(name, wanted, opened, asked, against, top, layer, find, word_score)
    destination = place_of(out, opened, called, "explanation")
    origin, began = {**opened.provenance(), "corpus": opened.dataset.describe()}, time.perf_counter()
    subject = _subject(opened, place, top, other and other[1], compared or "", found is not None, word_score)
    explained = make(subject, reading)
    words = explained.words or tuple(span.word for span in subject.spans)
    layers = _led_by(layer or (MASS if found else None), explained.layers)
    tokens = len(subject.ids) - subject.start
    named = title(opened, own_text, place.at) if found is None else case_title(opened, own_text, found)
    figures = {
        "explanation": name,
        "text": source_name(opened, own_text),
        "at": place.at,
        "context": subject.start,
        "tokens": tokens,
        **unknown_share(subject.vocabulary, opened.split, slice(place.at, place.at + tokens)).figures(),
        "unit": subject.vocabulary.tokenizer.unit,
        "word_score": word_score_of(subject.boundaries, subject.vocabulary),
        "reader": reader,
        "against": compared,
        **({} if other is None else {"against_weights": other[0].identity()["weights"]}),
        **explained.figures,
        **({} if found is None else {"found": {**found.as_dict(), "word": words[-1].text}}),
        "passage": to_json(Passage(words, layers, named, explained.note, explained.chosen)),
    }
    origin["seconds"] = round(time.perf_counter() - began, 1)
    for run in (opened.run, *([other[0]] if other else [])):
        run.check_unchanged(destination)
    return write_result(destination, "explanation", opened.run.name, figures, origin)


def _check(place: Place) -> None:
    if place.at < 0 or (place.context or 0) < 0:
        raise UserError("a passage begins at token 0 or later, after a context of 0 tokens or more")
    if not 0 < _words(place) <= MOST_WORDS:
        raise UserError(f"a passage has 1 to {MOST_WORDS:,} words, not {place.words:,}; choose fewer with --words")


def _words(place: Place) -> int:
    return WORDS if place.words is None else place.words


def _find(opened: EvalSetup, name: str, case: Name, at: int, told: Progress) -> tuple[Case, Progress]:
    """The case that is looked for, and what is told of the second reading, which is as long at most."""
    if name != "cache":
        raise UserError(f"cases are those of a cache, and `explain {name}` has none to find; leave --find out")
    before = len(opened.split.ids)
    found = find_case(opened, case, at, lambda done, total: told(done, 2 * total))
    return found, lambda done, total: told(before + done, before + total)


def _leading_to(found: Case, opened: EvalSetup, place: Place) -> Place:
    """The passage whose last word is that of the case, and which holds what its cache remembers, as far as there is room."""
    reader = opened.reader
    assert isinstance(reader, NeuralCache)
    words = min(reader.settings.window + 1, MOST_WORDS) if place.words is None else place.words
    at = max(0, found.target + 1 - words)
    leading = spans(opened.dataset.vocabulary, np.asarray(opened.split.ids[at : found.target + 1]), words)
    return replace(place, at=at, words=len(leading))


def _led_by(name: str | None, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers with the one of that name first. Raises UserError unless it is there and can colour words."""
    named = {layer.name: layer for layer in layers if layer.kind in ("sequential", "diverging", "weights")}
    if name is not None:
        check_name(name, named, "layer")
    return tuple(sorted(layers, key=lambda layer: layer.name != name))


def _subject(
    opened: EvalSetup, place: Place, top: int, against: Reader | None, name: str, last: bool, word_score: WordScore
) -> Subject:
    """`last`: the last word is the one that is told of first."""
    ids, vocabulary = opened.split.ids, opened.dataset.vocabulary
    longest = _words(place) * (1 if vocabulary.tokenizer.unit == "word" else 4 * LONGEST)
    found = spans(vocabulary, np.asarray(ids[place.at : place.at + longest]), _words(place))
    start = 0 if place.context is None else max(0, place.at - place.context)
    whole = ids[start : place.at + found[-1].end]
    return Subject(opened.reader, vocabulary, whole, place.at - start, found, top, against, name,
                   len(found) - 1 if last else None,
                   vocabulary.boundaries if word_score == "corrected" else None)  # fmt: skip


def _folder(
    name: str,
    place: Place,
    opened: EvalSetup,
    reader: str,
    against: str | None,
    top: int,
    layer: str | None,
    find: Name | None,
    word_score: WordScore,
) -> str:
    """The result's folder in the run: whatever is not usual is in its name, so that no passage takes another's place."""
    parts = (
        (text_part(opened, place.text is not None), "test"),
        (f"at{place.at}", "at0"),
        (f"words{_words(place)}", f"words{WORDS}"),
        (f"context{place.context}", "contextNone"),
        (reader, "static"),
        (opened.reader.precision.name, "float32"),
        (f"against-{against and other_part(against)}", "against-None"),
        (f"top{top}", "top5"),
        (f"layer-{layer}", "layer-None"),
        (f"find-{find}", "find-None"),
        (f"word-score-{word_score}", "word-score-corrected"),
    )
    return folder_name("explain", name, *(part for part, usual in parts if part != usual))
