"""Explain a passage with a trained run: find it, read it with what comes before it, and write result.json."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import UserError, nearest
from backstory.explanations.explain import EXPLANATIONS, check_explanation
from backstory.explanations.subject import Subject
from backstory.explanations.words import LONGEST, spans
from backstory.models import choose_device, choose_precision
from backstory.models.loading import load_run
from backstory.reading import Reader
from backstory.reading.evaluation import READERS, Opened, open_run
from backstory.reports.passage import MOST_WORDS, Layer, Passage, to_json
from backstory.storage.provenance import check_place, write_result
from backstory.text import Dataset, encode_split
from backstory.text.files import Source, digest, text_blocks


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
    text: Path | None = None
    """A text file of one's own in place of a split."""

    @property
    def source(self) -> str:
        """The text as results name it."""
        return self.text.name if self.text else self.split or "test"


def explain_run(
    folder: Path | str,
    name: str = "surprisal",
    place: Place | None = None,
    *,
    reader: str = "static",
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
    path, place = Path(folder), place or Place()
    _check(place)
    settings = {"precision": precision, "device": device, "data_dir": data_dir}
    opened = _open(path, place, reader, **settings)
    if place.at >= len(opened.split.ids):
        raise UserError(
            f"--at {place.at} is beyond the {place.source} text, which has {len(opened.split.ids):,} tokens"
        )
    other = None if against is None else _open_other(against, path, place, reader, opened, **settings)
    compared = None if against is None else against if against in READERS else Path(against).resolve().name
    destination = Path(out or path / _folder(name, place, opened, compared))
    check_place(destination, "explanation")
    origin, began = {**opened.provenance(), "corpus": opened.dataset.describe()}, time.perf_counter()
    subject = _subject(opened, place, top, other and other.reader, compared or "")
    explained = EXPLANATIONS[name].run(subject, progress or (lambda done, total: None))
    words, layers = tuple(span.word for span in subject.spans), _led_by(layer, explained.layers)
    figures = {
        "explanation": name,
        "text": place.source,
        "at": place.at,
        "context": subject.start,
        "tokens": len(subject.ids) - subject.start,
        "unit": subject.vocabulary.tokenizer.unit,
        "reader": opened.reader.name,
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


def _open(path: Path, place: Place, reader: str, **settings: Any) -> Opened:
    """The run with the split, or with a text of one's own in the place of a corpus."""
    if place.text is None:
        return open_run(path, place.split or "test", reader=reader, **settings)
    if reader not in READERS:
        raise UserError(f"there is no reader '{reader}'{nearest(reader, READERS)}; `backstory ls readers` lists them")
    device = choose_device(settings["device"])
    run, source = load_run(path, device), Source(place.text)
    text = "".join(text_blocks(source, as_is=run.vocabulary.tokenizer.unit == "byte"))
    split = encode_split(run.vocabulary, text, str(place.text))
    dataset = Dataset(place.text.name, run.vocabulary, {split.name: split}, digest(source), f"the file {place.text}")
    return Opened(run, dataset, split, READERS[reader].make(run, choose_precision(settings["precision"], device)))


def _open_other(against: str, path: Path, place: Place, reader: str, opened: Opened, **settings: Any) -> Opened:
    """The other reader of the same run, or the same reader of another run. Raises UserError unless they can be compared."""
    if against in READERS:
        return _open(path, place, against, **settings)
    folder = Path(against)
    if not folder.is_dir():
        raise UserError(
            f"'{against}' is neither a reader{nearest(against, READERS)} nor a run folder; "
            f"`backstory ls readers` lists the readers"
        )
    other = _open(folder, place, reader, **settings)
    if other.dataset.vocabulary.words != opened.dataset.vocabulary.words:
        raise UserError(f"{folder} has another vocabulary than {path}, so their surprisals do not compare")
    if not np.array_equal(other.split.ids, opened.split.ids):
        raise UserError(f"{folder} reads another text as its {place.source} split than {path}; give --text")
    return other


def _led_by(name: str | None, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers with the one of that name first. Raises UserError unless it is there and can colour words."""
    named = {layer.name: layer for layer in layers if layer.kind in ("sequential", "diverging", "weights")}
    if name is not None and name not in named:
        raise UserError(f"there is no layer '{name}'{nearest(name, named)}; there are {', '.join(named)}")
    return tuple(sorted(layers, key=lambda layer: layer.name != name))


def _subject(opened: Opened, place: Place, top: int, against: Reader | None, name: str) -> Subject:
    ids, vocabulary = opened.split.ids, opened.dataset.vocabulary
    longest = place.words * (1 if vocabulary.tokenizer.unit == "word" else 4 * LONGEST)
    found = spans(vocabulary, np.asarray(ids[place.at : place.at + longest]), place.words)
    start = 0 if place.context is None else max(0, place.at - place.context)
    whole = ids[start : place.at + found[-1].end]
    return Subject(opened.reader, vocabulary, whole, place.at - start, found, top, against, name)


def _title(place: Place, opened: Opened) -> str:
    text = f"{opened.dataset.corpus} ({place.source})" if place.text is None else place.source
    return f"{text}, from {opened.dataset.vocabulary.tokenizer.unit} {place.at:,}" if place.at else text


def _folder(name: str, place: Place, opened: Opened, against: str | None) -> str:
    """The result's folder in the run: whatever is not usual is in its name, so that no passage takes another's place."""
    parts = (
        (place.source, "test" if place.text is None else ""),
        (f"at{place.at}", "at0"),
        (f"words{place.words}", "words200"),
        (f"context{place.context}", "contextNone"),
        (opened.reader.name, "static"),
        (opened.reader.precision.name, "float32"),
        (f"against-{against}", "against-None"),
    )
    told = "-".join(["explain", name, *(part for part, usual in parts if part != usual)])
    return re.sub(r"[^\w.-]+", "_", told)
