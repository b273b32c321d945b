"""Open what an explanation reads: a run with its text, and what it is compared with, a reader or another run."""

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.config import UserError, nearest
from backstory.config.eval_options import EvalOptions
from backstory.evaluation.opening import EvalSetup, open_evaluation, open_reader
from backstory.explanations.cases import CASES, Case
from backstory.readers import Reader
from backstory.readers.registry import READERS, Chosen, names_readers
from backstory.runs.run import Run, is_elsewhere
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place

FEW = 8
"""Digits (hex) that tell texts and runs of one name apart in a folder's name."""
SHORT = 40
"""Characters of their names in it."""


def reading_options(split: str | None, text: Path | BinaryIO | None, **fields: Any) -> EvalOptions:
    """Return the options that read a split (None: test) or a text of one's own. Raises UserError if both are given."""
    if text is not None and split is not None:
        raise UserError("--text and --split exclude each other; give one of them")
    return EvalOptions.build(split=split or "test", text=text, **fields)


def open_at(path: Path, options: EvalOptions, at: int) -> EvalSetup:
    """Open a run with a text that reaches to token `at`. Raises UserError."""
    opened = open_evaluation(path, options)
    if at >= len(opened.split.ids):
        source = source_name(opened, options.text is not None)
        raise UserError(f"--at {at} is beyond the {source} text, which has {len(opened.split.ids):,} tokens")
    return opened


def open_other(
    against: str, path: Path, opened: EvalSetup, options: EvalOptions
) -> tuple[Run, Reader, tuple[Chosen, ...]]:
    """Open another reader of the same run, or the same reader of another run. Raises UserError unless they can be compared.

    A text of one's own is not read again: it may be a pipe, and its ids are those of the vocabulary that both runs have.
    """
    if names_readers(against):
        return open_reader(path, against, options.precision, options.device)
    folder = Path(against)
    if not folder.is_dir() and not is_elsewhere(against):
        raise UserError(
            f"'{against}' is neither a reader{nearest(against, READERS)} nor a run folder; "
            f"`backstory ls readers` lists the readers"
        )
    if options.text is None:
        theirs = open_evaluation(folder, EvalOptions.build(options, allow_unknown=True))
        run, other, layers = theirs.run, theirs.reader, theirs.layers
    else:
        theirs = None
        run, other, layers = open_reader(folder, options.reader, options.precision, options.device)
    if run.vocabulary.words != opened.dataset.vocabulary.words:
        raise UserError(f"{folder} has another vocabulary than {path}, so their surprisals do not compare")
    if theirs and not np.array_equal(theirs.split.ids, opened.split.ids):
        raise UserError(f"{folder} reads another text as its {opened.split.name} split than {path}; give --text")
    return run, other, layers


def place_of(out: Path | str | None, opened: EvalSetup, folder: str, kind: str) -> Path | None:
    """Where a result of this kind goes: to `out`, else to the folder in the run; None for a model from elsewhere without `out`.

    Raises UserError where it cannot be written.
    """
    results = opened.run.results
    place = Path(out) if out else None if results is None else within(results, folder)
    if place is not None:
        check_place(place, kind)
    return place


def other_name(against: str) -> str:
    """How results call it: a reader by its name, a run by that of its folder."""
    return against if names_readers(against) else Path(against).resolve().name


def other_part(against: str) -> str:
    """The same for the name of a result's folder: two runs of one name differ."""
    if names_readers(against):
        return against
    folder = Path(against).resolve()
    return f"{folder.name[:SHORT]}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:FEW]}"


def source_name(opened: EvalSetup, own_text: bool) -> str:
    """The text as results name it."""
    return opened.dataset.corpus if own_text else opened.split.name


def title(opened: EvalSetup, own_text: bool, at: int) -> str:
    """What is read, for a person: `stdlib (test), from word 5,000`."""
    text = _text(opened, own_text)
    return f"{text}, from {opened.dataset.vocabulary.tokenizer.unit} {at:,}" if at else text


def case_title(opened: EvalSetup, own_text: bool, found: Case) -> str:
    """What is read up to a case of the cache: `stdlib (test), the flattest failure of the cache, word 5,000`."""
    unit = opened.dataset.vocabulary.tokenizer.unit
    return f"{_text(opened, own_text)}, {CASES[found.case]}, {unit} {found.target:,}"


def _text(opened: EvalSetup, own_text: bool) -> str:
    source = source_name(opened, own_text)
    return source if own_text else f"{opened.dataset.corpus} ({source})"


def text_part(opened: EvalSetup, own_text: bool) -> str:
    """The text for the name of a result's folder: a split, or a text of one's own with some digits of its fingerprint."""
    text = f"{opened.dataset.corpus[:SHORT]}-{opened.dataset.fingerprint[:FEW]}"
    return text if own_text else opened.split.name
