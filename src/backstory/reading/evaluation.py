"""Evaluate a trained run: read a split once with a reader, audited, and write the figures with their units."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from backstory.config import UserError, nearest, to_dict
from backstory.models import Precision, Prediction, choose_device, choose_precision, device_name
from backstory.models.loading import LoadedRun, load_run
from backstory.reading.audit import Audit, AuditReport
from backstory.reading.reader import Reader, StaticReader
from backstory.reading.stream import Block, Reading, block_count, read
from backstory.storage.provenance import check_place, provenance, write_result
from backstory.text import Dataset, Split, prepare


@dataclass(frozen=True)
class ReaderKind:
    """A kind of reader by what it does and how it is made for a loaded run."""

    description: str
    make: Callable[[LoadedRun, Precision], Reader]


READERS = {
    "static": ReaderKind(
        "the model as trained; nothing but its state changes while it reads",
        lambda run, precision: StaticReader(run.model, precision),
    )
}


@dataclass(frozen=True)
class Opened:
    """A trained run with its corpus and a reader over it."""

    run: LoadedRun
    dataset: Dataset
    split: Split
    reader: Reader

    def provenance(self) -> dict[str, Any]:
        """What a result of this reading says of how it came about, taken before the reading."""
        precision, device = self.reader.precision, next(self.run.model.parameters()).device
        config, corpus = to_dict(self.run.config), self.run.corpus
        return provenance(config, device_name(device), precision.name, precision.reason, corpus)


def open_run(
    folder: Path | str,
    split: str,
    *,
    reader: str = "static",
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
) -> Opened:
    """Load a run and its corpus for reading. Raises UserError, also when the corpus is not the one it was trained on."""
    if reader not in READERS:
        raise UserError(f"there is no reader '{reader}'{nearest(reader, READERS)}; `backstory ls readers` lists them")
    chosen = choose_device(device)
    run = load_run(Path(folder), chosen)
    dataset = prepare(*run.text_source(data_dir))
    if split not in dataset.splits:
        raise UserError(
            f"there is no split '{split}'{nearest(split, dataset.splits)}; there are {', '.join(dataset.splits)}"
        )
    if dataset.fingerprint != run.corpus["fingerprint"]:
        raise UserError(
            f"the corpus {dataset.corpus} is not the text that {folder} was trained on; give that text, or train again"
        )
    made = READERS[reader].make(run, choose_precision(precision, chosen))
    return Opened(run, dataset, dataset.splits[split], made)


def evaluate(
    folder: Path | str,
    split: str = "test",
    *,
    reader: str = "static",
    rows: int = 1,
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
    places: int = 8,
    out: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Read a split once and return the content of its result.json (docs/results.md describes it).

    It is written to `out`, else to RUN/evaluate-SPLIT, with whatever differs from a static float32 reading in one row added
    to the name, so that no reading takes another's place.
    `rows` above one reads faster, from an empty state at the start of every row, and says so in the result; `places` is how
    many random places the audit looks at; `progress` is told (tokens read, tokens in all). Raises UserError.
    """
    opened = open_run(folder, split, reader=reader, precision=precision, device=device, data_dir=data_dir)
    path = Path(folder)
    usual = {reader: "static", opened.reader.precision.name: "float32", f"rows{rows}": "rows1"}
    destination = Path(out or path / "-".join(["evaluate", split, *(k for k, v in usual.items() if k != v)]))
    check_place(destination, "evaluation")
    origin = opened.provenance()
    reading, audit = read_audited(opened, rows, places, progress)
    figures = {
        "split": split,
        "reader": opened.reader.name,
        "unit": opened.dataset.vocabulary.tokenizer.unit,
        "rows": reading.rows,
        **score(reading, opened.split, opened.dataset.lossless(split)),
        "audit": audit.as_dict(),
    }
    origin["seconds"] = round(reading.seconds, 1)
    return write_result(destination, "evaluation", path.name, figures, origin)


def read_audited(
    opened: Opened, rows: int, places: int, progress: Callable[[int, int], None] | None = None
) -> tuple[Reading, AuditReport]:
    """Read the opened split once from its first token to its last, audited on the way."""
    ids, done = opened.split.ids, 0
    audit = Audit(block_count(len(ids), rows, opened.reader.block), places)

    def each(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        done += int(block.scored.sum())
        if progress is not None:
            progress(done, len(ids))

    reading = read(opened.reader, ids, opened.dataset.vocabulary.start, rows=rows, observer=audit, each=each)
    return reading, audit.report


def score(reading: Reading, split: Split, lossless: bool) -> dict[str, Any]:
    """Figures of a reading; bits per character and byte only where the tokens hold all of the text."""
    bits = reading.nats / math.log(2)
    total = bits * reading.tokens
    return {
        "tokens": reading.tokens,
        "nats_per_token": reading.nats,
        "perplexity": math.exp(min(reading.nats, 700)),
        "bits_per_token": bits,
        "bits_per_character": total / split.characters if lossless else None,
        "bits_per_byte": total / split.bytes if lossless else None,
    }


def as_json(result: dict[str, Any]) -> str:
    """A result as `--json` prints it."""
    return json.dumps(result, indent=1, allow_nan=False)
