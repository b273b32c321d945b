"""Words to numbers: tokenizers, vocabulary, corpora, ids on disk and streams of batches; without torch."""

from backstory.data.algorithms import Algorithm, Answers
from backstory.data.boundaries import Boundaries, WordScore, check_word_score, word_nats
from backstory.data.corpora import CORPORA, Corpus, find
from backstory.data.data_folder import fetch
from backstory.data.dataset import (
    Dataset,
    Split,
    check_drawn,
    encode_bytes,
    encode_split,
    lossless,
    prepare,
    unknown_share,
    unknown_tokens,
)
from backstory.data.decoding import decode_stream, word_numbers, word_parts
from backstory.data.in_words import in_words
from backstory.data.published_corpora import PUBLISHED
from backstory.data.recall import Recall, Truth
from backstory.data.streams import piece, rotations, rows, segment_bounds
from backstory.data.tags import gold_file, is_content, is_function, tagged_by, tags_of, word_classes
from backstory.data.tokenizers import Tokenizer, tokenizer
from backstory.data.vocabulary import Vocabulary, build

__all__ = [
    "CORPORA",
    "PUBLISHED",
    "Algorithm",
    "Answers",
    "Boundaries",
    "Corpus",
    "Dataset",
    "Recall",
    "Split",
    "Tokenizer",
    "Truth",
    "Vocabulary",
    "WordScore",
    "build",
    "check_drawn",
    "check_word_score",
    "decode_stream",
    "encode_bytes",
    "encode_split",
    "fetch",
    "find",
    "gold_file",
    "in_words",
    "is_content",
    "is_function",
    "lossless",
    "piece",
    "prepare",
    "rotations",
    "rows",
    "segment_bounds",
    "tagged_by",
    "tags_of",
    "tokenizer",
    "unknown_share",
    "unknown_tokens",
    "word_classes",
    "word_nats",
    "word_numbers",
    "word_parts",
]
