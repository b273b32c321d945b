"""Catalogue of corpora: from a name or a path to the files of three splits, their tokenizer and their documents."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import chain, tee
from pathlib import Path

from backstory.config.schema import SPLITS
from backstory.data.corpora import published_corpora, saved_dataset, stdlib, text_files
from backstory.data.corpora.file_formats import ARROW, Format, format_of, unread
from backstory.data.corpora.text_files import Source
from backstory.data.corpora.unpacking import TextReader, is_blank, is_plain, kind_of
from backstory.data.synthetic.algorithms import TASKS
from backstory.storage.run_files import A_RUN, kind_of_runs
from backstory.utils.errors import UserError, nearest
from backstory.utils.formats import quantity
from backstory.utils.small_file import user_path

NAMED = 3
"""Files that a message lists by name."""

Document = tuple[str, Iterable[str]]
"""A title and the text in blocks, which are read before the next document."""


def whole(title: str, blocks: Iterable[str]) -> Iterator[Document]:
    """Treat a range of a file as one document."""
    yield title, blocks


def articles(title: str, blocks: Iterable[str]) -> Iterator[Document]:
    """Cut a WikiText file into articles: each begins at a line ` = Title = ` between two blank lines.

    Lines before the first title belong to the first article, so that no token is lost.
    """
    text: list[str] = []
    lines, previous, following = tee(text_files.lines(blocks), 3)
    next(following, None)
    for line, before, after in zip(lines, chain([""], previous), chain(following, [""]), strict=False):
        heading = _TITLE.fullmatch(line.rstrip("\n"))
        if heading and not before.strip() and not after.strip():
            if text and (title or "".join(text).strip()):
                yield title, text
                text = []
            title = heading[1]
        text.append(line)
    if text:
        yield title, text


# One equals sign on each side. Tables hold such lines too, but never alone between blank lines.
_TITLE = re.compile(r" = ([^=](?:.*[^=])?) = ")


def sentences(title: str, blocks: Iterable[str]) -> Iterator[Document]:
    """Treat a range of a file as one document, without white space around its lines."""
    yield title, (line.strip() + "\n" for line in text_files.lines(blocks))


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


@dataclass(frozen=True)
class NamedCorpus:
    """A corpus known by name: its description, and a function that opens it from a data folder.

    `open` is None for a synthetic corpus, which has no files. `files` names the published corpus whose files are used, if any.
    """

    description: str
    open: Callable[[Path | None], Corpus] | None = field(repr=False)
    files: str | None = None


def find(name_or_path: str, data_dir: Path | None = None, reader: TextReader | None = None) -> Corpus:
    """Open a corpus by its name, from `data_dir` or BACKSTORY_DATA, or a file or folder of texts by its path.

    Raises UserError for an unknown name, a path that does not exist, and files that are missing or cannot be read.
    """
    if name_or_path in CORPORA:
        opened = CORPORA[name_or_path].open
        if opened is None:
            raise UserError(f"{name_or_path} is synthetic and has no files; `prepare` makes it")
        return opened(data_dir)
    check_is_there(name_or_path)
    path, reader = user_path(name_or_path), reader or TextReader()
    if name_or_path and os.path.isdir(path):
        return _dataset(path, reader) if saved_dataset.is_saved(path) else _folder(path, reader)
    source = reader.source(path, path.stem if is_plain(path) else path.name.split(".")[0])
    name = described(source, path.name, reader)
    return Corpus(path.name, "regex", f"{name}, cut into 90, 5 and 5 percent", _cut(source))


def check_is_there(name_or_path: str) -> None:
    """Raise UserError for what is neither the name of a corpus nor the path of a file or folder; nothing is opened."""
    path, known = user_path(name_or_path), ", ".join(CORPORA)
    if name_or_path in CORPORA or (name_or_path and os.path.exists(path)):
        return
    close = nearest(name_or_path, [*CORPORA, *_beside(path)])
    if path.suffix or os.sep in name_or_path:
        raise UserError(
            f"there is no file or folder {name_or_path!r}{close}; give the path of a text or one of {known}"
        )
    raise UserError(f"unknown corpus {name_or_path!r}{close}; give one of {known} or a path")


def _beside(path: Path) -> list[str]:
    """Return the paths in the folder of a path that have a similar name, whatever their endings; hidden ones are left out."""
    try:
        names = [name for name in os.listdir(path.parent) if not name.startswith(".")]
    except (OSError, ValueError):  # ValueError: the path holds a null character
        return []
    close = get_close_matches(path.stem, {Path(name).stem for name in names}, cutoff=0.7)
    return sorted(str(path.parent / name) for name in names if Path(name).stem in close)


def find_text(path: Path, reader: TextReader) -> Corpus:
    """Open a file or folder as one text, in `sources["text"]`: of a folder with splits the test split. Raises UserError."""
    if not path.is_dir():
        source = reader.source(path, path.name.split(".")[0])
        return Corpus(path.name, "regex", described(source, path.name, reader), {"text": [source]})
    corpus = (_dataset if saved_dataset.is_saved(path) else _folder)(path, reader, whole=True)
    if "text" in corpus.sources:
        return corpus
    return replace(
        corpus, provenance=f"the test split of {corpus.provenance}", sources={"text": corpus.sources["test"]}
    )


def described(source: Source, name: str, reader: TextReader) -> str:
    """Return what was read of a file: `the file a.txt`, `the 20 texts in the field text of a.jsonl`."""
    if source.documents is None:
        return f"the file {name}"
    return f"the {len(source.documents):,} texts in the field {reader.field} of {name}"


def _cut(source: Source) -> dict[str, list[Source]]:
    return {split: [part] for split, part in zip(SPLITS, text_files.cut(source), strict=True)}


def _dataset(path: Path, reader: TextReader, whole: bool = False) -> Corpus:
    """Open a folder that `save_to_disk` of the Hugging Face datasets wrote, with its splits; `whole` as for `_folder`."""
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
        return Corpus(name, "regex", f"{provenance}, cut into 90, 5 and 5 percent", _cut(only))
    for split in SPLITS:
        if len(named.get(split, [])) != 1:
            raise UserError(
                f"the dataset {path} has the splits {', '.join(parts)}, and needs one for train, validation and test each; "
                "add it with `train_test_split`, or save its train split alone"
            )
    sources = {split: [source(named[split][0])] for split in SPLITS}
    return Corpus(name, "regex", f"the field {reader.field} of the dataset {name}, with its own splits", sources)


def _folder(path: Path, reader: TextReader, whole: bool = False) -> Corpus:
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
            for split, parts in _cut(source).items():
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


def _published(
    name: str,
    description: str,
    tokenizer: str,
    provenance: str,
    sources: Callable[[Path], dict[str, list[Source]]],
    documents: Callable[[str, Iterable[str]], Iterator[Document]] = whole,
    files: str | None = None,
    closed: bool = False,
) -> NamedCorpus:
    """Make the entry of a corpus of published files, its own or another's; `sources` finds the splits in their folder."""
    home = files or name

    def open_corpus(data_dir: Path | None) -> Corpus:
        folder, checked = published_corpora.find(home, data_dir)
        return Corpus(name, tokenizer, f"{provenance}; {checked}", sources(folder), documents, closed)

    return NamedCorpus(description, open_corpus, home)


def _by_name(pattern: str) -> Callable[[Path], dict[str, list[Source]]]:
    """Find one file for each split."""
    return lambda folder: {split: [Source(folder / pattern.format(split))] for split in SPLITS}


def _by_bytes(name: str, total: int) -> Callable[[Path], dict[str, list[Source]]]:
    """Cut one file of `total` bytes exactly at 90 and 95 percent."""

    def sources(folder: Path) -> dict[str, list[Source]]:
        if (size := text_files.size(folder / name)) != total:
            raise UserError(
                f"{folder / name} has {size:,} bytes, not {total:,}, so it is not {folder.name}; replace it"
            )
        bounds = (0, total * 90 // 100, total * 95 // 100, total)
        return {s: [Source(folder / name, "", bounds[i], bounds[i + 1])] for i, s in enumerate(SPLITS)}

    return sources


def _stdlib(_: Path | None) -> Corpus:
    return Corpus("stdlib", "regex", stdlib.PROVENANCE, stdlib.sources())


_PTB = "Penn Treebank, Wall Street Journal, Mikolov preprocessing; licensed by the LDC, not to be redistributed"

CORPORA: dict[str, NamedCorpus] = {
    "stdlib": NamedCorpus(
        "docstrings and help topics of the running Python, about 300,000 words; always available", _stdlib
    ),
    "recall": NamedCorpus(
        "synthetic documents in which things recur much later; the exact cost of every token is known; always available",
        None,
    ),
    **{name: NamedCorpus(task.description, None) for name, task in TASKS.items()},
    "ptb": _published(
        "ptb",
        "Penn Treebank (Mikolov), 929,589 training words, 10,000 types; by `data prepare`, 6 MB",
        "words",
        _PTB,
        _by_name("ptb.{}.txt"),
    ),
    "ptb-char": _published(
        "ptb-char",
        "Penn Treebank as characters, 5,017,482 to train on, 50 types, made from the files of ptb; by `data prepare`, 6 MB",
        "characters",
        f"the characters of {_PTB}",
        _by_name("ptb.{}.txt"),
        sentences,
        files="ptb",
        closed=True,
    ),
    "ptb-char-50": _published(
        "ptb-char-50",
        "the same with <unk> as one symbol and two marks around every line, 4,879,470 symbols to train on, 50 types",
        "marked-characters",
        f"the characters of {_PTB}",
        _by_name("ptb.{}.txt"),
        sentences,
        files="ptb",
        closed=True,
    ),
    "wikitext-2": _published(
        "wikitext-2",
        "WikiText-2, 600 training articles, 2,088,628 words, 33,278 types; by `data prepare`, 5 MB",
        "words",
        "WikiText-2, good and featured articles of Wikipedia (Merity et al. 2016); CC BY-SA 3.0",
        _by_name("wiki.{}.tokens"),
        articles,
    ),
    "wikitext-103": _published(
        "wikitext-103",
        "WikiText-103, 28,475 training articles, 103,227,021 words, 267,735 types; by `data prepare`, about 190 MB",
        "words",
        "WikiText-103, good and featured articles of Wikipedia (Merity et al. 2016); CC BY-SA 3.0",
        _by_name("wiki.{}.tokens"),
        articles,
    ),
    "enwik8": _published(
        "enwik8",
        "the first 100,000,000 bytes of a Wikipedia dump, split 90 / 5 / 5 million; by `data prepare`, 36 MB",
        "bytes",
        "enwik8, the first 100,000,000 bytes of the English Wikipedia of 3 March 2006 (Mahoney); GFDL",
        _by_bytes("enwik8", 100_000_000),
    ),
    "enwik8-prefix": _published(
        "enwik8-prefix",
        "the first 4,154,399 bytes of enwik8, for small runs: not comparable with enwik8; needs a data folder",
        "bytes",
        "a prefix of enwik8 of 4,154,399 bytes; figures on it are not comparable with those on enwik8; GFDL",
        _by_bytes("enwik8.prefix", 4_154_399),
    ),
    "text8": _published(
        "text8",
        "100,000,000 letters and spaces of Wikipedia, split 90 / 5 / 5 million; by `data prepare`, 31 MB",
        "characters",
        "text8, 100,000,000 characters (a to z and space) of the English Wikipedia of 3 March 2006 (Mahoney); GFDL",
        _by_bytes("text8", 100_000_000),
    ),
}
"""Corpora by name."""
