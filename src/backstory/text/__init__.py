"""Words to numbers: tokenizers, vocabulary, corpora, ids on disk and streams of batches; without torch."""

from backstory.text.algorithms import Algorithm, Answers
from backstory.text.boundaries import Boundaries, WordScore, check_word_score, word_nats
from backstory.text.corpora import CORPORA, Corpus, find
from backstory.text.data_folder import fetch
from backstory.text.dataset import (
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
from backstory.text.decoding import decode_stream, word_numbers, word_parts
from backstory.text.in_words import in_words
from backstory.text.published import PUBLISHED
from backstory.text.recall import Recall, Truth
from backstory.text.streams import piece, rotations, rows, segment_bounds
from backstory.text.tags import gold_file, is_content, is_function, tagged_by, tags_of, word_classes
from backstory.text.tokenizers import Tokenizer, tokenizer
from backstory.text.vocabulary import Vocabulary, build

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
