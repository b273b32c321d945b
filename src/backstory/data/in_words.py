"""A text whose tokens are pieces, characters or bytes, as the tokenizer `words` has it: for counts and tags of its words."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backstory.data.dataset import Dataset, Split
from backstory.data.tokenizers import Tokenizer, tokenizer
from backstory.data.vocabulary import Vocabulary, build


def in_words(dataset: Dataset, split: str) -> Dataset:
    """One split of a corpus in words, numbered as `word_numbers` numbers them, with all words of it and of the training text.

    The counts of its vocabulary are those of the training text, and 0 where there is none. The tokens must hold all of the
    text (`Dataset.lossless`).
    """
    words, known = tokenizer("words"), dataset.vocabulary
    parts = list(_documents(known, dataset.splits[split], words))
    counts: Counter[str] = Counter()
    if "train" in dataset.splits:
        for part in parts if split == "train" else _documents(known, dataset.splits["train"], words):
            counts.update(part)
    counts.update(dict.fromkeys((word for part in parts for word in part), 0))
    vocabulary = build(counts, words, known.lowercase, minimum_count=0)
    ids = np.array([vocabulary.index[word] for part in parts for word in part], np.int32)
    begins = np.cumsum([0, *map(len, parts[:-1])])
    inwards = replace(dataset.splits[split], ids=ids, documents=begins, words=len(ids))
    fingerprint = hashlib.sha256(f"{dataset.fingerprint} in words".encode()).hexdigest()
    return Dataset(dataset.corpus, vocabulary, {split: inwards}, fingerprint, dataset.provenance)


def _documents(vocabulary: Vocabulary, split: Split, words: Tokenizer) -> Iterator[list[str]]:
    """The words of each document."""
    for start, end in split.spans():
        text = vocabulary.decode(split.ids[start:end])
        found = words.split(text)
        # The end of a last line without a line break is no token's, unless white space is left over after its last word.
        yield found if text[-1:].isspace() else found[:-1]
