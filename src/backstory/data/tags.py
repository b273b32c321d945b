"""Part-of-speech tags of words, from the Penn Treebank's set: from files beside a corpus, or by a tagger."""

import importlib.metadata
import json
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from backstory.data.corpora import published_corpora, text_files
from backstory.data.corpora.published_corpora import TAGS
from backstory.data.corpora.text_files import Source
from backstory.data.dataset import Dataset
from backstory.data.tokenizers.built_in import END, UNKNOWN
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically
from backstory.storage.documents import json_digest
from backstory.utils.errors import UserError, install_hint, nearest
from backstory.utils.small_file import read_small

Tagger = Callable[[list[str]], Sequence[str]]
"""Function from the words of a line, at least one, to as many tags."""
TaggedLine = tuple[list[str], Sequence[str]]
"""Words of a line, and their tags."""
Coded = tuple[list[str], np.ndarray]
"""Names of tags, and for every word but `<eos>` the index of its tag (int32)."""

CONTENT = ("N", "V", "J", "R")
"""Prefixes of the tags of content words: nouns, verbs, adjectives, adverbs (and the particle RP)."""
FUNCTION = ("C", "D", "E", "F", "I", "M", "P", "T", "U", "W")
"""Prefixes of the tags of function words: all other words, but for punctuation, SYM, currency and list marks (LS)."""
FORMAT = 2
"""Version of the rules of this module; tags made by other versions are not used."""
NOT_ENGLISH = 0.25
"""Above this share of words that PatternTagger does not know, the text seems to be no English. Penn Treebank has 6%, WikiText-2
3%; French, Spanish, German, Dutch, Danish and Swedish have 32% or more."""
AUTO, GOLD, PATTERN = "auto", "gold", "pattern"


def is_content(tag: str) -> bool:
    """Return True for the tag of a content word; `<unk>` and `<eos>` are neither content nor function words."""
    return tag.startswith(CONTENT)


def is_function(tag: str) -> bool:
    """Return True for the tag of a function word."""
    return tag.startswith(FUNCTION)


def word_classes(tags: np.ndarray) -> np.ndarray:
    """Return `content`, `function` or `neither` for each of the tags (N,) -> (N,) str."""
    names, indices = np.unique(tags, return_inverse=True)
    classes = ["content" if is_content(t) else "function" if is_function(t) else "neither" for t in names.tolist()]
    return np.array(classes, dtype="<U8")[indices]


def tags_of(dataset: Dataset, split_name: str, tagger: str | Tagger = AUTO, data_dir: Path | None = None) -> np.ndarray:
    """Return the tag of every token of a split (N,), str; the tags of `<eos>` and `<unk>` are these words themselves.

    `tagger`: `gold`, the file of tags that goes with a published corpus (in the folder `pos` of `data_dir` or of
    BACKSTORY_DATA); `pattern`, TextBlob's PatternTagger; `auto`, the first of these there is; or a function from the words
    of a line to their tags. Raises UserError for a text whose tokens are not words, tags that do not fit the text line by
    line, an unknown tagger, `gold` where there is no such file, and a package that is missing.
    """
    vocabulary, ids = dataset.vocabulary, dataset.splits[split_name].ids
    if (unit := vocabulary.tokenizer.unit) != "word":
        raise UserError(
            f"only words have parts of speech, and the tokens of {dataset.corpus} are {unit}s; use the tokenizer words or regex"
        )
    source, by = _choose(dataset, split_name, tagger, data_dir), tagged_by(dataset, split_name, tagger, data_dir)
    ended = np.asarray(ids == vocabulary.index.get(END, -1))
    if source is None:
        names, codes = _by_pattern(dataset, split_name, by)
    else:
        is_file = isinstance(source, Path)
        lines = _read(dataset, split_name, source) if is_file else _tagged(dataset, split_name, source)
        names, codes = _coded(lines, by, split_name)
    tags = np.full(len(ids), END, dtype=f"<U{max(map(len, [END, UNKNOWN, *names]))}")
    if names:
        tags[~ended] = np.array(names)[codes]
    tags[np.asarray(ids) == vocabulary.unknown] = UNKNOWN
    return tags


def tagged_by(dataset: Dataset, split_name: str, tagger: str | Tagger = AUTO, data_dir: Path | None = None) -> str:
    """Return the source of the tags as text, such as `gold (pos/penn/valid.txt)`. Raises UserError for an unknown tagger,
    `gold` where there is no file of them, and a package that is missing.
    """
    source = _choose(dataset, split_name, tagger, data_dir)
    if isinstance(source, Path):
        return f"gold ({TAGS[dataset.corpus][split_name]})"
    if source is not None:
        return getattr(source, "__name__", "a tagger")
    try:
        return f"PatternTagger for English (textblob {importlib.metadata.version('textblob')})"
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"part-of-speech tags need the package textblob; {install_hint('pos')}") from None


def gold_file(dataset: Dataset, split_name: str, data_dir: Path | None = None) -> Path | None:
    """Return the file of tags of a split; None if there is none, or if the text is not as published and in words."""
    named = TAGS.get(dataset.corpus, {}).get(split_name)
    fits = dataset.provenance.endswith(published_corpora.AS_PUBLISHED) and dataset.vocabulary.tokenizer.name == "words"
    return published_corpora.beside(named, data_dir) if named and fits else None


def check_tagger(tagger: object) -> None:
    """Raise UserError unless the tagger is a known name or a function."""
    known = (AUTO, GOLD, PATTERN)
    if not isinstance(tagger, str) and not callable(tagger):
        raise UserError(f"a tagger is {', '.join(known)} or a function from words to tags, not {tagger!r}")
    if isinstance(tagger, str) and tagger not in known:
        raise UserError(f"unknown tagger {tagger!r}{nearest(tagger, known)}; use {', '.join(known)} or a function")


def _choose(dataset: Dataset, split: str, tagger: str | Tagger, data_dir: Path | None) -> Path | Tagger | None:
    """Return a file of tags, the user's tagger, or None for PatternTagger."""
    check_tagger(tagger)
    if not isinstance(tagger, str):
        return tagger
    file = None if tagger == PATTERN else gold_file(dataset, split, data_dir)
    if file is None and tagger == GOLD:
        raise UserError(
            f"there is no file of tags for the {split} text of {dataset.corpus} in the data folder; use the tagger {PATTERN}"
        )
    return file


def _lines(dataset: Dataset, split: str) -> Iterator[list[str]]:
    """Yield the words of each line of a split, without `<eos>`; words after the last `<eos>` are a line too."""
    vocabulary, ids = dataset.vocabulary, dataset.splits[split].ids
    start = 0
    for end in np.flatnonzero(ids == vocabulary.index.get(END, -1)).tolist():
        yield vocabulary.tokens(ids[start:end])
        start = end + 1
    if start < len(ids):
        yield vocabulary.tokens(ids[start:])


def _read(dataset: Dataset, split: str, path: Path) -> Iterator[TaggedLine]:
    """Return the words and the tags of each line, from a file. Raises UserError for another number of lines."""
    lines = list(_lines(dataset, split))
    tagged = "".join(text_files.text_blocks(Source(path))).removesuffix("\n").split("\n")
    if len(tagged) != len(lines):
        raise UserError(
            f"{path} has {len(tagged):,} lines, and the {split} text {len(lines):,}; replace the file of tags"
        )
    return ((words, tags.split()) for words, tags in zip(lines, tagged, strict=True))


def _tagged(dataset: Dataset, split: str, tagger: Tagger) -> Iterator[TaggedLine]:
    """Return the words and the tags of each line, from a tagger."""
    return ((words, tagger(words) if words else []) for words in _lines(dataset, split))


def _coded(lines: Iterable[TaggedLine], by: str, split: str) -> Coded:
    """Return the tags of all lines as indices. Raises UserError for a line with more or fewer tags than words."""
    codes: dict[str, int] = {}
    rows = [np.empty(0, np.int32)]
    for number, (words, tags) in enumerate(lines, 1):
        if len(tags) != len(words) or not all(isinstance(tag, str) for tag in tags):
            many = f"{len(tags):,} tags" if len(tags) != len(words) else "tags that are not text"
            raise UserError(
                f"line {number:,} of the {split} text has {len(words):,} words and, by {by}, {many}; give each word its tag"
            )
        rows.append(np.fromiter((codes.setdefault(tag, len(codes)) for tag in tags), np.int32, len(tags)))
    return list(codes), np.concatenate(rows)


def _by_pattern(dataset: Dataset, split: str, by: str) -> Coded:
    """Return the tags of PatternTagger, from the cache if they were made before: tagging and loading take seconds.

    Warns of a text that seems to be in another language than the tagger's.
    """

    def make(folder: Path) -> None:
        tagger, lexicon = _pattern_tagger()
        names, codes = _coded(_tagged(dataset, split, tagger), by, split)
        made = {"names": names, "unknown_share": _unknown_share(dataset, split, lexicon)}
        write_atomically(folder / "tags.json", json.dumps(made))
        write_atomically(folder / "tags.codes", codes.astype("<i4").tobytes())

    key = json_digest([FORMAT, dataset.fingerprint, split, by])
    entry = disk_cache.fetch(f"tags-{key[:32]}", make)
    made = json.loads(read_small(entry / "tags.json", inside=entry))
    if made["unknown_share"] > NOT_ENGLISH:
        warnings.warn(
            f"{made['unknown_share']:.0%} of the words of the {split} text are unknown to the part-of-speech tagger, which is "
            "for English; for another language give a tagger of its own from Python: examine(..., tagger=FUNCTION)",
            stacklevel=2,
        )
    return made["names"], np.fromfile(entry / "tags.codes", "<i4")


def _unknown_share(dataset: Dataset, split: str, lexicon: Container[str]) -> float:
    """Return the share of a split's words, `<unk>` left out, that are not in a lexicon. Numbers and punctuation are in any."""
    vocabulary = dataset.vocabulary
    counts = np.bincount(dataset.splits[split].ids, minlength=len(vocabulary))
    counts[[index for index in (vocabulary.unknown, vocabulary.index.get(END)) if index is not None]] = 0
    types = np.flatnonzero(counts)
    unknown = [
        any(map(str.isalpha, word)) and word not in lexicon and word.lower() not in lexicon
        for word in vocabulary.tokens(types)
    ]
    return float(counts[types][unknown].sum() / max(1, counts.sum()))


def _pattern_tagger() -> tuple[Tagger, Container[str]]:
    """Return PatternTagger and its lexicon."""
    from textblob.en import parser
    from textblob.taggers import PatternTagger

    tagger = PatternTagger()
    with warnings.catch_warnings():
        # It reads its lexicon at the first word, and leaves the file open.
        warnings.simplefilter("ignore", ResourceWarning)
        tagger.tag("a", tokenize=False)
    # Words hold no white space, so split at the spaces between them they come back as they were.
    return lambda words: [tag for _, tag in tagger.tag(" ".join(words), tokenize=False)], parser.lexicon
