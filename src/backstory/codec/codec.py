"""Compress a file with a model, and decompress it: a decoder with the model alone restores the same bytes.

The length of the code is the score of the model on the file, in bits, and the decoder is the proof of it: it enforces all
conditions of an honest score on every token (docs/codec.md).
"""

import hashlib
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from backstory.codec.code_checkpoint import CodeCheckpoint, checkpoint_folder
from backstory.codec.code_file import MOST_ROWS, Header, pack, unpack
from backstory.codec.range_coder import Decoder, Encoder
from backstory.codec.setting import (
    Source,
    broken,
    check_out,
    describe,
    machine,
    name_of,
    open_decoder,
    read_all,
    same_threads,
    write,
)
from backstory.codec.spelling import Speller, Spelling
from backstory.codec.token_code import BrokenCode, code_text, one_by_one, side_by_side
from backstory.config.options import SAVE_EVERY, LoadOptions
from backstory.models.devices import restored_threads
from backstory.readers.base import Reader, check_rows
from backstory.readers.reading_threads import COLUMNS, TOKENS, choose_threads
from backstory.readers.registry import ConfiguredLayer, open_reader
from backstory.readers.saved_reading import reader_identity
from backstory.runs.run import Run
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback, one_line


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """A file and its code."""

    size: int
    """Bytes of the file."""
    tokens: int
    """Tokens that it was cut into."""
    code_size: int
    """Bytes of the code's file."""
    header_size: int
    """Bytes of these that say how to decode it."""
    model_bits: float
    """Length of the tokens: the score of the model."""
    spelling_bits: float
    """Length of the spelling: blanks, case, words outside the vocabulary."""
    check_bits: float
    """Length of the checksums."""
    bits_per_byte: float | None
    """(model + spelling) / size, which compares between models of all vocabularies; None for an empty file."""
    seconds: float
    data: bytes = field(repr=False, compare=False)
    """The content of the code's file."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {name: value for name, value in vars(self).items() if name != "data"}


@checked(batch_size=(1, MOST_ROWS), save_every=0)
@restored_threads()
def compress(
    file: Source,
    model: Path | str | Run,
    out: Path | str | None = None,
    *,
    reader: str | Sequence[str] = "static",
    batch_size: int = 1,
    precision: str = "float32",
    overrides: Mapping[str, str] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    save_every: float = SAVE_EVERY,
    progress: ProgressCallback | None = None,
    **loading: Any,
) -> Compressed:
    """Compress any file with a model, token by token as a reader predicts it.

    Args:
        file: The path of a file, its bytes, or a file that is open for bytes.
        model: A run's folder, `hf:PATH_OR_NAME`, or an open run.
        out: Also write the code to this file.
        reader: The reader, or several that wrap each other (`backstory ls readers`).
        batch_size: Rows read side by side: faster, and a little longer, as each begins at the model's start.
        precision: Precision of matrix products.
        overrides: Settings of the model that differ from training, by dotted name.
        overwrite: Replace a file that is at `out`.
        resume: Continue the same compression where it was stopped or killed, from its last checkpoint, beside `out`.
        save_every: Seconds between checkpoints; 0: never.
        progress: Called with the tokens coded so far and all tokens.
        loading: Fields of `LoadOptions`, such as `device`.

    Returns the lengths, and the code in `.data`. Raises UserError, before anything is written.

    Example:
        >>> code = bs.compress("my.txt", "runs/demo", "my.bks", reader="cache")
        >>> print(code.bits_per_byte)
    """
    if out is not None:
        check_out(Path(out), overwrite, file)
        checkpoint_folder(Path(out))
    elif resume:
        raise UserError("nothing to resume: a compression is saved beside its file; name that with --out")
    data, options = read_all(file), LoadOptions.of(**loading)
    run, opened, layers = open_reader(model, reader, precision, options, overrides)
    check_rows(opened, batch_size)
    started, sha256 = time.perf_counter(), hashlib.sha256(data).hexdigest()
    with _saving(out, run, opened, layers, sha256, batch_size, save_every, resume) as checkpoint:
        encoded = _encode(data, run, opened, batch_size, checkpoint, progress)
        header = Header(
            content="file",
            size=len(data),
            sha256=sha256,
            tokens=encoded.tokens,
            code_size=len(encoded.code),
            code_crc=zlib.crc32(encoded.code),
            **describe(run, opened, layers, options, overrides or {}, batch_size),
        )
        content = pack(header, encoded.code)
        if out is not None:
            write(Path(out), content)
    return Compressed(
        size=len(data),
        tokens=encoded.tokens,
        code_size=len(content),
        header_size=len(content) - len(encoded.code),
        model_bits=encoded.model_bits,
        spelling_bits=encoded.spelling_bits,
        check_bits=encoded.check_bits,
        bits_per_byte=(encoded.model_bits + encoded.spelling_bits) / len(data) if data else None,
        seconds=round(time.perf_counter() - started, 1),
        data=content,
    )


class _Encoded(NamedTuple):
    """The code of a file, and the lengths of its parts."""

    code: bytes
    tokens: int
    model_bits: float
    spelling_bits: float
    check_bits: float


def _encode(
    data: bytes,
    run: Run,
    reader: Reader,
    batch_size: int,
    checkpoint: CodeCheckpoint | None,
    progress: ProgressCallback | None,
) -> _Encoded:
    """Cut the bytes of a file into tokens, and code each by the reader's distribution and how it is spelled."""
    spelling = Spelling.of(run.vocabulary)
    units, rest = spelling.cut(data)
    if units and not (checkpoint is not None and checkpoint.is_resumed):
        ids = [unit.id for unit in units[: max(TOKENS, COLUMNS * batch_size)]]
        _choose_threads(reader, ids, batch_size, len(units))
    coder, speller, groups = Encoder(), Speller(spelling), side_by_side(len(units), batch_size)
    coded = code_text(
        coder,
        reader,
        run.vocabulary.start,
        groups,
        units=units,
        speller=speller,
        checkpoint=checkpoint,
        progress=progress,
    )
    bits, before = coded.bits, coder.bits
    speller.rest(coder, rest)
    return _Encoded(coder.finish(), len(units), bits["model"], bits["spelling"] + coder.bits - before, bits["checks"])


def _saving(
    out: Path | str | None,
    run: Run,
    reader: Reader,
    layers: Sequence[ConfiguredLayer],
    sha256: str,
    batch_size: int,
    save_every: float,
    resume: bool,
) -> AbstractContextManager[CodeCheckpoint | None]:
    """Return what saves a compression beside its file, if it has one."""
    if out is None:
        return nullcontext()
    text = {"text": sha256, "batch_size": batch_size}
    identity = {**reader_identity(run, layers, reader), **text}
    return CodeCheckpoint(Path(out), lambda: identity | machine(run.device), save_every, resume)


def _choose_threads(reader: Reader, ids: Sequence[int], batch_size: int, tokens: int) -> None:
    """Set the number of threads with which a text is coded fastest; the decoder takes the same, from the header."""
    known = np.maximum(ids, 0)  # ESCAPED is none that a model knows
    if one_by_one(reader):
        choose_threads(reader, known, batch_size, tokens, by_token=True)
    else:  # every token is predicted again with each of its block's that follow
        choose_threads(reader, known, batch_size, tokens * reader.block // 2)


@checked()
def decompress(
    file: Source,
    model: Path | str | Run,
    out: Path | str | None = None,
    *,
    keep: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    progress: ProgressCallback | None = None,
) -> bytes:
    """Return the bytes of a file that was compressed with this model.

    Args:
        file: The code: the path of its file, its bytes, or a file that is open for bytes.
        model: The model that it was compressed with.
        out: Also write the bytes to this file.
        keep: Of a damaged code, write what comes before the damage to `out`; the error is raised all the same.
        overwrite: Replace a file that is at `out`.
        device: auto, cpu or cuda.
        progress: Called with the tokens decoded so far and all tokens.

    Raises UserError for what is no code, a damaged one, another model, and a code that cannot be decoded.

    Example:
        >>> bs.decompress("my.bks", "runs/demo", "again.txt")
    """
    name = name_of(file)
    if out is not None:
        check_out(Path(out), overwrite, file)
    header, code = unpack(read_all(file), name, damaged=keep)
    if header.content != "file":
        raise UserError(f"{one_line(name)} is the proof of an evaluation, not a file; use `backstory verify`")
    run, reader = open_decoder(header, model, device)
    coder, speller = Decoder(code), Speller(Spelling.of(run.vocabulary))
    groups = side_by_side(header.tokens, header.batch_size)
    try:
        with same_threads(header):
            coded = code_text(coder, reader, run.vocabulary.start, groups, speller=speller, progress=progress)
        data = coded.joined() + speller.rest(coder, b"")
        if hashlib.sha256(data).hexdigest() != header.sha256:
            raise BrokenCode(coded)
    except BrokenCode as error:
        undamaged = error.coded.first_row() if keep and out is not None else None
        if undamaged is not None and out is not None:
            write(Path(out), undamaged)
        raise broken(name, header, error.coded, None if undamaged is None else len(undamaged)) from None
    if out is not None:
        write(Path(out), data)
    return data
