"""Open a trained run to read with: the model, its corpus or a text of one's own, and a reader, or several stacked."""

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from backstory.config import TextConfig, UserError, check_name, plural
from backstory.config.unknown_share import advice
from backstory.data import Dataset, Split, encode_bytes, unknown_share
from backstory.data.corpora.text_files import BLOCK, Source, raw_blocks
from backstory.models import choose_device, choose_precision, device_name
from backstory.readers.base import Reader
from backstory.readers.registry import Chosen, build, choose, parse_stack, prepared_files
from backstory.runs.run import Run, load_run
from backstory.storage.provenance import provenance

ELSEWHERE = {"hf": "backstory.interop.inwards"}
"""Where models come from that are no run folders, by what their names begin with: modules with a `load(name, device)`, which
are imported when one is named."""
Readers = str | Sequence[str]
"""One reader's name, or those of several that are stacked on each other."""


@dataclass(frozen=True)
class Opened:
    """A trained run with its corpus and a reader over it."""

    run: Run
    dataset: Dataset
    split: Split
    reader: Reader
    layers: tuple[Chosen, ...]
    """What the reader is made of, the innermost first."""

    def stack(self) -> list[Reader]:
        """The reader and those it goes around, the innermost first."""
        found: list[Reader] = []
        reader: Reader | None = self.reader
        while reader is not None:
            found.insert(0, reader)
            reader = reader.inner
        return found

    def provenance(self) -> dict[str, Any]:
        """What a result of this reading says of how it came about, taken before the reading."""
        return origin_of(self.run, self.layers, self.reader, self.dataset.describe())

    def check_known(self) -> None:
        """Raise UserError where so much of the text is outside the vocabulary that a perplexity says nothing about it."""
        share = unknown_share(self.dataset.vocabulary, self.split)
        if share.meaningless:
            unit, made = self.dataset.vocabulary.tokenizer.unit, TextConfig()
            made = made if self.run.config is None else self.run.config.text
            source = f"the {self.split.name} split" if len(self.dataset.splits) > 1 else self.dataset.corpus
            helps = advice(share.cause, unit, made.minimum_count, made.maximum_size)
            raise UserError(
                f"{share.warning(f'the {plural(unit)} of {source}', helps)}, or read it with --allow-unknown"
            )


def origin_of(run: Run, layers: Sequence[Chosen], reader: Reader, corpus: dict[str, Any]) -> dict[str, Any]:
    """What a result of a reader over a run, with a text that is described so, says of how it came about."""
    precision, device = reader.precision, next(run.model.parameters()).device
    origin = provenance(run.settings(), device_name(device), precision.name, precision.reason, corpus)
    prepared = prepared_files(run, layers, reader)
    return origin | run.identity() | ({"prepared": prepared} if prepared else {})


def load_model(name: Path | str, device: torch.device) -> Run:
    """A run by its folder, or a model from elsewhere by a name such as `hf:gpt2`. Raises UserError."""
    if is_elsewhere(name):
        return importlib.import_module(ELSEWHERE[str(name).partition(":")[0]]).load(str(name), device)
    return load_run(Path(name), device)


def is_elsewhere(name: Path | str) -> bool:
    """Whether a name is that of a model from elsewhere, which has no corpus of its own."""
    source, colon, _ = str(name).partition(":")
    return bool(colon) and source in ELSEWHERE and not Path(name).is_dir()


def open_reader(
    folder: Path | str,
    reader: Readers = "static",
    precision: str = "float32",
    device: str = "auto",
    addressing: str | None = None,
) -> tuple[Run, Reader, tuple[Chosen, ...]]:
    """Load a run and make a reader over it, one or several on each other (see `parse_stack`).

    `addressing` takes the place of the one that the run's external memory was trained with. Raises UserError.
    """
    stack, place = parse_stack(reader), choose_device(device)
    run = load_model(folder, place)
    if addressing is not None:
        run = run.overridden({"core.addressing": addressing})
    layers = choose(stack, run)
    return run, build(layers, run, choose_precision(precision, place)), layers


def open_run(
    folder: Path | str,
    split: str,
    *,
    reader: Readers = "static",
    precision: str = "float32",
    device: str = "auto",
    data_dir: Path | None = None,
    corpus: str | None = None,
    lengths: tuple[int, ...] = (),
    addressing: str | None = None,
    allow_unknown: bool = True,
) -> Opened:
    """Load a run and its corpus for reading, a model from elsewhere with the `corpus` of this name or path.

    `lengths`: the split of a drawn task is drawn with these. Raises UserError, also when the corpus is not the one that a run
    was trained on, and unless `allow_unknown` for a split that is mostly outside the vocabulary.
    """
    run, made, layers = open_reader(folder, reader, precision, device, addressing)
    dataset = run.dataset(corpus, data_dir)
    check_name(split, dataset.splits, "split")
    if lengths:
        dataset = dataset.of_lengths(split, lengths)
    opened = Opened(run, dataset, dataset.splits[split], made, layers)
    if not allow_unknown:
        opened.check_known()
    return opened


def open_text(
    folder: Path | str,
    text: Path | BinaryIO,
    *,
    reader: Readers = "static",
    precision: str = "float32",
    device: str = "auto",
    addressing: str | None = None,
    allow_unknown: bool = True,
) -> Opened:
    """Load a run and a text of one's own, a file by its path or one open for bytes, as the one split `text`.

    Raises UserError, also for a text that is empty, binary or not UTF-8, or holds a word that the vocabulary cannot stand for,
    and unless `allow_unknown` for one that is mostly outside the vocabulary.
    """
    run, made, layers = open_reader(folder, reader, precision, device, addressing)
    if isinstance(text, Path):
        name, blocks = text.name, raw_blocks(Source(text))
    else:
        name, blocks = str(getattr(text, "name", "the text")), iter(lambda: text.read(BLOCK), b"")
        name = "standard input" if name == "<stdin>" else name
    split, sha256 = encode_bytes(run.vocabulary, blocks, "text", name)
    # The ids follow from the bytes and the vocabulary, and that from the text and the options it was made with.
    fingerprint = hashlib.sha256(f"{sha256} {run.corpus['fingerprint']}".encode()).hexdigest()
    dataset = Dataset(name, run.vocabulary, {"text": split}, fingerprint, "a text of one's own")
    opened = Opened(run, dataset, split, made, layers)
    if not allow_unknown:
        opened.check_known()
    return opened
