"""Text of an explanation: the run with the text that it reads, and the reader or run that it is compared with."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from backstory.config import UserError, nearest
from backstory.config.options import EvalOptions, ExplanationOptions
from backstory.evaluation.opening import EvalSetup, open_evaluation, open_reader
from backstory.readers import Reader
from backstory.readers.registry import READERS, ConfiguredLayer, names_readers
from backstory.runs.run import Run, is_elsewhere
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place

DIGITS = 8
"""Hexadecimal digits that tell texts and runs of one name apart in a folder's name."""
SHORT = 40
"""Characters of their names in it."""


@dataclass(frozen=True)
class ExplainedText:
    """An open run with the text to explain, a split or a text of one's own."""

    run: Path
    """The run as it was named."""
    opened: EvalSetup
    reading: EvalOptions
    """How it was opened."""
    options: ExplanationOptions

    @staticmethod
    def open(
        run: Path | str, reader: str, options: ExplanationOptions, text: Path | BinaryIO | None
    ) -> "ExplainedText":
        """Open a run with a split (else test) or a text of one's own that reaches to token `at`. Raises UserError."""
        if text is not None and options.split is not None:
            raise UserError("--text and --split exclude each other; give one of them")
        reading = EvalOptions.build(
            split=options.split or "test",
            text=text,
            reader=reader,
            precision=options.precision,
            device=options.device,
            data_dir=options.data_dir,
            corpus=options.corpus,
            allow_unknown=options.allow_unknown,
        )
        source = ExplainedText(Path(run), open_evaluation(run, reading), reading, options)
        opened = source.opened
        if options.at >= len(opened.split.ids):
            raise UserError(
                f"--at {options.at} is beyond the {source.name} text, which has {len(opened.split.ids):,} tokens"
            )
        return source

    def open_other(self, against: str) -> tuple[Run, Reader, tuple[ConfiguredLayer, ...]]:
        """Open another reader of the same run, or the same reader of another run.

        Raises UserError unless they can be compared. A text of one's own is not read again: it may be a pipe, and its ids are
        those of the vocabulary that both runs have.
        """
        reading, opened = self.reading, self.opened
        if names_readers(against):
            return open_reader(self.run, against, reading.precision, reading.device)
        folder = Path(against)
        if not folder.is_dir() and not is_elsewhere(against):
            raise UserError(
                f"'{against}' is neither a reader{nearest(against, READERS)} nor a run folder; "
                f"`backstory ls readers` lists the readers"
            )
        if self.own_text:
            theirs, (run, other, layers) = None, open_reader(folder, reading.reader, reading.precision, reading.device)
        else:
            theirs = open_evaluation(folder, EvalOptions.build(reading, allow_unknown=True))
            run, other, layers = theirs.run, theirs.reader, theirs.layers
        if run.vocabulary.words != opened.dataset.vocabulary.words:
            raise UserError(f"{folder} has another vocabulary than {self.run}, so their surprisals do not compare")
        if theirs and not np.array_equal(theirs.split.ids, opened.split.ids):
            raise UserError(
                f"{folder} reads another text as its {opened.split.name} split than {self.run}; give --text"
            )
        return run, other, layers

    def destination(self, folder: str, kind: str) -> Path | None:
        """Return where a result of this kind goes: to `--out`, else to the folder in the run.

        None for a model from elsewhere without `--out`. Raises UserError if it cannot be written.
        """
        results = self.opened.run.results
        path = self.options.out or (None if results is None else within(results, folder))
        if path is not None:
            check_place(path, kind)
        return path

    @property
    def own_text(self) -> bool:
        """True for a text of one's own, in place of a split."""
        return self.reading.text is not None

    @property
    def name(self) -> str:
        """Name of the text in results."""
        return self.opened.dataset.corpus if self.own_text else self.opened.split.name

    @property
    def title(self) -> str:
        """Name of the text for a person: `stdlib (test)`."""
        return self.name if self.own_text else f"{self.opened.dataset.corpus} ({self.name})"

    def title_from(self, at: int) -> str:
        """Return the title of a passage: `stdlib (test), from word 5,000`."""
        return f"{self.title}, from {self.opened.dataset.vocabulary.tokenizer.unit} {at:,}" if at else self.title

    @property
    def folder_part(self) -> str:
        """Name of the text in folders: a split, or a text of one's own with some digits of its fingerprint."""
        dataset = self.opened.dataset
        return f"{dataset.corpus[:SHORT]}-{dataset.fingerprint[:DIGITS]}" if self.own_text else self.name


def other_name(against: str) -> str:
    """Return what results call a reader, or another run: the name of its folder."""
    return against if names_readers(against) else Path(against).resolve().name


def other_folder_part(against: str) -> str:
    """Return the same for the name of a result's folder: two runs of one name differ."""
    if names_readers(against):
        return against
    folder = Path(against).resolve()
    return f"{folder.name[:SHORT]}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:DIGITS]}"
