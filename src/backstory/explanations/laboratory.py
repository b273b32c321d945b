"""Explain a passage with a trained run: find it, read it with what comes before it, and write result.json."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.config import UserError, check_name, nearest
from backstory.explanations.explain import EXPLANATIONS, check_explanation
from backstory.explanations.subject import Subject
from backstory.explanations.words import LONGEST, spans
from backstory.reading import Reader
from backstory.reading.evaluation import file_name
from backstory.reading.kinds import READERS, names_readers, parse_stack, stack_name
from backstory.reading.opening import Opened, Readers, open_reader, open_run, open_text
from backstory.reports.passage import MOST_WORDS, Layer, Passage, to_json
from backstory.storage.provenance import check_place, write_result

FEW = 8
"""Digits (hex) that tell texts and runs of one name apart in a folder's name."""
SHORT = 40
"""Characters of their names in it."""


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
    path, place, stacked = Path(folder), place or Place(), stack_name(parse_stack(reader))
    _check(place)
    how = {"reader": reader, "precision": precision, "device": device}
    if place.text is None:
        opened = open_run(path, place.split or "test", **how, data_dir=data_dir)
    else:
        opened = open_text(path, place.text, **how)
    source = _source(place, opened)
    if place.at >= len(opened.split.ids):
        raise UserError(f"--at {place.at} is beyond the {source} text, which has {len(opened.split.ids):,} tokens")
    other = None if against is None else _open_other(against, path, place, opened, data_dir, how)
    compared = None if against is None else against if names_readers(against) else Path(against).resolve().name
    destination = Path(out or path / _folder(name, place, opened, stacked, against, top, layer))
    check_place(destination, "explanation")
    origin, began = {**opened.provenance(), "corpus": opened.dataset.describe()}, time.perf_counter()
    subject = _subject(opened, place, top, other, compared or "")
    explained = EXPLANATIONS[name].run(subject, progress or (lambda done, total: None))
    words, layers = tuple(span.word for span in subject.spans), _led_by(layer, explained.layers)
    figures = {
        "explanation": name,
        "text": source,
        "at": place.at,
        "context": subject.start,
        "tokens": len(subject.ids) - subject.start,
        "unit": subject.vocabulary.tokenizer.unit,
        "reader": stacked,
        "against": compared,
        **explained.figures,
        "passage": to_json(Passage(words, layers, _title(place, opened), explained.note)),
    }
    origin["seconds"] = round(time.perf_counter() - began, 1)
    return write_result(destination, "explanation", path.name, figures, origin)


def _check(place: Place) -> None:
    if place.text is not None and place.split is not None:
        raise UserError("--text and --split exclude each other; give one of them")
    if place.at < 0 or (place.context or 0) < 0:
        raise UserError("a passage begins at token 0 or later, after a context of 0 tokens or more")
    if not 0 < place.words <= MOST_WORDS:
        raise UserError(f"a passage has 1 to {MOST_WORDS:,} words, not {place.words:,}; choose fewer with --words")


def _source(place: Place, opened: Opened) -> str:
    """The text as results name it."""
    return opened.split.name if place.text is None else opened.dataset.corpus


def _open_other(
    against: str, path: Path, place: Place, opened: Opened, data_dir: Path | None, how: dict[str, Any]
) -> Reader:
    """The other reader of the same run, or the same reader of another run. Raises UserError unless they can be compared.

    A text of one's own is not read again: it may be a pipe, and its ids are those of the vocabulary that both runs have.
    """
    if names_readers(against):
        return open_reader(path, **{**how, "reader": against})[1]
    folder = Path(against)
    if not folder.is_dir():
        raise UserError(
            f"'{against}' is neither a reader{nearest(against, READERS)} nor a run folder; "
            f"`backstory ls readers` lists the readers"
        )
    theirs = open_run(folder, opened.split.name, **how, data_dir=data_dir) if place.text is None else None
    run, other = (theirs.run, theirs.reader) if theirs else open_reader(folder, **how)[:2]
    if run.vocabulary.words != opened.dataset.vocabulary.words:
        raise UserError(f"{folder} has another vocabulary than {path}, so their surprisals do not compare")
    if theirs and not np.array_equal(theirs.split.ids, opened.split.ids):
        raise UserError(f"{folder} reads another text as its {opened.split.name} split than {path}; give --text")
    return other


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


def _title(place: Place, opened: Opened) -> str:
    source = _source(place, opened)
    text = f"{opened.dataset.corpus} ({source})" if place.text is None else source
    return f"{text}, from {opened.dataset.vocabulary.tokenizer.unit} {place.at:,}" if place.at else text


def _folder(
    name: str, place: Place, opened: Opened, reader: str, against: str | None, top: int, layer: str | None
) -> str:
    """The result's folder in the run: whatever is not usual is in its name, so that no passage takes another's place."""
    other = against
    if against is not None and not names_readers(against):
        folder = Path(against).resolve()
        other = f"{folder.name[:SHORT]}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:FEW]}"
    text = f"{opened.dataset.corpus[:SHORT]}-{opened.dataset.fingerprint[:FEW]}"
    parts = (
        (opened.split.name if place.text is None else text, "test"),
        (f"at{place.at}", "at0"),
        (f"words{place.words}", "words200"),
        (f"context{place.context}", "contextNone"),
        (reader, "static"),
        (opened.reader.precision.name, "float32"),
        (f"against-{other}", "against-None"),
        (f"top{top}", "top5"),
        (f"layer-{layer}", "layer-None"),
    )
    return file_name("explain", name, *(part for part, usual in parts if part != usual))
