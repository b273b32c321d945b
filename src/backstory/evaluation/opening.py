"""Open what an evaluation reads: a trained run, its corpus or a user's own text, and a reader over the run."""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from backstory.config import TextConfig
from backstory.config.options import EvalOptions
from backstory.data import Dataset, Split, encode_bytes, encode_sources, unknown_share
from backstory.data.corpora.catalogue import find_text
from backstory.data.corpora.text_files import BLOCK, Source, raw_blocks
from backstory.data.corpora.unpacking import TextReader, is_plain
from backstory.data.encoding import TextLines
from backstory.data.overlap import check_splits_differ, overlap, overlaps
from backstory.models import device_name
from backstory.readers.base import Reader
from backstory.readers.registry import ConfiguredLayer, open_reader, prepared_files
from backstory.results.common import ProvenanceRecord
from backstory.runs.run import Run
from backstory.utils.errors import UserError, check_name, plural
from backstory.utils.scores import SplitOverlap, advice

Readers = str | Sequence[str]
"""One reader's name, or those of several that wrap each other."""
TRAINED_ON = ("train", "valid")
"""The splits that a model is trained on, and that its weights and the settings of its readers are chosen on."""


@dataclass(frozen=True)
class EvalSetup:
    """A trained run with the text to read and a reader over it."""

    run: Run
    dataset: Dataset
    split: Split
    """The text to read: a split of the dataset."""
    reader: Reader
    layers: tuple[ConfiguredLayer, ...]
    """The reader and those that it wraps, with their settings, the innermost first."""
    options: EvalOptions
    """The options that it was opened with."""
    lines: TextLines | None = None
    """The lines of the text, if each is scored by itself; they are the documents of the split."""

    def stack(self) -> list[Reader]:
        """Return the reader and those that it wraps, the innermost first."""
        return self.reader.stack()

    def provenance(self) -> ProvenanceRecord:
        """Return the provenance of a result, taken before the reading."""
        return origin_of(self.run, self.layers, self.reader, self.dataset.describe())

    def check_known(self) -> None:
        """Raise UserError if so much of the text is outside the vocabulary that a perplexity says nothing about it."""
        share = unknown_share(self.dataset.vocabulary, self.split)
        if share.meaningless:
            config = TextConfig() if self.run.config is None else self.run.config.text
            unit = self.dataset.vocabulary.tokenizer.unit
            source = f"the {self.split.name} split" if len(self.dataset.splits) > 1 else self.dataset.corpus
            helps = advice(share.cause, unit, config.minimum_count, config.maximum_size)
            raise UserError(
                f"{share.warning(f'the {plural(unit)} of {source}', helps)}, or read it with --allow-unknown"
            )

    def overlap(self, data_dir: Path | None, allow_equal: bool) -> list[SplitOverlap] | None:
        """Return how much of the text stands in the splits that the model was trained or chosen on.

        None if that cannot be measured: for a synthetic corpus, a model from elsewhere, or a user's own text where the
        training corpus is not there. Raises UserError for a test split that is the validation split.
        """
        if self.split.name == "test":
            check_splits_differ(self.dataset, allow_equal)
        if self.run.results is None:
            return None
        if self.options.corpus is None and (measured := overlaps(self.dataset)) is not None:
            return [one for one in measured if one.split == self.split.name]
        if self.dataset.source is not None:
            return None
        try:
            corpus = self.run.dataset(None, data_dir)
        except UserError:  # it has moved, or changed since
            return None
        if corpus.source is not None:
            return None
        return [overlap(corpus, self.split.ids, self.split.name, split) for split in TRAINED_ON]


def origin_of(run: Run, layers: Sequence[ConfiguredLayer], reader: Reader, corpus: dict[str, Any]) -> ProvenanceRecord:
    """Return the provenance of a result of a reader over a run, on a text with this description."""
    precision = reader.precision
    device = device_name(run.device)
    origin = ProvenanceRecord.begun(run.settings(), device, precision.name, precision.reason, corpus)
    return replace(origin, **run.identity(), prepared=prepared_files(run, layers, reader) or None)


def open_evaluation(
    model: Path | str | Run, options: Any = None, *, other_corpus: bool = False, **fields: Any
) -> EvalSetup:
    """Load a run with the text and the reader that the options name.

    `options` are EvalOptions, or those of another verb, of which the fields that they share are taken; `fields` replace them:
    `open_evaluation("runs/x", args, reader="cache", text=Path("a.txt"))`. A run reads a corpus that the options name with
    `other_corpus` only.

    Raises UserError, also if the corpus is not the one that the run was trained on, for a text that is empty, binary or not
    UTF-8, and unless `allow_unknown` for a text that is mostly outside the vocabulary.
    """
    options = EvalOptions.build(options, **fields)
    overrides = options.inference_overrides()
    run, reader, layers = open_reader(model, options.reader, options.precision, options.load_options(), overrides)
    lines = TextLines(with_text=options.per_line is not None) if options.each_line else None
    if options.text is not None:
        dataset = read_text(run, options.text, options.field, lines)
        split = dataset.splits["text"]
    else:
        open_corpus = run.other_dataset if other_corpus else run.dataset
        dataset = open_corpus(options.corpus, options.data_dir, options.field)
        check_name(options.split, dataset.splits, "split")
        if options.lengths:
            dataset = dataset.of_lengths(options.split, options.lengths)
        split = dataset.splits[options.split]
    if dataset.left_out and (options.text is not None or options.corpus is not None):
        # Training has warned of what the run's own corpus leaves out.
        warnings.warn(dataset.left_out, stacklevel=2)
    setup = EvalSetup(run, dataset, split, reader, layers, options, lines)
    if not options.allow_unknown:
        setup.check_known()
    return setup


def read_text(run: Run, text: Path | BinaryIO, field: str | None = None, lines: TextLines | None = None) -> Dataset:
    """Return a user's own text in the run's vocabulary, as a dataset with the one split `text`. Raises UserError.

    `field` holds the texts of a file of records; by default it is that of the run's corpus. With `lines`, each line is a
    document.
    """
    vocabulary, provenance, left_out = run.vocabulary, "a user's own text", ""
    files: list[Source] = []
    if isinstance(text, Path) and not is_plain(text):
        field = field or (TextConfig() if run.config is None else run.config.text).field
        corpus = find_text(text, TextReader(field, vocabulary.tokenizer.unit == "byte"))
        name, provenance, left_out = corpus.name, f"{provenance}: {corpus.provenance}", corpus.left_out
        files = corpus.sources["text"]
        split, sha256 = encode_sources(vocabulary, files, "text", name, lines)
    else:
        if isinstance(text, Path):
            files = [Source(text)]
            name, blocks = text.name, raw_blocks(files[0])
        else:
            name, blocks = str(getattr(text, "name", "the text")), iter(lambda: text.read(BLOCK), b"")
            name = "standard input" if name == "<stdin>" else name
        split, sha256 = encode_bytes(vocabulary, blocks, "text", name, lines)
    # The ids follow from the bytes and the vocabulary, and that from the text and the options it was made with.
    fingerprint = hashlib.sha256(f"{sha256} {run.corpus['fingerprint']}".encode()).hexdigest()
    return Dataset(name, vocabulary, {"text": split}, fingerprint, provenance, None, left_out, {"text": files})
