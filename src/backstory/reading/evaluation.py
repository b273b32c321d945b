"""Evaluate a trained run: read a split or a text once with a reader, audited, and write the figures with their units."""

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from backstory.config import UserError, check_name, to_dict
from backstory.models import Precision, Prediction, choose_device, choose_precision, device_name
from backstory.models.loading import LoadedRun, load_run
from backstory.reading.audit import Audit, AuditReport
from backstory.reading.per_token import Each, check_per_token, per_token_file
from backstory.reading.reader import Reader, StaticReader
from backstory.reading.stream import Block, Reading, block_count, read
from backstory.storage.provenance import check_place, provenance, write_result
from backstory.text import Dataset, Split, Vocabulary, encode_bytes, lossless, prepare, unknown_tokens
from backstory.text.files import BLOCK, Source, raw_blocks


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
        return origin_of(self.run, self.reader, self.dataset.describe())


def origin_of(run: LoadedRun, reader: Reader, corpus: dict[str, Any]) -> dict[str, Any]:
    """What a result of a reader over a run, with a text that is described so, says of how it came about."""
    precision, device = reader.precision, next(run.model.parameters()).device
    return provenance(to_dict(run.config), device_name(device), precision.name, precision.reason, corpus)


def open_reader(
    folder: Path | str, reader: str = "static", precision: str = "float32", device: str = "auto"
) -> tuple[LoadedRun, Reader]:
    """Load a run and make a reader over it. Raises UserError."""
    check_name(reader, READERS, "reader", "backstory ls readers")
    chosen = choose_device(device)
    run = load_run(Path(folder), chosen)
    return run, READERS[reader].make(run, choose_precision(precision, chosen))


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
    run, made = open_reader(folder, reader, precision, device)
    dataset = prepare(*run.text_source(data_dir))
    check_name(split, dataset.splits, "split")
    if dataset.fingerprint != run.corpus["fingerprint"]:
        raise UserError(
            f"the corpus {dataset.corpus} is not the text that {folder} was trained on; give that text, or train again"
        )
    return Opened(run, dataset, dataset.splits[split], made)


def open_text(
    folder: Path | str,
    text: Path | BinaryIO,
    *,
    reader: str = "static",
    precision: str = "float32",
    device: str = "auto",
) -> Opened:
    """Load a run and a text of one's own, a file by its path or one open for bytes, as the one split `text`.

    Raises UserError, also for a text that is empty, binary or not UTF-8, or holds a word that the vocabulary cannot stand for.
    """
    run, made = open_reader(folder, reader, precision, device)
    if isinstance(text, Path):
        name, blocks = text.name, raw_blocks(Source(text))
    else:
        name, blocks = str(getattr(text, "name", "the text")), iter(lambda: text.read(BLOCK), b"")
        name = "standard input" if name == "<stdin>" else name
    split, sha256 = encode_bytes(run.vocabulary, blocks, "text", name)
    # The ids follow from the bytes and the vocabulary, and that from the text and the options it was made with.
    fingerprint = hashlib.sha256(f"{sha256} {run.corpus['fingerprint']}".encode()).hexdigest()
    dataset = Dataset(name, run.vocabulary, {"text": split}, fingerprint, "a text of one's own")
    return Opened(run, dataset, split, made)


def evaluate(
    folder: Path | str,
    split: str = "test",
    *,
    text: Path | BinaryIO | None = None,
    reader: str = "static",
    rows: int = 1,
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
    places: int = 8,
    out: Path | str | None = None,
    per_token: Path | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Read a split, or a text, once and return the content of its result.json (docs/results.md describes it).

    It is written to `out`, else to RUN/evaluate-SPLIT, with whatever differs from a static float32 reading in one row added
    to the name, so that no reading takes another's place. `text`, a file by its path or one open for bytes, is read
    instead of a split; its result is written only where there is an `out`.
    `rows` above one reads faster, from an empty state at the start of every row, and says so in the result; `places` is how
    many random places the audit looks at; `per_token` is a file for the figures of every token, which takes the place of
    another only with `overwrite`; `progress` is told (tokens read, tokens in all). Raises UserError.
    """
    if per_token is not None:
        check_per_token(per_token, rows, overwrite)
    how = {"reader": reader, "precision": precision, "device": device}
    opened = open_run(folder, split, **how, data_dir=data_dir) if text is None else open_text(folder, text, **how)
    if text is None:
        usual = {reader: "static", opened.reader.precision.name: "float32", f"rows{rows}": "rows1"}
        out = out or Path(folder, "-".join(["evaluate", split, *(k for k, v in usual.items() if k != v)]))
    if rows > len(opened.split.ids):
        raise UserError(f"the text has {len(opened.split.ids):,} tokens, fewer than {rows:,} rows; use fewer --rows")
    destination = Path(out) if out else None
    if destination is not None:
        check_place(destination, "evaluation")
    origin, vocabulary = opened.provenance(), opened.dataset.vocabulary
    told = None if per_token is None else per_token_file(per_token, vocabulary, opened.split, opened.reader.precision)
    with told or nullcontext() as each:
        reading, audit = read_audited(opened, rows, places, progress, each)
    figures = {
        "split": opened.split.name,
        "reader": opened.reader.name,
        "unit": vocabulary.tokenizer.unit,
        "rows": reading.rows,
        **score(reading, opened.split, vocabulary),
        "audit": audit.as_dict(),
    }
    origin["seconds"] = round(reading.seconds, 1)
    return write_result(destination, "evaluation", Path(folder).name, figures, origin)


def read_audited(
    opened: Opened,
    rows: int,
    places: int,
    progress: Callable[[int, int], None] | None = None,
    each: Each | None = None,
) -> tuple[Reading, AuditReport]:
    """Read the opened split once from its first token to its last, audited on the way; `each` is told of every block."""
    ids, done = opened.split.ids, 0
    audit = Audit(block_count(len(ids), rows, opened.reader.block), places)

    def watch(block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        nonlocal done
        if each is not None:
            each(block, prediction, log_prob)
        done += int(block.scored.sum())
        if progress is not None:
            progress(done, len(ids))

    reading = read(opened.reader, ids, opened.dataset.vocabulary.start, rows=rows, observer=audit, each=watch)
    return reading, audit.report


def score(reading: Reading, split: Split, vocabulary: Vocabulary) -> dict[str, Any]:
    """Figures of a reading; those per word, character and byte only where the tokens hold all of the text.

    A text's words are what stands between white space, and the end of every line: its tokens, where the tokenizer is `words`.
    """
    bits, total = reading.nats / math.log(2), reading.nats * reading.tokens
    whole = lossless(vocabulary, split)
    per_word = total / split.words if whole else reading.nats if vocabulary.tokenizer.name == "words" else None
    return {
        "tokens": reading.tokens,
        "unknown_tokens": unknown_tokens(vocabulary, split),
        "nats_per_token": reading.nats,
        "perplexity": _exp(reading.nats),
        "bits_per_token": bits,
        "bits_per_character": total / math.log(2) / split.characters if whole else None,
        "bits_per_byte": total / math.log(2) / split.bytes if whole else None,
        "words": None if per_word is None else split.words,
        "nats_per_word": per_word,
        "perplexity_per_word": None if per_word is None else _exp(per_word),
    }


def _exp(nats: float) -> float:
    return math.exp(min(nats, 700))


def as_json(result: dict[str, Any]) -> str:
    """A result as `--json` prints it."""
    return json.dumps(result, indent=1, allow_nan=False)
