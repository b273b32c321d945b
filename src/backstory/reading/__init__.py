"""Read a stream once and score it honestly: readers, the reading loop and the audit."""

from backstory.reading.audit import Audit, AuditReport
from backstory.reading.cache import CacheSettings, NeuralCache
from backstory.reading.evaluation import READERS, ReaderKind, evaluate
from backstory.reading.generation import generate, generate_ids
from backstory.reading.reader import Reader, ReaderCapabilities, StaticReader, evaluating
from backstory.reading.sampling import Sampling
from backstory.reading.stream import Block, Reading, block_count, blocks, read
from backstory.reading.tokens import TokenScores, token_scores

__all__ = [
    "READERS",
    "Audit",
    "AuditReport",
    "Block",
    "CacheSettings",
    "NeuralCache",
    "Reader",
    "ReaderCapabilities",
    "ReaderKind",
    "Reading",
    "Sampling",
    "StaticReader",
    "TokenScores",
    "block_count",
    "blocks",
    "evaluate",
    "evaluating",
    "generate",
    "generate_ids",
    "read",
    "token_scores",
]
