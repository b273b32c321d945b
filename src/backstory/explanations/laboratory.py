"""Explain a passage with a trained run: find it, read it with what comes before it, and write result.json."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.config import UserError, check_name
from backstory.explanations.explain import EXPLANATIONS, check_explanation
from backstory.explanations.opening import open_at, open_other, other_name, other_part, source_name, text_part, title
from backstory.explanations.subject import Subject
from backstory.explanations.words import LONGEST, spans
from backstory.reading import Reader
from backstory.reading.evaluation import file_name
from backstory.reading.kinds import parse_stack, stack_name
from backstory.reading.opening import Opened, Readers
from backstory.reports.passage import MOST_WORDS, Layer, Passage, to_json
from backstory.storage.provenance import check_place, write_result


@dataclass(frozen=True)
class Place:
    """Which words are explained, and how much before them is read."""

    split: str | None = None
    """train, valid or test; None: test, unless a text is given."""
    at: int = 0
    """Token of the text at which the passage begins."""
    words: int = 200
    """Words of the passage, fewer where the text ends."""
    context: int | None = None
    """Tokens before it that are read; None: all there are."""
    text: Path | BinaryIO | None = None
    """A text of one's own in place of a split: a file by its path, or one open for bytes, which is read to its end."""


def explain_run(
    folder: Path | str,
    name: str = "surprisal",
    place: Place | None = None,
    *,
    reader: Readers = "static",
    against: str | None = None,
    top: int = 5,
    layer: str | None = None,
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
    out: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Explain a passage and return the content of its result.json (docs/reports.md describes it).

    `against` is the name of a reader, or the folder of a run over the same vocabulary, to compare with; `layer` is the one
    that colours the words first. The result is written to `out`, else to RUN/explain-NAME with whatever is not usual added
    to the name. Raises UserError.
    """
    check_explanation(name)
    make = EXPLANATIONS[name].run
    if make is None:
        raise UserError(f"`explain {name}` goes over a stretch of text; `backstory explain {name} --help` tells how")
    path, place, stack = Path(folder), place or Place(), parse_stack(reader)
    needed = EXPLANATIONS[name].needs
    if needed and needed not in [layer.name for layer in stack]:
        stack = parse_stack([*map(str, stack), needed])
    asked, reader = stack_name(parse_stack(reader)), stack_name(stack)
    _check(place)
    how = {"reader": reader, "precision": precision, "device": device}
    opened = open_at(path, place.split, place.text, place.at, data_dir, how)
    EXPLANATIONS[name].check(opened)
    own_text = place.text is not None
    other = None if against is None else open_other(against, path, opened, own_text, data_dir, how)[0]
    compared = None if against is None else other_name(against)
    destination = Path(out or path / _folder(name, place, opened, asked, against, top, layer))
    check_place(destination, "explanation")
    origin, began = {**opened.provenance(), "corpus": opened.dataset.describe()}, time.perf_counter()
    subject = _subject(opened, place, top, other, compared or "")
    explained = make(subject, progress or (lambda done, total: None))
    words = explained.words or tuple(span.word for span in subject.spans)
    layers, named = _led_by(layer, explained.layers), title(opened, own_text, place.at)
    figures = {
        "explanation": name,
        "text": source_name(opened, own_text),
        "at": place.at,
        "context": subject.start,
        "tokens": len(subject.ids) - subject.start,
        "unit": subject.vocabulary.tokenizer.unit,
        "reader": reader,
        "against": compared,
        **explained.figures,
        "passage": to_json(Passage(words, layers, named, explained.note, explained.chosen)),
    }
    origin["seconds"] = round(time.perf_counter() - began, 1)
    return write_result(destination, "explanation", path.name, figures, origin)


def _check(place: Place) -> None:
    if place.at < 0 or (place.context or 0) < 0:
        raise UserError("a passage begins at token 0 or later, after a context of 0 tokens or more")
    if not 0 < place.words <= MOST_WORDS:
        raise UserError(f"a passage has 1 to {MOST_WORDS:,} words, not {place.words:,}; choose fewer with --words")


def _led_by(name: str | None, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers with the one of that name first. Raises UserError unless it is there and can colour words."""
    named = {layer.name: layer for layer in layers if layer.kind in ("sequential", "diverging", "weights")}
    if name is not None:
        check_name(name, named, "layer")
    return tuple(sorted(layers, key=lambda layer: layer.name != name))


def _subject(opened: Opened, place: Place, top: int, against: Reader | None, name: str) -> Subject:
    ids, vocabulary = opened.split.ids, opened.dataset.vocabulary
    longest = place.words * (1 if vocabulary.tokenizer.unit == "word" else 4 * LONGEST)
    found = spans(vocabulary, np.asarray(ids[place.at : place.at + longest]), place.words)
    start = 0 if place.context is None else max(0, place.at - place.context)
    whole = ids[start : place.at + found[-1].end]
    return Subject(opened.reader, vocabulary, whole, place.at - start, found, top, against, name)


def _folder(
    name: str, place: Place, opened: Opened, reader: str, against: str | None, top: int, layer: str | None
) -> str:
    """The result's folder in the run: whatever is not usual is in its name, so that no passage takes another's place."""
    parts = (
        (text_part(opened, place.text is not None), "test"),
        (f"at{place.at}", "at0"),
        (f"words{place.words}", "words200"),
        (f"context{place.context}", "contextNone"),
        (reader, "static"),
        (opened.reader.precision.name, "float32"),
        (f"against-{against and other_part(against)}", "against-None"),
        (f"top{top}", "top5"),
        (f"layer-{layer}", "layer-None"),
    )
    return file_name("explain", name, *(part for part, usual in parts if part != usual))
