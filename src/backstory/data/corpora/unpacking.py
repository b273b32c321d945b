"""Files in a format to ranges of plain text: unpacked once into the cache, with the offsets of their documents."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from backstory.data.corpora.file_formats import Format, format_of, is_other_object, texts, unpacked, unread
from backstory.data.corpora.text_files import Source, decoded, digest, encoding_of, open_file, size
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically
from backstory.storage.documents import json_digest
from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback, preparing

FORMAT = 1
"""Version of the rules that turn a file into text."""
LARGEST_SMALL, LARGEST_RATIO = 1 << 28, 200
"""Size in bytes that any file may unpack to, and the maximum ratio for larger texts."""
TEXTS = (".txt", ".text", ".tokens", ".md", ".rst")
"""Suffixes of files that must be texts: one that is not is an error, and not left out of a folder."""
TEXT, DOCUMENTS = "text", "documents"
"""Files of an entry in the cache: the text in UTF-8, and the offsets of its documents as int64."""


@dataclass(frozen=True)
class TextReader:
    """How files are read as text.

    `field` names the field, or column, of records. `as_is` takes every file that is neither compressed nor one of records as
    it is, whatever it holds, as the tokenizer `bytes` does.
    """

    field: str = "text"
    as_is: bool = False

    def source(self, path: Path, title: str = "") -> Source:
        """Return a file as a range of text. Raises UserError for one that is damaged, or holds no text."""
        size(path)  # a pipe would be waited for
        form = format_of(path)
        if not self.as_is and (known := unread(path)) is not None:
            raise UserError(f"{path} is {known[0]}; {known[1]}")
        if form == Format() and (self.as_is or not _is_wide(path)):
            return Source(path, title)
        return self.unpacked([path], form, title)

    def unpacked(self, paths: list[Path], form: Format, title: str = "", name: Path | None = None) -> Source:
        """Return the text of files that follow each other, from the cache if they were unpacked before."""
        name, total = name or paths[0], sum(size(path) for path in paths)
        field = self.field if form.records else None
        as_is = self.as_is and not form.records
        content = [FORMAT, form.records, field, [digest(Source(path)) for path in paths]]
        content += ["as it is"] if as_is else []
        key = json_digest(content)

        def make(folder: Path) -> None:
            with preparing(f"the text of {name.name}", total) as progress:
                _unpack(folder, paths, form, self, str(name), total, progress)

        entry = disk_cache.fetch(f"unpacked-{key[:32]}", make)
        documents = np.fromfile(entry / DOCUMENTS, "<i8") if form.records else None
        return Source(entry / TEXT, title, documents=documents, origin=str(name))


def is_plain(path: Path) -> bool:
    """Return True for a file, or a pipe, that is read as it is."""
    return not path.is_dir() and format_of(path) == Format() and unread(path) is None


def kind_of(path: Path, reader: TextReader) -> str | None:
    """Return the kind of a file without text, to be left out of a folder; None for a text."""
    form = format_of(path)
    if not reader.as_is and (known := unread(path)) is not None:
        return known[0]
    if form.records:
        with open_file(path) as file:
            return f"JSON without the field {reader.field}" if is_other_object(file, path, form, reader.field) else None
    if reader.as_is or form != Format() or path.suffix.lower() in TEXTS:
        return None
    with open_file(path) as file:
        start = file.read(1 << 16)
    return "binary data" if b"\x00" in start and encoding_of(start) == "utf-8" else None


def is_blank(path: Path) -> bool:
    """Return True for an empty file, or one with only a little white space."""
    if size(path) > 1 << 12:
        return False
    with open_file(path) as file:
        return not file.read().strip()


def _is_wide(path: Path) -> bool:
    """Return True for a file that begins with the byte-order mark of UTF-16 or UTF-32."""
    with open_file(path) as file:
        return encoding_of(file.read(4)) != "utf-8"


def _unpack(
    folder: Path, paths: list[Path], form: Format, reader: TextReader, name: str, total: int, progress: ProgressCallback
) -> None:
    """Write the text of files and, of records, where each begins."""
    begins, done = [], 0

    def blocks() -> Iterator[bytes]:
        nonlocal done
        written = 0
        for path in paths:
            with open_file(path) as file:
                for block in _blocks(file, path, form, reader):
                    if form.records:
                        begins.append(written)
                    written += len(block)
                    _check_size(written, total, name)
                    yield block
                    progress(min(done + file.tell(), total), total)
                done += size(path)

    write_atomically(folder / TEXT, blocks())
    if form.records:
        if not begins:
            raise UserError(f"{name} is empty; give a file that holds text")
        write_atomically(folder / DOCUMENTS, np.array(begins, "<i8").tobytes())


def _blocks(file: BinaryIO, path: Path, form: Format, reader: TextReader) -> Iterator[bytes]:
    """Yield the UTF-8 bytes of a text in blocks, or of records one by one, each ended by a line end."""
    if form.records:
        for number, text in enumerate(texts(file, path, form, reader.field), 1):
            if text:
                try:
                    yield text.encode() if text.endswith("\n") else f"{text}\n".encode()
                except UnicodeEncodeError:
                    raise UserError(
                        f"the text of record {number:,} of {path} holds a lone surrogate; correct it or remove it"
                    ) from None
        return
    bytes_ = unpacked(file, path, form.compression)
    start = next(bytes_, b"")
    if reader.as_is or encoding_of(start) == "utf-8":
        yield start
        yield from bytes_
    else:
        yield from (text.encode() for text in decoded(chain([start], bytes_), str(path)))


def _check_size(written: int, total: int, name: str) -> None:
    """Raise UserError for a text so much larger than its file that it probably is a decompression bomb."""
    if written > max(LARGEST_SMALL, LARGEST_RATIO * total):
        raise UserError(
            f"{name} unpacks to more than {LARGEST_RATIO} times its size, so it is not unpacked; "
            "if it is a text, unpack it yourself"
        )
