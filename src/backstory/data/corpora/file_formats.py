"""Files that hold texts in a format: compressed ones, and the records of JSON Lines, CSV, Parquet and Arrow files."""

import bz2
import csv
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from backstory.data.corpora.text_files import BLOCK, decoded, lines, unreadable
from backstory.utils.errors import UserError, install_hint, nearest
from backstory.utils.terminal import one_line

if TYPE_CHECKING:
    import pyarrow

ZSTD_BLOCK = 1 << 12
"""Compressed bytes that are unpacked at once: at most 32,000 times as many."""
ZSTD_WINDOW = 1 << 31
"""The largest window, that of `zstd --long=31`."""


LONGEST_RECORD = 1 << 28
"""Characters of the longest line or cell that is read."""


@dataclass(frozen=True)
class Compression:
    """A way to compress a file: its name, the bytes that such a file begins with, and the function that unpacks it."""

    name: str
    magic: bytes
    unpack: Callable[[BinaryIO], Iterator[bytes]]


@dataclass(frozen=True)
class Format:
    """The format of a file, by the suffixes of its name; without either it is text."""

    compression: Compression | None = None
    records: str | None = None
    """Suffix of a file of records: `.jsonl`."""


def format_of(path: Path) -> Format:
    """Return the format that the name of a file says it has."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    inner = suffixes[:-1] if compression else suffixes
    return Format(compression, inner[-1] if inner and inner[-1] in RECORDS else None)


def unread(path: Path) -> tuple[str, str] | None:
    """Return the kind of a file that by its name is not plain text, with advice on it; None for others."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    inner = suffixes[:-1] if suffixes and suffixes[-1] in COMPRESSIONS else suffixes
    return UNREAD.get(inner[-1]) if inner else None


# --- compressed files ---


def unpacked(file: BinaryIO, path: Path, compression: Compression | None) -> Iterator[bytes]:
    """Yield the bytes of an open file in blocks, unpacked; `path` is for messages.

    Raises UserError for one that is damaged, or not compressed at all.
    """
    if compression is None:
        yield from iter(lambda: file.read(BLOCK), b"")
        return
    start = file.read(len(compression.magic))
    file.seek(0)
    if start and start != compression.magic:
        raise UserError(f"{path} is not compressed with {compression.name}; correct the end of its name")
    try:
        yield from compression.unpack(file)
    except (EOFError, zlib.error, lzma.LZMAError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise unreadable(path, error) from None
        raise UserError(
            f"{path} is cut off or damaged ({_reason(error)}); get it again, or check it with `{compression.name} -t`"
        ) from None


def _reason(error: BaseException) -> str:
    return one_line(str(error))[:200].rstrip(".") or type(error).__name__


def _of_module(module: Any) -> Callable[[BinaryIO], Iterator[bytes]]:
    def unpack(file: BinaryIO) -> Iterator[bytes]:
        with module.open(file, "rb") as opened:
            yield from iter(lambda: opened.read(BLOCK), b"")

    return unpack


def _zstd(file: BinaryIO) -> Iterator[bytes]:
    """Unpack the frames of a file. (The package's stream takes a file that was cut off for a whole one.)"""
    try:
        import zstandard
    except ImportError:
        raise UserError(f".zst files need the package zstandard; {install_hint('formats')}") from None
    context = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame, rest = context.decompressobj(), b""
    begun = False
    try:
        while block := rest or file.read(ZSTD_BLOCK):
            begun = True
            if text := frame.decompress(block):  # nothing before the first block is complete
                yield text
            rest = b""
            if frame.eof:
                rest, frame, begun = frame.unused_data, context.decompressobj(), False
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
    if begun:
        raise EOFError("the file ends inside a frame")


COMPRESSIONS = {
    ".gz": Compression("gzip", b"\x1f\x8b", _of_module(gzip)),
    ".bz2": Compression("bzip2", b"BZh", _of_module(bz2)),
    ".xz": Compression("xz", b"\xfd7zXZ\x00", _of_module(lzma)),
    ".zst": Compression("zstd", b"\x28\xb5\x2f\xfd", _zstd),
}
"""Compressions by suffix."""


# --- records ---

Texts = Iterator[str]
"""The texts of a file's documents, in its order."""


def texts(file: BinaryIO, path: Path, form: Format, field: str) -> Texts:
    """Yield the text of each record of an open file: its field, or column, of that name.

    Raises UserError for a file that is damaged or in another format, and for a record whose field is not there or no text.
    """
    if form.records == ARROW:
        return _arrow(file, path, field)
    if form.records == PARQUET:
        if form.compression is not None:
            raise UserError(f"{path} is a Parquet file that was compressed once more; unpack it first")
        return _parquet(file, path, field)
    assert form.records is not None
    return _READERS[form.records](decoded(unpacked(file, path, form.compression), str(path)), path, field)


def _json_lines(blocks: Iterable[str], path: Path, field: str) -> Texts:
    for where, record in _line_records(blocks, path):
        yield _text_of(record, field, where)


def _json(blocks: Iterable[str], path: Path, field: str) -> Texts:
    for where, record in _json_records(blocks, path):
        yield _text_of(record, field, where)


def _line_records(blocks: Iterable[str], path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines(blocks, LONGEST_RECORD, path), 1):
        if line.strip():
            where = f"line {number:,} of {path}"
            yield where, _parsed(line, where, "write one whole record per line")


def _json_records(blocks: Iterable[str], path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of a JSON list, of JSON Lines (which often have this suffix), or of one object; and where each is."""
    ended = lines(blocks, LONGEST_RECORD, path)
    start: list[str] = []
    while not (start and start[-1].strip()):
        if (line := next(ended, None)) is None:
            return
        start.append(line)
    first, rest = start[-1].strip(), chain(start, ended)
    if not first.startswith("[") and (not first.startswith("{") or _is_json(first)):
        yield from _line_records(rest, path)
        return
    content = _parsed("".join(_limited(rest, path)), str(path), "correct it, or write one whole record per line")
    if isinstance(content, dict):
        yield str(path), content
    else:
        yield from ((f"record {number:,} of {path}", record) for number, record in enumerate(content, 1))


def is_other_object(file: BinaryIO, path: Path, form: Format, field: str) -> bool:
    """Return True if an open `.json` file is one object that lacks the field, as files of settings are."""
    if form.records != ".json":
        return False
    blocks = decoded(unpacked(file, path, form.compression), str(path))
    start = ""
    while not start.strip():
        if (block := next(blocks, None)) is None:
            return False
        start += block
    if not start.lstrip().startswith("{"):
        return False
    records = [record for _, record in islice(_json_records(chain([start], blocks), path), 2)]
    return len(records) == 1 and field not in records[0]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _limited(blocks: Iterable[str], path: Path) -> Iterator[str]:
    size = 0
    for block in blocks:
        size += len(block)
        if size > LONGEST_RECORD:
            raise UserError(
                f"{path} is too large for one JSON list; write it as JSON Lines, a record per line (.jsonl)"
            )
        yield block


def _parsed(text: str, where: str, remedy: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({_reason(error)}); {remedy}") from None


def _text_of(record: Any, field: str, where: str) -> str:
    """Return the text of a JSON record: an object's field, or the record itself if it is a string."""
    if isinstance(record, str):
        return record
    if not isinstance(record, dict):
        raise UserError(f"{where} is not a JSON object; each record must be one, with its text in a field")
    if field not in record:
        raise _no_field(field, list(record), where)
    if not isinstance(record[field], str):
        raise UserError(f"the field {field!r} in {where} is {_kind(record[field])}, not text; correct it or remove it")
    return record[field]


def _kind(value: Any) -> str:
    kinds = {type(None): "null", bool: "a boolean", list: "a list", dict: "an object"}
    return kinds.get(type(value), "a number")


def _no_field(field: str, there: list[str], where: str) -> UserError:
    names = one_line(", ".join(there))
    shown = names if len(names) <= 200 else f"{names[:200]} ..."
    return UserError(
        f"{where} has no field {field!r}{nearest(field, there)}; name the one that holds the text with --text.field: "
        f"{shown or 'there is none'}"
    )


def _table(delimiter: str) -> Callable[[Iterable[str], Path, str], Texts]:
    def rows(blocks: Iterable[str], path: Path, field: str) -> Texts:
        with _long_cells():
            reader = csv.reader(lines(blocks, LONGEST_RECORD, path), delimiter=delimiter, strict=True)
            try:
                names = next(reader, [])
                if field not in names:
                    raise _no_field(field, names, str(path))
                if names.count(field) > 1:
                    raise UserError(f"{path} has several columns {field!r}; rename all but the one that holds the text")
                column = names.index(field)
                for number, row in enumerate(reader, 1):
                    if row and len(row) != len(names):
                        raise UserError(
                            f"row {number:,} of {path} has {len(row):,} cells, and the header {len(names):,}; "
                            "correct it, and quote texts that hold the delimiter"
                        )
                    if row:
                        yield row[column]
            except csv.Error as error:
                line = f"line {reader.line_num:,} of {path}"
                raise UserError(f"{line} is not a row of a table ({_reason(error)}); quote texts as CSV asks") from None

    return rows


@contextmanager
def _long_cells() -> Iterator[None]:
    before = csv.field_size_limit(LONGEST_RECORD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _parquet(file: BinaryIO, path: Path, field: str) -> Texts:
    arrow = _pyarrow(path)
    import pyarrow.parquet

    with _explained(arrow, path, "a Parquet"):
        table = pyarrow.parquet.ParquetFile(file)
        _check_column(table.schema_arrow, field, path)
        yield from _cells((batch.column(0) for batch in table.iter_batches(1024, columns=[field])), path)


def _arrow(file: BinaryIO, path: Path, field: str) -> Texts:
    arrow = _pyarrow(path)
    with _explained(arrow, path, "an Arrow"):
        stream = arrow.ipc.open_stream(file)
        _check_column(stream.schema, field, path)
        yield from _cells((batch.column(field) for batch in stream), path)


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow.ipc
    except ImportError:
        raise UserError(f"{path} needs the package pyarrow; {install_hint('formats')}") from None
    return pyarrow


@contextmanager
def _explained(arrow: Any, path: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not {kind} file, or is damaged ({_reason(error)}); get it again") from None


def _check_column(schema: "pyarrow.Schema", field: str, path: Path) -> None:
    if field not in schema.names:
        raise _no_field(field, schema.names, str(path))
    if schema.names.count(field) > 1:
        raise UserError(f"{path} has several columns named {field!r}; rename them, or name another with --text.field")
    kind = schema.field(field).type
    kind = getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind
    if str(kind) not in ("string", "large_string", "string_view"):
        raise UserError(f"the field {field!r} of {path} holds {kind}, not text; name another with --text.field")


def _cells(columns: Iterable[Any], path: Path) -> Texts:
    row = 0
    for column in columns:
        for text in column.to_pylist():
            row += 1
            if text is None:
                raise UserError(f"row {row:,} of {path} has no text (null); remove it")
            yield text


_READERS: dict[str, Callable[[Iterable[str], Path, str], Texts]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
}
"""Readers of records that are written as text, by suffix."""
PARQUET = ".parquet"
ARROW = "arrow"
"""A file in the folder of a Hugging Face dataset; it has no suffix of its own, since others are called `.arrow` too."""
RECORDS = {*_READERS, PARQUET}
"""Suffixes of files of records."""

# --- files that are not plain text ---

_PANDOC = "convert it to text, as with `pandoc -t plain`"
_PICTURE, _SOUND = ("a picture", "give text"), ("sound or video", "give text")
_ARCHIVE = ("an archive", "unpack it and give the folder")
_DATA = ("binary data", "give text")
UNREAD: dict[str, tuple[str, str]] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), ("a web page", _PANDOC)),
    ".xml": ("XML", "take the text out of it, and write it as .txt or .jsonl"),
    ".pdf": ("a PDF", "convert it to text, as with `pdftotext`"),
    **dict.fromkeys((".docx", ".doc", ".odt", ".rtf", ".epub"), ("a document of a word processor", _PANDOC)),
    **dict.fromkeys((".pptx", ".ppt", ".odp"), ("a presentation", "save it as text")),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), ("a spreadsheet", "save it as .csv")),
    ".ipynb": ("a notebook", "convert it, as with `jupyter nbconvert --to markdown`"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".tbz2", ".txz", ".7z", ".rar", ".jar", ".whl"), _ARCHIVE),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ico", ".svg"), _PICTURE),
    **dict.fromkeys((".mp3", ".wav", ".flac", ".ogg", ".mp4", ".mkv", ".mov", ".avi", ".webm"), _SOUND),
    ".arrow": ("one part of a dataset", "give the folder that `save_to_disk` wrote"),
    **dict.fromkeys((".npy", ".npz", ".pt", ".pth", ".bin", ".safetensors", ".pkl", ".pickle", ".h5", ".hdf5"), _DATA),
    **dict.fromkeys((".so", ".dll", ".exe", ".o", ".a", ".pyc", ".class", ".db", ".sqlite", ".feather", ".lz4"), _DATA),
}
"""Kinds of files, and the advice on each, by suffix."""
