"""Folders of texts as corpora: their files, saved datasets, and how they become three splits."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from backstory.config.schema import SPLITS
from backstory.data.corpora import saved_dataset, text_files
from backstory.data.corpora.file_formats import ARROW, Format, format_of, unread
from backstory.data.corpora.text_files import Source
from backstory.data.corpora.unpacking import TextReader, is_blank, kind_of
from backstory.storage.run_files import A_RUN, kind_of_runs
from backstory.utils.errors import UserError
from backstory.utils.formats import quantity

NAMED = 3
"""Files that a message lists by name."""

Document = tuple[str, Iterable[str]]
"""A title and the text in blocks, which are read before the next document."""


def whole(title: str, blocks: Iterable[str]) -> Iterator[Document]:
    """Treat a range of a file as one document."""
    yield title, blocks


@dataclass(frozen=True)
class Corpus:
    """A text in three splits.

    `sources` are the ranges of files of train, valid and test; `documents` cuts such a range into documents; `tokenizer` is
    the default; `provenance` says in a sentence where the text comes from. `closed` is True if, with that tokenizer, the types
    of the training text are all there are, and none stands for others.
    """

    name: str
    tokenizer: str
    provenance: str
    sources: dict[str, list[Source]]
    documents: Callable[[str, Iterable[str]], Iterator[Document]] = whole
    closed: bool = False
    left_out: str = ""
    """Files and folders of runs that were left out of a folder, in a sentence; empty for none."""


def described(source: Source, name: str, reader: TextReader) -> str:
    """Return what was read of a file: `the file a.txt`, `the 20 texts in the field text of a.jsonl`."""
    if source.documents is None:
        return f"the file {name}"
    return f"the {len(source.documents):,} texts in the field {reader.field} of {name}"


def cut(source: Source) -> dict[str, list[Source]]:
    return {split: [part] for split, part in zip(SPLITS, text_files.cut(source), strict=True)}


def open_dataset(path: Path, reader: TextReader, whole: bool = False) -> Corpus:
    """Open a folder that `save_to_disk` of the Hugging Face datasets wrote, with its splits; `whole` as for `open_folder`."""
    name = path.resolve().name
    parts = saved_dataset.parts(path)
    named: dict[str, list[str]] = {}
    for part in parts:
        if match := _SPLIT_FILE.fullmatch(part):
            named.setdefault(_split(match[1]), []).append(part)

    def source(part: str) -> Source:
        return reader.unpacked(parts[part], Format(records=ARROW), part or name, path / part)

    if len(parts) == 1:
        only = source(next(iter(parts)))
        provenance = described(only, f"the dataset {name}", reader)
        if whole:
            return Corpus(name, "regex", provenance, {"text": [only]})
        return Corpus(name, "regex", f"{provenance}, cut into 90, 5 and 5 percent", cut(only))
    for split in SPLITS:
        if len(named.get(split, [])) != 1:
            raise UserError(
                f"the dataset {path} has the splits {', '.join(parts)}, and needs one for train, validation and test each; "
                "add it with `train_test_split`, or save its train split alone"
            )
    sources = {split: [source(named[split][0])] for split in SPLITS}
    return Corpus(name, "regex", f"the field {reader.field} of the dataset {name}, with its own splits", sources)


def open_folder(path: Path, reader: TextReader, whole: bool = False) -> Corpus:
    """Open a folder: the files of its splits, or a document per file; `whole` as one text, if it has no splits."""
    if kind_of_runs(path) == A_RUN:
        raise UserError(f"{path} is a run, not a corpus; give a text, or the corpus that the run was trained on")
    files, skipped, runs = _texts(path, reader)
    name, named = path.resolve().name, _named_splits(files, path) if files else None
    if named is None:
        # An empty file could otherwise become a whole split.
        skipped |= {file: "an empty file" for file in files if is_blank(file)}
        files = [file for file in files if file not in skipped]
    left_out = _left_out(Counter(skipped.values())) + ("; left out the folders of runs" if runs else "")
    names = "; ".join(filter(None, (_names("file", skipped, path, "without text"), _names("folder", runs, path))))
    if not files:
        for file in skipped:
            if format_of(file).records and unread(file) is None:  # says which fields it has
                reader.source(file)
        raise UserError(f"the folder {path} holds no files{left_out}; give a folder of text files")
    if named is not None:
        sources = {split: [reader.source(file) for file in part] for split, part in named.items()}
        plain = all(source.documents is None for part in sources.values() for source in part)
        how = "files for train, valid and test" if plain else f"the field {reader.field} of its files as splits"
        return Corpus(
            name, "words" if plain else "regex", f"the folder {name} with {how}{left_out}", sources, left_out=names
        )
    titled = [reader.source(file, str(file.relative_to(path).with_suffix(""))) for file in files]
    if whole:
        return Corpus(
            name, "regex", f"the folder {name}, {len(files):,} files{left_out}", {"text": titled}, left_out=names
        )
    how, sources = _dealt(titled)
    return Corpus(name, "regex", f"the folder {name}, {how}{left_out}", sources, left_out=names)


def _dealt(files: list[Source]) -> tuple[str, dict[str, list[Source]]]:
    """Return how the files of a folder are split, in words, and the splits.

    A text is a document, unless there are too few to distribute. A file of records holds many documents and is cut,
    because as a whole it could put most of a folder into one split.
    """
    records = [f.documents is not None and len(f.documents) >= len(SPLITS) for f in files]
    few = records.count(False) < len(SPLITS)
    sources: dict[str, list[Source]] = {split: [] for split in SPLITS}
    dealt = 0
    for source, holds_records in zip(files, records, strict=True):
        if holds_records or few:
            for split, parts in cut(source).items():
                sources[split] += parts
        else:
            sources[{0: "valid", 1: "test"}.get(dealt % 20, "train")].append(source)
            dealt += 1
    if few:
        return "each file cut into 90, 5 and 5 percent", sources
    how = "a document a file, every 20th to valid and the one after each of these to test"
    return how + (", the files of records cut into 90, 5 and 5 percent" if any(records) else ""), sources


def _texts(folder: Path, reader: TextReader) -> tuple[list[Path], dict[Path, str], dict[Path, str]]:
    """Return the texts below a folder, and the kinds of the other files, and those of the folders of runs."""
    visible, odd, runs = _visible(folder)
    kinds = {path: odd.get(path) or kind_of(path, reader) for path in visible}
    files = [path for path, kind in kinds.items() if kind is None]
    return files, {path: kind for path, kind in kinds.items() if kind is not None}, runs


def _names(noun: str, skipped: dict[Path, str], folder: Path, why: str = "") -> str:
    """Return `left out 5 files of notes without text: a.png (a picture), b.pdf (a PDF) and 3 more`, or nothing."""
    if not skipped:
        return ""
    names = [f"{path.relative_to(folder)} ({kind})" for path, kind in skipped.items()]
    listed, more = ", ".join(names[:NAMED]), len(names) - NAMED
    rest = f" and {more:,} more" if more > 0 else ""
    return f"left out {quantity(len(names), noun)} of {folder}{why and f' {why}'}: {listed}{rest}"


def _left_out(skipped: Counter[str]) -> str:
    """Return `; left out 3 files that hold no text (a picture: 2, a PDF: 1)`, or nothing."""
    if not skipped:
        return ""
    kinds = ", ".join(f"{kind}: {count:,}" for kind, count in skipped.most_common())
    total = skipped.total()
    return f"; left out {quantity(total, 'file')} without text ({kinds})"


def _visible(folder: Path) -> tuple[list[Path], dict[Path, str], dict[Path, str]]:
    """Return the files below a folder, the kinds of those that are not regular files, and the kinds of the folders of runs.

    Files are sorted by path; hidden ones (`.name`) are left out. What is in a folder of runs is not text of a corpus, and
    grows with each training.
    """
    paths, folders, odd, runs = [], [str(folder)], {}, {}
    while folders:  # `os.walk` is recursive: it fails at a thousand nested folders
        try:
            with os.scandir(folders.pop()) as entries:
                shown = [e for e in entries if not e.name.startswith(".")]
        except OSError as error:
            raise text_files.unreadable(Path(error.filename or folder), error) from None
        kinds = {e.path: kind_of_runs(Path(e.path)) for e in shown if e.is_dir(follow_symlinks=False)}
        folders += [path for path, kind in kinds.items() if kind is None]
        runs |= {Path(path): kind for path, kind in kinds.items() if kind is not None}
        for path in (e.path for e in shown if e.path not in kinds):
            paths.append(Path(path))
            if not os.path.isfile(path):
                odd[Path(path)] = _kind_of_no_file(path)
    return sorted(paths), odd, dict(sorted(runs.items()))


def _kind_of_no_file(path: str) -> str:
    if not os.path.exists(path):
        return "a broken link"
    return "a link to a folder" if os.path.isdir(path) else "no regular file"


_SPLIT_FILE = re.compile(
    r"(?:.+[._-])?(train|valid|validation|val|dev|test)(?:-\d+-of-\d+)?(?:\.\w+)?(?:\.(?:gz|bz2|xz|zst))?"
)


def _split(name: str) -> str:
    return "valid" if name in ("validation", "val", "dev") else name


def _named_splits(files: list[Path], folder: Path) -> dict[str, list[Path]] | None:
    """Return the files named train, valid and test (`train.txt`, `wiki.train.tokens`), or None if there is none for train.

    A split may be in parts: `train-00000-of-00002.parquet`.
    """
    named: dict[str, list[Path]] = {}
    for path in files:
        if path.parent == folder and (match := _SPLIT_FILE.fullmatch(path.name)):
            named.setdefault(_split(match[1]), []).append(path)
    if "train" not in named:
        return None
    for split in SPLITS:
        parts = named.get(split, [])
        if not parts:
            raise UserError(f"{folder} has a file for train, so it needs one for {split} too; add or rename a file")
        if len(parts) > 1 and not all(_PART.search(path.name) for path in parts):
            raise UserError(
                f"{folder} has several files for {split} ({', '.join(p.name for p in parts)}); keep one, or number all as "
                f"parts of it: {split}-00000-of-{len(parts):05}{parts[0].suffix}"
            )
    return {split: named[split] for split in SPLITS}


_PART = re.compile(r"-\d+-of-\d+")
