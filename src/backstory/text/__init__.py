"""Words to numbers: tokenizers, vocabulary, corpora, ids on disk and streams of batches; without torch."""

from backstory.text.corpora import CORPORA, Corpus, find
from backstory.text.data_folder import fetch
from backstory.text.dataset import Dataset, Split, encode_split, prepare
from backstory.text.published import PUBLISHED
from backstory.text.streams import piece, rotations, rows, segment_bounds
from backstory.text.tokenizers import Tokenizer, tokenizer
from backstory.text.vocabulary import Vocabulary, build

__all__ = [
    "CORPORA",
    "PUBLISHED",
    "Corpus",
    "Dataset",
    "Split",
    "Tokenizer",
    "Vocabulary",
    "build",
    "encode_split",
    "fetch",
    "find",
    "piece",
    "prepare",
    "rotations",
    "rows",
    "segment_bounds",
    "tokenizer",
]
