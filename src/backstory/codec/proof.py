"""The proof of a score: the code of the tokens that were scored, which a decoder turns back into these tokens."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backstory.codec.code_file import Header, pack, unpack
from backstory.codec.range_coder import Decoder, Encoder
from backstory.codec.setting import Source, broken, describe, ids_hash, name_of, open_decoder, read_all, same_threads
from backstory.codec.spelling import Unit
from backstory.codec.token_code import BrokenCode, code_text, side_by_side
from backstory.config import UserError
from backstory.config.errors import pasted
from backstory.config.options import LoadOptions
from backstory.config.terminal import one_line
from backstory.readers import Reader
from backstory.readers.registry import ConfiguredLayer
from backstory.runs.run import Run

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Proof:
    """Scored tokens and their code."""

    header: Header
    ids: np.ndarray
    """(N,) int32."""
    nats_per_token: float
    """Length of the tokens' code, without what says where rows begin."""
    run: Run


def prove(
    run: Run,
    reader: Reader,
    layers: Sequence[ConfiguredLayer],
    ids: np.ndarray,
    batch_size: int,
    text: dict[str, Any],
    options: LoadOptions,
    overrides: Mapping[str, str],
    progress: Progress | None = None,
) -> tuple[Proof, bytes]:
    """Return the proof of a reading of token ids (N,), and the content of its file; the reader starts again.

    `text` says which text it is, and what was reported of it. Raises UserError.
    """
    coder = Encoder()
    units = [Unit(int(id), b"", b"") for id in ids]
    groups = side_by_side(len(ids), batch_size)
    coded = code_text(coder, reader, run.vocabulary.start, groups, units=units, joined=True, progress=progress)
    code = coder.finish()
    header = Header(
        content="tokens",
        size=4 * len(ids),
        sha256=ids_hash(ids),
        tokens=len(ids),
        code_size=len(code),
        code_crc=zlib.crc32(code),
        text=text,
        **describe(run, reader, layers, options, overrides, batch_size),
    )
    return Proof(header, ids, _nats(coded.bits["model"], len(ids)), run), pack(header, code)


def decode_proof(
    file: Source, model: Path | str | Run | None = None, device: str = "auto", progress: Progress | None = None
) -> Proof:
    """Decode a proof with its model, by default the run that the file names.

    Raises UserError for what is no proof, a damaged one, another model, and a code that does not come out.
    """
    name = name_of(file)
    header, code = unpack(read_all(file), name)
    if header.content != "tokens":
        raise UserError(
            f"{one_line(name)} is a compressed file, not the proof of an evaluation; "
            f"use `backstory decompress {pasted(one_line(name))}`"
        )
    if model is None and not Path(header.model).is_dir():  # nothing is downloaded because a file says so
        raise UserError(f"the model of {one_line(name)}, {one_line(header.model)}, is not here; name it with --model")
    run, reader = open_decoder(header, header.model if model is None else model, device)
    coder = Decoder(code)
    try:
        with same_threads(header):
            groups = side_by_side(header.tokens, header.batch_size)
            coded = code_text(coder, reader, run.vocabulary.start, groups, joined=True, progress=progress)
        ids = coded.tokens()
        if ids_hash(ids) != header.sha256:
            raise BrokenCode(coded)
    except BrokenCode as error:
        raise broken(name, header, error.coded) from None
    return Proof(header, ids, _nats(coded.bits["model"], len(ids)), run)


def _nats(bits: float, tokens: int) -> float:
    return bits * math.log(2) / tokens
