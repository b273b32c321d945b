"""Words to numbers: tokenizers, vocabulary, corpora, ids on disk and streams of batches; without torch."""

from backstory.data.corpora.catalogue import CORPORA, find
from backstory.data.corpora.published_corpora import PUBLISHED, fetch
from backstory.data.dataset import (
    Dataset,
    Split,
    lossless,
    piece,
    rotations,
    rows,
    segment_bounds,
    unknown_share,
)
from backstory.data.decoding import decode_stream, in_words, word_numbers, word_parts
from backstory.data.encoding import check_synthetic, encode_bytes, encode_sources, encode_split, prepare
from backstory.data.synthetic.algorithms import Algorithm, Answers
from backstory.data.synthetic.recall import Recall, Truth
from backstory.data.tags import gold_file, is_content, is_function, tagged_by, tags_of, word_classes
from backstory.data.tokenizers.boundaries import Boundaries, WordScore, word_nats
from backstory.data.tokenizers.built_in import tokenizer
from backstory.data.tokenizers.vocabulary import Vocabulary, build

__all__ = [
    "CORPORA",
    "PUBLISHED",
    "Algorithm",
    "Answers",
    "Boundaries",
    "Dataset",
    "Recall",
    "Split",
    "Truth",
    "Vocabulary",
    "WordScore",
    "build",
    "check_synthetic",
    "decode_stream",
    "encode_bytes",
    "encode_sources",
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
    "word_classes",
    "word_nats",
    "word_numbers",
    "word_parts",
]
