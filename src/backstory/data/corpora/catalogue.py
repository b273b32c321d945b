"""Catalogue of corpora: from a name or a path to the files of three splits, their tokenizer and their documents."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import chain, tee
from pathlib import Path

from backstory.config.schema import SPLITS
from backstory.data.corpora import published_corpora, saved_dataset, stdlib, text_files
from backstory.data.corpora.corpus_folder import Corpus, Document, cut, described, open_dataset, open_folder, whole
from backstory.data.corpora.text_files import Source
from backstory.data.corpora.unpacking import TextReader, is_plain
from backstory.data.synthetic.algorithms import TASKS
from backstory.utils.errors import UserError, nearest
from backstory.utils.small_file import user_path


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
        return open_dataset(path, reader) if saved_dataset.is_saved(path) else open_folder(path, reader)
    source = reader.source(path, path.stem if is_plain(path) else path.name.split(".")[0])
    name = described(source, path.name, reader)
    return Corpus(path.name, "regex", f"{name}, cut into 90, 5 and 5 percent", cut(source))


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
    corpus = (open_dataset if saved_dataset.is_saved(path) else open_folder)(path, reader, whole=True)
    if "text" in corpus.sources:
        return corpus
    return replace(
        corpus, provenance=f"the test split of {corpus.provenance}", sources={"text": corpus.sources["test"]}
    )


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
