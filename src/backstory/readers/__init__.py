"""Readers: how a text is read, from a static model to weights that move; each predicts before it observes."""

from backstory.readers.base import Reader, ReaderCapabilities, StaticReader, WrappingReader, evaluating
from backstory.readers.registry import READERS, ReaderKind

__all__ = [
    "READERS",
    "Reader",
    "ReaderCapabilities",
    "ReaderKind",
    "StaticReader",
    "WrappingReader",
    "evaluating",
]
