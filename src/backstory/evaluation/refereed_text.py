"""A text that a predictor is scored on: its tokens and bytes, counted by us."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from backstory.data import Vocabulary, encode_bytes, lossless
from backstory.utils.errors import UserError

BYTES, LINE_END = 256, 10
"""Types of a text that is read as bytes, and the byte that stands before the first one."""


@dataclass(frozen=True)
class RefereedText:
    """Tokens to predict, counted by us."""

    name: str
    ids: np.ndarray
    """(N,)"""
    start: int
    """Input before the first token."""
    types: int | None = None
    """Types of the vocabulary; None if the predictor's first table says it."""
    unit: str = "token"
    bytes: int | None = None
    """Bytes of the text; None where its tokens do not hold all of it."""

    @staticmethod
    def of_path(path: Path, vocabulary: Vocabulary | None = None) -> "RefereedText":
        """Return the text of a file, as `of_file` does. Raises UserError for a file that cannot be read."""
        try:
            with path.open("rb") as file:
                return RefereedText.of_file(file, path.name, vocabulary)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; give the path of a text") from None

    @staticmethod
    def of_file(file: BinaryIO, name: str, vocabulary: Vocabulary | None = None) -> "RefereedText":
        """Return the bytes of an open file as tokens, or its tokens in a vocabulary. Raises UserError for an empty text."""
        content = file.read()
        if not content:
            raise UserError(f"{name} is empty; give a text with at least one byte")
        if vocabulary is None:
            ids = np.frombuffer(content, np.uint8).astype(np.int64)
            return RefereedText(name, ids, LINE_END, BYTES, "byte", len(content))
        split, _ = encode_bytes(vocabulary, [content], "text", name)
        size = split.bytes if lossless(vocabulary, split) else None
        return RefereedText(name, split.ids, vocabulary.start, len(vocabulary), vocabulary.tokenizer.unit, size)

    def description(self) -> dict[str, Any]:
        """Return what a result's provenance says of it."""
        sha256 = hashlib.sha256(self.ids.astype(np.int64).tobytes()).hexdigest()
        return {"name": self.name, "fingerprint": sha256, "types": self.types, "provenance": "a user's own text"}
