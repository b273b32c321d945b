"""Prepared text: a corpus as ids on disk, memory-mapped, with its vocabulary and the places where documents begin."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config.arguments import checked
from backstory.config.errors import UserError, off
from backstory.config.renamed import first_settings
from backstory.config.schema import TextConfig
from backstory.config.small_file import read_small
from backstory.config.strict import changes, to_dict
from backstory.config.unknown_share import UnknownShare
from backstory.data.corpora import catalogue, text_files
from backstory.data.corpora.catalogue import SPLITS, Corpus, Document
from backstory.data.synthetic import algorithms, recall
from backstory.data.synthetic.algorithms import OWN, TASKS, Algorithm, Answers
from backstory.data.synthetic.recall import Recall, Truth
from backstory.data.tokenizers import vocabulary
from backstory.data.tokenizers.built_in import END, UNKNOWN, Tokenizer, tokenizer
from backstory.data.tokenizers.pieces import Pieces
from backstory.data.tokenizers.vocabulary import OutOfVocabulary, Vocabulary, classify
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically

FORMAT = 1
"""Raised when the rules of this room change, so that ids made by older rules are not used."""
STORED = 3
"""Raised when more is stored beside the ids, which stay as they are."""
LARGEST = 1 << 30
"""Bytes of what is stored of a dataset beside its ids."""


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a corpus.

    `ids` (tokens,), uint16 or int32; `documents` (documents,) int64, the token where each begins, with their `titles`
    (possibly empty); `characters` and `bytes` (UTF-8) of its text after line ends were normalised; `words`, what the
    tokenizer `words` makes of it: words between white space, and one more for the end of every line.
    """

    name: str
    ids: np.ndarray
    documents: np.ndarray
    titles: list[str]
    characters: int
    bytes: int
    words: int
    lost: OutOfVocabulary | None = None
    """Tokens outside the vocabulary; None where nobody counted them."""

    def spans(self) -> Iterator[tuple[int, int]]:
        """The token where each document begins, and the one after its last."""
        return pairwise([*self.documents.tolist(), len(self.ids)])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A corpus as numbers: its vocabulary and the splits train, valid and test.

    `fingerprint` is the SHA-256 (hex) of the content and of the options that make ids of it: equal ones, equal ids.
    """

    corpus: str
    vocabulary: Vocabulary
    splits: dict[str, Split]
    fingerprint: str
    provenance: str
    source: Recall | Algorithm | None = None
    """What draws its documents; None for a text from files."""

    def epoch(self, number: int) -> np.ndarray:
        """The ids (tokens,) to train on in an epoch, counted from 1: those of train, or new ones, as many."""
        if number == 1 or self.source is None or not self.source.settings.new_each_epoch:
            return self.splits["train"].ids
        return self.source.epoch(number, len(self.splits["train"].ids))

    def truth(self, split: str) -> Truth | None:
        """What is known of every token of a split; None where nobody knows how its text came about."""
        return self.source.truth(self.splits[split].ids) if isinstance(self.source, Recall) else None

    def answers(self, split: str) -> Answers | None:
        """What is asked in a split; None where nothing is."""
        return self.source.answers(self.splits[split].ids) if isinstance(self.source, Algorithm) else None

    def asked(self, ids: np.ndarray) -> np.ndarray:
        """Whether each token of an epoch (tokens,) is part of an answer, bool. Raises UserError where nothing is asked."""
        if not isinstance(self.source, Algorithm):
            raise UserError(
                f"the corpus {self.corpus} asks nothing; set {off('training.answer_loss_only')}, or take {' or '.join(TASKS)}"
            )
        return self.source.asked(ids)

    def of_lengths(self, split: str, lengths: tuple[int, ...]) -> "Dataset":
        """One split of the same task, drawn at other lengths in turn. Raises UserError where there is no task."""
        if not isinstance(self.source, Algorithm):
            raise UserError(
                f"the documents of the corpus {self.corpus} have no lengths to choose; leave --lengths out, "
                f"or read a run on {' or '.join(TASKS)}"
            )
        source = self.source.of_lengths(split, lengths)
        drawn, sha = _draw(source, (split,))
        fingerprint = _hash([self.fingerprint, lengths, sha])
        return Dataset(self.corpus, self.vocabulary, drawn, fingerprint, source.provenance, source)

    def describe(self) -> dict[str, Any]:
        """What results say of the corpus, as JSON values."""
        return {
            "name": self.corpus,
            "fingerprint": self.fingerprint,
            "types": len(self.vocabulary),
            "provenance": self.provenance,
        }

    def lossless(self, split: str) -> bool:
        """Whether the ids hold all of a split's text, so that bits per character and per byte mean something."""
        return lossless(self.vocabulary, self.splits[split])


def lossless(vocabulary: Vocabulary, split: Split) -> bool:
    """Whether the ids of a split hold all of its text: a lossless vocabulary, and no `<unk>`."""
    return vocabulary.lossless and not unknown_tokens(vocabulary, split)


def unknown_tokens(vocabulary: Vocabulary, split: Split) -> int | None:
    """How many tokens of a split are `<unk>`; None where the vocabulary has none."""
    return None if vocabulary.unknown is None else int((split.ids == vocabulary.unknown).sum())


def unknown_share(vocabulary: Vocabulary, split: Split, places: slice | np.ndarray | None = None) -> UnknownShare:
    """Return how much of a split, or of some of its tokens, is `<unk>`, written so in the text or outside the vocabulary.

    Which of some tokens are outside is known where all `<unk>` of the split are, or none.
    """
    unknown, lost = unknown_tokens(vocabulary, split), split.lost
    if unknown is None or vocabulary.unknown is None:
        return UnknownShare(len(split.ids if places is None else split.ids[places]), None)
    if places is None:
        # What begins a text also ends its lines, but not where a tokenizer has no such token and begins with any.
        ends_lines = vocabulary.words[vocabulary.start] in (END, "\n")
        ends = int((split.ids == vocabulary.start).sum()) if ends_lines else 0
        return UnknownShare(len(split.ids), unknown, lost and lost.tokens, lost and lost.cause, ends)
    part = np.asarray(split.ids[places])
    inside = int((part == vocabulary.unknown).sum())
    if lost is None or 0 < lost.tokens < unknown:
        return UnknownShare(len(part), inside)
    return UnknownShare(len(part), inside, inside if lost.tokens else 0, lost.cause)


@checked()
def prepare(
    config: TextConfig,
    data_dir: Path | None = None,
    told: Callable[[int, int], None] | None = None,
    chosen: Tokenizer | None = None,
    known: Vocabulary | None = None,
) -> Dataset:
    """The corpus of a config as ids, from the cache where it was prepared before.

    `told` hears (bytes read, about how many to read in all) while there is something to prepare. `chosen` is a tokenizer to
    use whatever the config says, `known` a vocabulary to use in place of one made of the training text.

    Raises UserError for an unknown corpus or tokenizer, missing or unreadable files, text that is empty, too short (two
    tokens to train on, one in the other splits), binary or not UTF-8, a vocabulary of more than 2,000,000 types, and settings
    that a corpus that is drawn cannot have.
    """
    if config.corpus in catalogue.CORPORA and catalogue.CORPORA[config.corpus].open is None:
        if chosen is not None or known is not None:
            raise UserError(
                f"the corpus {config.corpus} is synthetic and made of words, which no other tokenizer cuts; choose another"
            )
        return _drawn(config, told)
    corpus = catalogue.find(config.corpus, data_dir)
    if known is not None:
        chosen, config = known.tokenizer, replace(config, lowercase=known.lowercase)
    chosen = chosen or tokenizer(corpus.tokenizer if config.tokenizer == "auto" else config.tokenizer, _sample(corpus))
    fingerprint = _fingerprint(corpus, chosen, config, known)
    # What is stored with the ids but makes none of them (titles) has a place in the key, not in the fingerprint.
    titles = [s.title for split in SPLITS for s in corpus.sources[split]]
    key = _hash([STORED, fingerprint, corpus.name, titles, chosen.name, unicodedata.unidata_version])

    def make(folder: Path) -> None:
        watched = _watched(corpus, told) if told else corpus
        _build(folder, watched, chosen, config, known)
        if _fingerprint(corpus, chosen, config, known) != fingerprint:
            raise UserError(f"the files of {corpus.name} changed while they were read; run again")

    entry = disk_cache.fetch(f"text-{key[:32]}", make)
    stored = json.loads(read_small(entry / "dataset.json", LARGEST, entry))
    splits = {name: _load(entry, name, stored["splits"][name]) for name in SPLITS}
    return Dataset(corpus.name, Vocabulary.from_json(stored["vocabulary"]), splits, fingerprint, corpus.provenance)


DRAWN = {"recall": ("recall",), "algorithm": tuple(TASKS)}
"""Parts of the settings of a text that are for some synthetic corpora alone, with the names of those."""


def drawn_by(part: str, setting: str) -> tuple[str, ...]:
    """The names of the corpora that a setting of such a part is for."""
    return (OWN[setting],) if setting in OWN else DRAWN[part]


def check_drawn(config: TextConfig) -> None:
    """Raise UserError for settings of documents that are drawn where the corpus is none of those that they are for."""
    for part in DRAWN:
        for setting in changes(getattr(config, part)):
            if config.corpus not in (names := drawn_by(part, setting)):
                raise UserError(
                    f"text.{part}.{setting} is for the corpus {' or '.join(names)}, and the corpus is {config.corpus}; "
                    "leave it out, or choose another corpus"
                )


def _drawn(config: TextConfig, told: Callable[[int, int], None] | None) -> Dataset:
    """A corpus that is drawn."""
    recall.check_text(config)
    is_task = config.corpus in TASKS
    source = Algorithm(config.corpus, config.algorithm) if is_task else Recall(config.recall)
    words = source.words()
    splits, sha = _draw(source, SPLITS, told)
    counts = np.bincount(splits["train"].ids, minlength=len(words))
    unknown = words.index(UNKNOWN) if UNKNOWN in words else None
    known = Vocabulary(words, counts, tokenizer("words"), False, unknown, words.index(END))
    # With the ids: another numpy may draw others from the same seed.
    options = [algorithms.FORMAT, config.corpus] if is_task else [recall.FORMAT]
    # Under the names that its settings had first, so that the text of earlier runs is still known.
    part = "algorithm" if is_task else "recall"
    settings = first_settings({"text": {part: to_dict(source.settings)}})["text"][part]
    fingerprint = _hash([*options, settings, sha])
    return Dataset(config.corpus, known, splits, fingerprint, source.provenance, source)


def _draw(
    source: Recall | Algorithm, names: Sequence[str], told: Callable[[int, int], None] | None = None
) -> tuple[dict[str, Split], str]:
    """Splits that are drawn, and the SHA-256 (hex) of their ids."""
    words = source.words()
    kind = np.dtype("<u2" if len(words) < 1 << 16 else "<i4")
    lengths = np.array([0 if word == END else len(word) for word in words])
    total = sum(source.size(name) for name in names) * kind.itemsize
    splits, sha, done = {}, hashlib.sha256(), 0
    for name in names:
        drawn = []
        for ids in source.draw(name):
            drawn.append(ids.astype(kind))
            sha.update(drawn[-1].tobytes())
            done += drawn[-1].nbytes
            if told is not None:
                told(done, total)
        ids = np.concatenate(drawn)
        starts = source.starts(ids)
        # A line for a document: words with a space between two, and the line's end.
        size = int(np.bincount(ids, minlength=len(words)) @ lengths) + len(ids) - len(starts)
        titles = [f"document {i + 1}" for i in range(len(starts))]
        splits[name] = Split(name, ids, starts, titles, size, size, len(ids), OutOfVocabulary())
    return splits, sha.hexdigest()


@checked()
def encode_split(vocabulary: Vocabulary, text: str, name: str = "text") -> Split:
    """A text of one's own as a split: one document, with line ends normalised and a byte-order mark dropped.

    Raises UserError for a text without tokens, with a NUL or a lone surrogate (which stands for a byte that is no UTF-8, and
    is accepted by the tokenizer `bytes`), or with an unknown word where there is no `<unk>`.
    """
    try:
        text.encode("utf-8", "surrogateescape" if vocabulary.tokenizer.unit == "byte" else "strict")
    except UnicodeEncodeError:
        raise UserError(f"the {name} is not UTF-8 text; correct it") from None
    if vocabulary.tokenizer.unit != "byte":
        if "\x00" in text:
            raise UserError(f"the {name} holds a NUL, so it is no text; remove it")
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return _encode(vocabulary, [text], name, f"the {name}")


def encode_bytes(vocabulary: Vocabulary, blocks: Iterable[bytes], name: str, called: str) -> tuple[Split, str]:
    """A text of one's own that comes as bytes in blocks, as a split, and the SHA-256 (hex) of the bytes.

    `called` is what messages call the text. Raises UserError as `encode_split` does, and for bytes that are not UTF-8,
    unless the tokenizer is `bytes`.
    """
    sha = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for block in blocks:
            sha.update(block)
            yield block

    text = text_files.decoded(hashed(), called, as_is=vocabulary.tokenizer.unit == "byte")
    split = _encode(vocabulary, text, name, called)
    return split, sha.hexdigest()


def _encode(vocabulary: Vocabulary, blocks: Iterable[str], name: str, called: str) -> Split:
    meter = _Meter()
    ids = np.concatenate([np.empty(0, np.int32), *meter.encoded(vocabulary, blocks)])
    if not len(ids):
        raise UserError(f"{called} is empty; give some words")
    lost = classify(meter.lost, vocabulary)
    return Split(name, ids, np.zeros(1, np.int64), [""], meter.characters, meter.bytes, meter.words, lost)


def _sample(corpus: Corpus) -> str:
    """The beginning of a corpus, whatever it is."""
    start = next(text_files.raw_blocks(replace(corpus.sources["train"][0], end=None)), b"")
    return start[:4096].decode(errors="replace")


def _fingerprint(corpus: Corpus, chosen: Tokenizer, config: TextConfig, known: Vocabulary | None) -> str:
    named = hashlib.sha256(chosen.json.encode()).hexdigest() if isinstance(chosen, Pieces) else chosen.name
    content = [[text_files.digest(s) for s in corpus.sources[split]] for split in SPLITS]
    options = [config.lowercase, config.minimum_count, config.maximum_size]
    words = [] if known is None else [known.to_json()]
    return _hash([FORMAT, content, corpus.documents.__name__, named, options, *words])


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _build(folder: Path, corpus: Corpus, chosen: Tokenizer, config: TextConfig, known: Vocabulary | None) -> None:
    """Count the training text, unless the vocabulary is known, then write every split's ids, the vocabulary and what is known
    of the splits.
    """
    words = known or vocabulary.build(
        _count(corpus, chosen, config),
        chosen,
        config.lowercase,
        config.minimum_count,
        config.maximum_size,
        corpus.closed and chosen.name == corpus.tokenizer,
    )
    kind = np.dtype("<u2" if len(words) < 1 << 16 else "<i4")
    splits = {}
    for split in SPLITS:
        meter = _Meter()
        write_atomically(
            folder / f"{split}.ids", (ids.astype(kind).tobytes() for ids in meter.encode(corpus, split, words))
        )
        least = 2 if split == "train" else 1
        if meter.tokens < least:
            raise UserError(
                f"the {split} text of {corpus.name} has {meter.tokens} tokens, fewer than {least}; give more text"
            )
        splits[split] = {**vars(meter), "lost": vars(classify(meter.lost, words)), "dtype": kind.str}
    stored = {"vocabulary": words.to_json(), "splits": splits}
    write_atomically(folder / "dataset.json", json.dumps(stored))


def _watched(corpus: Corpus, told: Callable[[int, int], None]) -> Corpus:
    """The corpus, with `told` called for every block of it that is read; the training text is read twice."""
    sizes = {s: sum((x.end or text_files.size(x.path)) - x.start for x in corpus.sources[s]) for s in SPLITS}
    done, total = 0, sum(sizes.values()) + sizes["train"]

    def watched(blocks: Iterable[str]) -> Iterator[str]:
        nonlocal done
        for block in blocks:
            yield block
            done += _bytes(block)
            told(done, total)

    return replace(corpus, documents=lambda title, blocks: corpus.documents(title, watched(blocks)))


def _count(corpus: Corpus, chosen: Tokenizer, config: TextConfig) -> Counter[str]:
    """How often the training text holds each token. Raises UserError for a text without words."""
    counts: Counter[str] = Counter()
    cut = config.minimum_count > 1 or config.maximum_size is not None
    for _, blocks in _documents(corpus, "train", chosen):
        for tokens in vocabulary.tokenize(blocks, chosen, config.lowercase):
            counts.update(tokens)
            if len(counts) > vocabulary.LARGEST and not cut:
                return counts  # `build` refuses it; the rest of the text need not be read
    if chosen.unit != "byte" and not any(w != END and not w.isspace() for w in counts):
        raise UserError(f"the train text of {corpus.name} is empty; give a text that holds words")
    return counts


def _documents(corpus: Corpus, split: str, chosen: Tokenizer) -> Iterator[Document]:
    for source in corpus.sources[split]:
        yield from corpus.documents(source.title, text_files.text_blocks(source, as_is=chosen.unit == "byte"))


@dataclass
class _Meter:
    """What is learned of a split while its ids are made."""

    tokens: int = 0
    characters: int = 0
    bytes: int = 0
    words: int = 0
    documents: list[int] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    """Tokens outside the vocabulary."""

    def encode(self, corpus: Corpus, split: str, words: Vocabulary) -> Iterator[np.ndarray]:
        for title, blocks in _documents(corpus, split, words.tokenizer):
            before = self.tokens
            for ids in self.encoded(words, blocks):
                self.tokens += len(ids)
                yield ids
            if self.tokens > before:  # a document without tokens would begin where the next one does
                self.documents.append(before)
                self.titles.append(title)

    def encoded(self, words: Vocabulary, blocks: Iterable[str]) -> Iterator[np.ndarray]:
        """The ids of a document."""
        for ids, lost in words.encode_marked(self.measured(blocks)):
            self.lost.update(lost.values())
            yield ids

    def measured(self, blocks: Iterable[str]) -> Iterator[str]:
        """The blocks of a document, as they are."""
        last = "\n"
        for block in blocks:
            self.characters += len(block)
            self.bytes += _bytes(block)
            if block:
                # A word that goes on from the block before was counted there.
                self.words += len(block.split()) - (not last.isspace() and not block[0].isspace()) + block.count("\n")
                last = block[-1]
            yield block
        self.words += last != "\n"


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _load(entry: Path, name: str, stored: dict[str, Any]) -> Split:
    ids = np.memmap(entry / f"{name}.ids", np.dtype(stored["dtype"]), "r", shape=(stored["tokens"],))
    documents = np.array(stored["documents"], np.int64)
    sizes = stored["characters"], stored["bytes"], stored["words"]
    return Split(name, ids, documents, stored["titles"], *sizes, OutOfVocabulary(**stored["lost"]))
