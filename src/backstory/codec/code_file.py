"""The file of a code: a mark with its version, a header that says how to decode it, and the code.

b"\x8bBKS" version | length and CRC-32 of the header | header: JSON, deflated | code: one number (`range_coder`)
"""

import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_type_hints

from backstory.storage.documents import has_fields, parse
from backstory.utils.errors import UserError
from backstory.utils.terminal import one_line

MARK = b"\x8bBKS"
VERSION = 2
LARGEST_HEADER = 1 << 22
MOST_ROWS = 1 << 16
CHECK_EVERY = 4096
"""Steps between two checksums of the text."""
CHECK_BITS = 32
_START = struct.Struct(">4sBII")
TEXT = {"corpus": str, "fingerprint": str, "split": str, "unit": str, "nats_per_token": float}
"""Types of the fields on the text of a proof."""
LATER = {"lines": None, "after": None}
"""Fields that older files of this version do not have; they are written only where they are not None."""


@dataclass(frozen=True)
class Header:
    """Settings of the coding, which a decoder must repeat."""

    content: Literal["file", "tokens"]
    """Content of the code: the bytes of a file, or the tokens of an evaluation."""
    size: int
    """Bytes of the file; of tokens 4 each."""
    sha256: str
    """SHA-256 (hex) of the bytes of the file, or of the ids (N,) as little-endian int32."""
    tokens: int
    batch_size: int
    """Rows that were read side by side, each from the start."""
    model: str
    """The model as it was named to the encoder."""
    weights: str
    """SHA-256 (hex) of its weights."""
    vocabulary: str
    """SHA-256 (hex) of its vocabulary and tokenizer."""
    reader: str
    """The reader's name."""
    layers: list[dict[str, Any]]
    """Name and settings of the reader and of those that it wraps, the innermost first."""
    prepared: dict[str, str]
    """SHA-256 (hex) of what the reader takes from the run's folder of readers."""
    overrides: dict[str, str]
    """Settings of the model that differ from training."""
    loading: dict[str, Any]
    """How the model was loaded (`LoadOptions`), without the device."""
    precision: str
    machine: dict[str, str | int]
    """Versions, device, processor and threads."""
    code_size: int
    """Bytes of the code."""
    code_crc: int
    """CRC-32 of the code."""
    text: dict[str, Any] | None = None
    """Of tokens: which text they are, and the figure that an evaluation reports of it (`TEXT`)."""
    lines: int | None = None
    """Of tokens: how many lines they are, each read by itself; None for a text from end to end."""
    after: dict[str, str] | None = None
    """Of tokens: `split` that was read before them, and the `sha256` of its ids; None if they were read from the start."""


def pack(header: Header, code: bytes) -> bytes:
    """Return the content of a file."""
    values = {name: value for name, value in asdict(header).items() if name not in LATER or value is not None}
    deflated = zlib.compress(json.dumps(values, separators=(",", ":")).encode(), 9)
    return _START.pack(MARK, VERSION, len(deflated), zlib.crc32(deflated)) + deflated + code


def unpack(data: bytes, name: str, damaged: bool = False) -> tuple[Header, bytes]:
    """Return the header and the code in a file.

    Raises UserError for what is no such file, is of a later version, or is damaged; a damaged or truncated code behind a whole
    header is accepted if `damaged`.
    """
    name = one_line(name)
    if data[: len(MARK)] != MARK:
        raise UserError(f"{name} is not a file of `backstory compress` or `evaluate --proof`; give one that is")
    if len(data) < _START.size:
        raise UserError(f"{name} ends within its header; get the whole file")
    _, version, size, crc = _START.unpack_from(data)
    if version != VERSION:
        raise UserError(
            f"{name} is of version {version} of the format, but this backstory reads version {VERSION}; use another backstory"
        )
    deflated, code = data[_START.size : _START.size + size], data[_START.size + size :]
    if len(deflated) < size:
        raise UserError(f"{name} ends within its header; get the whole file")
    try:
        header = _header(deflated) if zlib.crc32(deflated) == crc else None
    except (ValueError, zlib.error):
        header = None
    if header is None:
        raise UserError(f"{name} is damaged: its header is not what was written; get the file again")
    if damaged:
        return header, code
    if len(code) != header.code_size:
        what = f"ends after {len(code):,} of" if len(code) < header.code_size else f"has {len(code):,} bytes instead of"
        remedy = ", or add --keep" if header.content == "file" else ""
        raise UserError(f"{name} {what} {header.code_size:,} bytes of code; get the whole file{remedy}")
    if zlib.crc32(code) != header.code_crc:
        remedy = ", or save what comes before with --keep" if header.content == "file" else ""
        raise UserError(f"{name} is damaged: its code is not what was written; get it again{remedy}")
    return header, code


def _header(deflated: bytes) -> Header | None:
    """Return a header; None for what is not a header. Raises ValueError and zlib.error."""
    inflater = zlib.decompressobj()
    values = parse(inflater.decompress(deflated, LARGEST_HEADER))
    values = LATER | values if isinstance(values, dict) else values
    hints = get_type_hints(Header) | {"content": str}
    if not has_fields(values, hints) or values["content"] not in ("file", "tokens"):
        return None
    header = Header(**cast(dict[str, Any], values))
    numbers = header.size, header.tokens, header.code_size, header.code_crc
    valid = min(numbers) >= 0 and 1 <= header.batch_size <= MOST_ROWS and len(header.layers) > 0
    # The checksums of that many tokens would not fit into the code: a header alone must not cause allocations.
    checks = header.tokens // header.batch_size // CHECK_EVERY
    valid = valid and checks * CHECK_BITS <= 8 * header.code_size
    if header.content == "tokens":
        valid = valid and header.tokens > 0 and has_fields(header.text, TEXT)
        valid = valid and (header.lines is None or 1 <= header.lines <= header.tokens)
        valid = valid and (header.after is None or has_fields(header.after, {"split": str, "sha256": str}))
    return header if valid else None
