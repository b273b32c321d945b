"""Read a stream once and score it honestly: readers, the reading loop and the audit."""

from backstory.reading.audit import Audit, AuditReport
from backstory.reading.evaluation import READERS, ReaderKind, evaluate
from backstory.reading.reader import Reader, ReaderCapabilities, StaticReader, evaluating
from backstory.reading.stream import Block, Reading, block_count, blocks, read
from backstory.reading.tokens import TokenScores, token_scores

__all__ = [
    "READERS",
    "Audit",
    "AuditReport",
    "Block",
    "Reader",
    "ReaderCapabilities",
    "ReaderKind",
    "Reading",
    "StaticReader",
    "TokenScores",
    "block_count",
    "blocks",
    "evaluate",
    "evaluating",
    "read",
    "token_scores",
]
