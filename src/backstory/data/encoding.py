"""Text to ids: prepare a corpus, from its files or its generator, and encode a text of the user's own."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config.renamed import first_settings
from backstory.config.schema import SPLITS, RunConfig, TextConfig
from backstory.config.strict import changes, to_dict
from backstory.data.corpora import catalogue, text_files
from backstory.data.corpora.corpus_folder import Corpus, Document
from backstory.data.corpora.text_files import Source
from backstory.data.corpora.unpacking import TextReader
from backstory.data.dataset import Dataset, Split, synthetic_splits
from backstory.data.synthetic import algorithms, recall
from backstory.data.synthetic.algorithms import OWN, TASKS, Algorithm
from backstory.data.synthetic.recall import Recall
from backstory.data.tokenizers import built_in
from backstory.data.tokenizers import vocabulary as vocabularies
from backstory.data.tokenizers.built_in import END, UNKNOWN, Tokenizer
from backstory.data.tokenizers.pieces import TRAINED_FORMAT, Kind, Pieces, train_tokenizer, trained_kind
from backstory.data.tokenizers.vocabulary import OutOfVocabulary, Vocabulary, classify
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically
from backstory.storage.documents import json_digest
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.small_file import read_small
from backstory.utils.terminal import ProgressCallback, preparing

FORMAT = 1
"""Version of the rules that turn text into ids; ids made by other versions are not used."""
STORED = 3
"""Version of what is stored beside the ids, which stay as they are."""
LARGEST = 1 << 30
"""Bytes of what is stored of a dataset beside its ids; more is refused."""
SYNTHETIC_SETTINGS = {"recall": ("recall",), "algorithm": tuple(TASKS)}
"""Parts of the text settings that only some synthetic corpora have, with the names of those corpora."""


@checked()
def prepare(
    config: TextConfig,
    data_dir: Path | None = None,
    progress: ProgressCallback | None = None,
    tokenizer: Tokenizer | None = None,
    vocabulary: Vocabulary | None = None,
) -> Dataset:
    """Return a corpus as ids, from the cache if it was prepared before.

    `progress` is called while there is something to prepare. `tokenizer` replaces the one in the config, `vocabulary` the one
    that would be built from the training text, with its tokenizer and case.

    Raises UserError for an unknown corpus or tokenizer, missing or unreadable files, text that is empty, too short (two
    tokens to train on, one in the other splits), binary or not UTF-8, a vocabulary of more than 2,000,000 types, and settings
    that a synthetic corpus cannot have.
    """
    if config.corpus in catalogue.CORPORA and catalogue.CORPORA[config.corpus].open is None:
        if tokenizer is not None or vocabulary is not None:
            raise UserError(f"the corpus {config.corpus} is synthetic and has its own tokens; choose another corpus")
        return _generate(config, progress)
    if vocabulary is not None:
        tokenizer, config = vocabulary.tokenizer, replace(config, lowercase=vocabulary.lowercase)
    as_is = config.tokenizer == "bytes" if tokenizer is None else tokenizer.unit == "byte"
    corpus = catalogue.find(config.corpus, data_dir, TextReader(config.field, as_is))
    tokenizer = tokenizer or _tokenizer(corpus, config)
    fingerprint = _fingerprint(corpus, tokenizer, config, vocabulary)
    # Titles are stored with the ids but do not change them: they are part of the key, not of the fingerprint.
    titles = [s.title for split in SPLITS for s in corpus.sources[split]]
    key = json_digest([STORED, fingerprint, corpus.name, titles, tokenizer.name, unicodedata.unidata_version])

    def make(folder: Path) -> None:
        with preparing(corpus.name, sum(_sizes(corpus).values())) as shown:
            _build(folder, _with_progress(corpus, progress or shown), tokenizer, config, vocabulary)
        if _fingerprint(corpus, tokenizer, config, vocabulary) != fingerprint:
            raise UserError(f"the files of {corpus.name} changed while they were read; run again")

    entry = disk_cache.fetch(f"text-{key[:32]}", make)
    stored = json.loads(read_small(entry / "dataset.json", LARGEST, entry))
    splits = {name: _load(entry, name, stored["splits"][name]) for name in SPLITS}
    vocabulary = Vocabulary.from_json(stored["vocabulary"])
    files = corpus.sources
    return Dataset(corpus.name, vocabulary, splits, fingerprint, corpus.provenance, None, corpus.left_out, files)


def _tokenizer(corpus: Corpus, config: TextConfig) -> Tokenizer:
    """Return the tokenizer of the settings, trained on the training text if it is such a one. Raises UserError."""
    name = corpus.tokenizer if config.tokenizer == "auto" else config.tokenizer
    learned = trained_kind(name)
    return built_in.tokenizer(name, _sample(corpus)) if learned is None else _trained(corpus, config, *learned)


def _trained(corpus: Corpus, config: TextConfig, kind: Kind, size: int) -> Pieces:
    content = [text_files.digest(source) for source in corpus.sources["train"]]
    key = json_digest([TRAINED_FORMAT, kind, size, config.lowercase, corpus.documents.__name__, content])

    def make(folder: Path) -> None:
        total = _sizes(corpus)["train"]
        with preparing(f"the tokenizer of {corpus.name}", total) as shown:
            read = _with_progress(corpus, lambda done, _: shown(min(done, total), total))
            documents = _documents(read, "train", built_in.BUILT_IN["characters"])
            blocks = (block for _, text in documents for block in vocabularies.lowered(text, config.lowercase))
            pieces = train_tokenizer(kind, size, blocks)
        write_atomically(folder / "tokenizer.json", pieces.json)

    entry = disk_cache.fetch(f"tokenizer-{key[:32]}", make)
    return Pieces(f"{kind}:{size}", read_small(entry / "tokenizer.json", LARGEST, entry).decode())


def corpora_with(part: str, setting: str) -> tuple[str, ...]:
    """Return the names of the synthetic corpora that have a setting of one of the `SYNTHETIC_SETTINGS`."""
    return (OWN[setting],) if setting in OWN else SYNTHETIC_SETTINGS[part]


def with_corpus(config: RunConfig, corpus: str | None, recipe: RunConfig) -> RunConfig:
    """Return the settings with another corpus, without the recipe's settings of a synthetic corpus that it replaces."""
    text = replace(config.text, corpus=corpus or config.text.corpus)
    if text.corpus != recipe.text.corpus:
        for part in SYNTHETIC_SETTINGS:
            current, own, usual = (getattr(settings, part) for settings in (text, recipe.text, TextConfig()))
            for name, value in changes(current).items():
                if text.corpus not in corpora_with(part, name) and value == getattr(own, name):
                    current = replace(current, **{name: getattr(usual, name)})
            text = replace(text, **{part: current})
    return replace(config, text=text)


def check_synthetic(config: TextConfig) -> None:
    """Raise UserError for changed settings of synthetic documents that the corpus does not have."""
    for part in SYNTHETIC_SETTINGS:
        for setting in changes(getattr(config, part)):
            if config.corpus not in (names := corpora_with(part, setting)):
                raise UserError(
                    f"text.{part}.{setting} is for the corpus {' or '.join(names)}, and the corpus is {config.corpus}; "
                    "leave it out, or choose another corpus"
                )


def _generate(config: TextConfig, progress: ProgressCallback | None) -> Dataset:
    """Generate a synthetic corpus."""
    recall.check_text(config)
    is_task = config.corpus in TASKS
    source = Algorithm(config.corpus, config.algorithm) if is_task else Recall(config.recall)
    words = source.words()
    splits, sha = synthetic_splits(source, SPLITS, progress)
    counts = np.bincount(splits["train"].ids, minlength=len(words))
    unknown = words.index(UNKNOWN) if UNKNOWN in words else None
    vocabulary = Vocabulary(words, counts, built_in.tokenizer("words"), False, unknown, words.index(END))
    # The ids are part of it: another version of numpy may generate others from the same seed.
    options = [algorithms.FORMAT, config.corpus] if is_task else [recall.FORMAT]
    # Under the names that its settings had first, so that the text of earlier runs is still known.
    part = "algorithm" if is_task else "recall"
    settings = first_settings({"text": {part: to_dict(source.settings)}})["text"][part]
    fingerprint = json_digest([*options, settings, sha])
    return Dataset(config.corpus, vocabulary, splits, fingerprint, source.provenance, source)


@checked()
def encode_split(vocabulary: Vocabulary, text: str, name: str = "text") -> Split:
    """Encode a text as a split of one document, with line ends normalised and a byte-order mark dropped.

    Raises UserError for a text without tokens, with a NUL or a lone surrogate (which stands for a byte that is not UTF-8, and
    is accepted by the tokenizer `bytes`), or with an unknown word if the vocabulary has no `<unk>`.
    """
    try:
        text.encode("utf-8", "surrogateescape" if vocabulary.tokenizer.unit == "byte" else "strict")
    except UnicodeEncodeError:
        raise UserError(f"the {name} is not UTF-8 text; correct it") from None
    if vocabulary.tokenizer.unit != "byte":
        if "\x00" in text:
            raise UserError(f"the {name} holds a NUL, so it is not text; remove it")
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return _encode(vocabulary, [text], name, f"the {name}")


def encode_bytes(
    vocabulary: Vocabulary, blocks: Iterable[bytes], name: str, title: str, lines: "TextLines | None" = None
) -> tuple[Split, str]:
    """Encode a text that comes as blocks of bytes, as a split; return the SHA-256 (hex) of the bytes with it.

    `title` names the text in messages. With `lines`, each line is a document. Raises UserError as
    `encode_split` does, and for bytes that are not UTF-8, unless the tokenizer is `bytes`.
    """
    sha = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for block in blocks:
            sha.update(block)
            yield block

    text = text_files.decoded(hashed(), title, as_is=vocabulary.tokenizer.unit == "byte")
    split = _encode(vocabulary, text, name, title, lines)
    return split, sha.hexdigest()


def encode_sources(
    vocabulary: Vocabulary, sources: list[Source], name: str, title: str, lines: "TextLines | None" = None
) -> tuple[Split, str]:
    """Encode ranges of files as a split with their documents; return the SHA-256 (hex) of their content with it.

    `title` names the text in messages. With `lines`, each line is a document. Raises UserError as `encode_bytes` does.
    """
    as_is, counter = vocabulary.tokenizer.unit == "byte", _Counter()
    documents = (document for source in sources for document in text_files.documents(source, as_is))
    pieces = documents if lines is None else lines.documents(documents)
    ids = np.concatenate([np.empty(0, np.int32), *counter.encode_documents(pieces, vocabulary)])
    sha = json_digest([text_files.digest(source) for source in sources])
    return counter.split(vocabulary, ids, name, title), sha


@dataclass
class TextLines:
    """The lines of a text as documents of their own, with what is counted while they are read."""

    with_text: bool = False
    """Keep the text of each line."""
    empty: int = 0
    """Lines of nothing but white space, which are left out."""
    texts: dict[int, str] = field(default_factory=dict)
    """The text of each line, by its number."""
    _number: int = 0

    def documents(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield each line that is not empty as a document; its title is its number, counted from 1 over all documents."""
        for _, blocks in documents:
            for line in text_files.lines(blocks):
                self._number += 1
                if not line.strip():
                    self.empty += 1
                    continue
                if self.with_text:
                    self.texts[self._number] = line.removesuffix("\n")
                yield str(self._number), [line.removesuffix("\n")]


def _encode(
    vocabulary: Vocabulary, blocks: Iterable[str], name: str, title: str, lines: TextLines | None = None
) -> Split:
    counter, documents = _Counter(), [("", iter(blocks))]
    pieces = documents if lines is None else lines.documents(documents)
    ids = np.concatenate([np.empty(0, np.int32), *counter.encode_documents(pieces, vocabulary)])
    return counter.split(vocabulary, ids, name, title)


def _sample(corpus: Corpus) -> str:
    """Return the beginning of the training text, decoded even if it is binary."""
    start = next(text_files.raw_blocks(replace(corpus.sources["train"][0], end=None)), b"")
    return start[:4096].decode(errors="replace")


def _fingerprint(corpus: Corpus, tokenizer: Tokenizer, config: TextConfig, vocabulary: Vocabulary | None) -> str:
    is_file = isinstance(tokenizer, Pieces)
    identity = hashlib.sha256(tokenizer.json.encode()).hexdigest() if is_file else tokenizer.name
    content = [[text_files.digest(s) for s in corpus.sources[split]] for split in SPLITS]
    minimum_count = 1 if vocabularies.is_fixed(tokenizer) else config.minimum_count
    options = [config.lowercase, minimum_count, config.maximum_size]
    words = [] if vocabulary is None else [vocabulary.to_json()]
    return json_digest([FORMAT, content, corpus.documents.__name__, identity, options, *words])


def _build(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, config: TextConfig, vocabulary: Vocabulary | None
) -> None:
    """Write the ids and counts of every split, and the vocabulary, built from the training text unless it is given."""
    vocabulary = vocabulary or vocabularies.build(
        _count(corpus, tokenizer, config),
        tokenizer,
        config.lowercase,
        config.minimum_count,
        config.maximum_size,
        corpus.closed and tokenizer.name == corpus.tokenizer,
    )
    dtype = np.dtype("<u2" if len(vocabulary) < 1 << 16 else "<i4")
    splits = {}
    for split in SPLITS:
        counter = _Counter()
        ids = counter.encode_documents(_documents(corpus, split, tokenizer), vocabulary)
        write_atomically(folder / f"{split}.ids", (block.astype(dtype).tobytes() for block in ids))
        least = 2 if split == "train" else 1
        if counter.tokens < least:
            raise UserError(
                f"the {split} text of {corpus.name} has {counter.tokens} tokens, fewer than {least}; give more text"
            )
        splits[split] = counter.to_json(vocabulary) | {"dtype": dtype.str}
    write_atomically(folder / "dataset.json", json.dumps({"vocabulary": vocabulary.to_json(), "splits": splits}))


def _with_progress(corpus: Corpus, progress: ProgressCallback) -> Corpus:
    """Return the corpus with `progress` called for every block that is read; the training text is read twice."""
    sizes = _sizes(corpus)
    done, total = 0, sum(sizes.values()) + sizes["train"]

    def counted(blocks: Iterable[str]) -> Iterator[str]:
        nonlocal done
        for block in blocks:
            yield block
            done += _utf8_size(block)
            progress(done, total)

    return replace(corpus, documents=lambda title, blocks: corpus.documents(title, counted(blocks)))


def _sizes(corpus: Corpus) -> dict[str, int]:
    """Return the bytes of each split."""
    return {s: sum((x.end or text_files.size(x.path)) - x.start for x in corpus.sources[s]) for s in SPLITS}


def _count(corpus: Corpus, tokenizer: Tokenizer, config: TextConfig) -> Counter[str]:
    """Count the tokens of the training text. Raises UserError for a text without words."""
    counts: Counter[str] = Counter()
    has_cut = config.minimum_count > 1 or config.maximum_size is not None
    for _, blocks in _documents(corpus, "train", tokenizer):
        for tokens in vocabularies.tokenize(blocks, tokenizer, config.lowercase):
            counts.update(tokens)
            if len(counts) > vocabularies.LARGEST and not has_cut:
                return counts  # `build` refuses it; the rest of the text need not be read
    if tokenizer.unit != "byte" and not any(w != END and not w.isspace() for w in counts):
        raise UserError(f"the train text of {corpus.name} is empty; give a text that holds words")
    return counts


def _documents(corpus: Corpus, split: str, tokenizer: Tokenizer) -> Iterator[Document]:
    for source in corpus.sources[split]:
        for title, blocks in text_files.documents(source, as_is=tokenizer.unit == "byte"):
            yield from corpus.documents(title, blocks)


@dataclass
class _Counter:
    """Counts of a split, taken while its ids are made."""

    tokens: int = 0
    characters: int = 0
    bytes: int = 0
    words: int = 0
    documents: list[int] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    outside: Counter[str] = field(default_factory=Counter)
    """Tokens outside the vocabulary."""

    def encode_documents(self, documents: Iterable[Document], vocabulary: Vocabulary) -> Iterator[np.ndarray]:
        """Return the ids of documents, and record where each begins."""
        for title, blocks in documents:
            start = self.tokens
            for ids in self.encode(vocabulary, blocks):
                self.tokens += len(ids)
                yield ids
            if self.tokens > start:  # a document without tokens would begin where the next one does
                self.documents.append(start)
                self.titles.append(title)

    def encode(self, vocabulary: Vocabulary, blocks: Iterable[str]) -> Iterator[np.ndarray]:
        """Return the ids of one document."""
        for ids, outside in vocabulary.encode_marked(self._measure(blocks)):
            self.outside.update(outside.values())
            yield ids

    def split(self, vocabulary: Vocabulary, ids: np.ndarray, name: str, title: str) -> Split:
        """Return the split that these counts are of. Raises UserError if it has no tokens; `title` names it."""
        if not len(ids):
            raise UserError(f"{title} is empty; give some words")
        documents, outside = np.array(self.documents, np.int64), classify(self.outside, vocabulary)
        return Split(name, ids, documents, self.titles, self.characters, self.bytes, self.words, outside)

    def to_json(self, vocabulary: Vocabulary) -> dict[str, Any]:
        """Return the counts of the split as they are stored."""
        names = ("tokens", "characters", "bytes", "words", "documents", "titles")
        return {name: getattr(self, name) for name in names} | {"lost": vars(classify(self.outside, vocabulary))}

    def _measure(self, blocks: Iterable[str]) -> Iterator[str]:
        """Pass on the blocks of a document, counting characters, bytes and words."""
        last = "\n"
        for block in blocks:
            self.characters += len(block)
            self.bytes += _utf8_size(block)
            if block:
                # A word that continues from the block before was counted there.
                self.words += len(block.split()) - (not last.isspace() and not block[0].isspace()) + block.count("\n")
                last = block[-1]
            yield block
        self.words += last != "\n"


def _utf8_size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _load(entry: Path, name: str, stored: dict[str, Any]) -> Split:
    ids = np.memmap(entry / f"{name}.ids", np.dtype(stored["dtype"]), "r", shape=(stored["tokens"],))
    documents = np.array(stored["documents"], np.int64)
    sizes = stored["characters"], stored["bytes"], stored["words"]
    return Split(name, ids, documents, stored["titles"], *sizes, OutOfVocabulary(**stored["lost"]))
