"""Read a text once and score it honestly: the reading loop, the audit, metrics, generation and sessions."""

from backstory.evaluation.audit import Audit, AuditReport
from backstory.evaluation.evaluation import evaluate
from backstory.evaluation.generation import Sampling, generate, generate_ids
from backstory.evaluation.reading_loop import read
from backstory.evaluation.token_scores import token_scores
from backstory.readers.base import Block, block_count, blocks

__all__ = [
    "Audit",
    "AuditReport",
    "Block",
    "Sampling",
    "block_count",
    "blocks",
    "evaluate",
    "generate",
    "generate_ids",
    "read",
    "token_scores",
]
