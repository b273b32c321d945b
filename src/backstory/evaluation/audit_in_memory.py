"""Audit of a reader or a model in memory, on token ids or a prepared corpus."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from backstory.config.options import EvalOptions
from backstory.data import Dataset
from backstory.evaluation.evaluation import audit_ids
from backstory.models import LanguageModel
from backstory.readers import Reader, StaticReader
from backstory.results import AuditRecord
from backstory.utils.arguments import described
from backstory.utils.errors import UserError, check_name
from backstory.utils.terminal import ProgressCallback

_IN_MEMORY = ("split", "batch_size", "audit_places", "audit_seed")
"""Options of an audit that mean something for a model in memory."""


def audit_in_memory(
    model: Reader | LanguageModel, text: object, progress: ProgressCallback | None, options: Mapping[str, Any]
) -> AuditRecord:
    """Audit a reader, or the static reader of a model, on token ids or a split of a prepared corpus."""
    reader = StaticReader(model) if isinstance(model, LanguageModel) else model
    requested, usual = EvalOptions.build(None, **options), EvalOptions()
    requested.check()
    if idle := next((n for n in options if n not in _IN_MEMORY and getattr(requested, n) != getattr(usual, n)), None):
        raise UserError(f"{idle} works with runs only; leave it out, and give the reader itself to audit another")
    if isinstance(text, Dataset):
        check_name(requested.split, text.splits, "split")
        ids, start = text.splits[requested.split].ids, text.vocabulary.start
    else:
        ids = token_ids(text)
        start = int(ids[0])
    return audit_ids(reader, ids, start, requested, progress)[1].record()


def token_ids(text: object) -> np.ndarray:
    """Return a text that is token ids (N,). Raises UserError for anything else."""
    if not (isinstance(text, np.ndarray) and text.ndim == 1 and len(text) and np.issubdtype(text.dtype, np.integer)):
        wrong = f"{text.dtype} of shape {text.shape}" if isinstance(text, np.ndarray) else described(text)
        raise UserError(
            f"a reader or a model in memory reads token ids (N,) or a prepared corpus, not {wrong}; "
            "`vocabulary.encode(text)` gives ids"
        )
    return text
