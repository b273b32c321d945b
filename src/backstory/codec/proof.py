"""The proof of a score: the code of the tokens that were scored, which a decoder turns back into these tokens."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backstory.codec.code_file import Header, pack, unpack
from backstory.codec.range_coder import Coder, Decoder, Encoder
from backstory.codec.setting import Source, broken, describe, ids_hash, name_of, open_decoder, read_all, same_threads
from backstory.codec.spelling import Unit
from backstory.codec.token_code import BrokenCode, CodedText, code_lines, code_text, line_groups, side_by_side
from backstory.config.options import LoadOptions, ModelOptions
from backstory.data import Split
from backstory.readers import Reader
from backstory.readers.base import blocks
from backstory.readers.registry import ConfiguredLayer
from backstory.runs.run import Run
from backstory.utils.errors import UserError, pasted
from backstory.utils.terminal import ProgressCallback, one_line


@dataclass(frozen=True)
class Proof:
    """Scored tokens and their code."""

    header: Header
    ids: np.ndarray
    """(N,) int32."""
    nats_per_token: float
    """Length of the tokens' code, without the last tokens of rows, which stand in front of it."""
    uncounted: float
    """Bits of the rows' last tokens, as a share of the counted bits: the decoder is given them first, and they do not count."""
    run: Run
    lengths: np.ndarray | None = None
    """(lines,) tokens of each line if each was read by itself."""


def prove(
    run: Run,
    reader: Reader,
    layers: Sequence[ConfiguredLayer],
    ids: np.ndarray,
    batch_size: int,
    text: dict[str, Any],
    options: LoadOptions,
    overrides: Mapping[str, str],
    progress: ProgressCallback | None = None,
    *,
    lengths: np.ndarray | None = None,
    after: Split | None = None,
) -> tuple[Proof, bytes]:
    """Return the proof of a reading of token ids (N,), and the content of its file; the reader starts again.

    `text` says which text it is, and what was reported of it; `lengths` (lines,) are those of its lines if each was read by
    itself, and `after` is the split that was read before it. Raises UserError.
    """
    coder = Encoder()
    units = [Unit(int(id), b"", b"") for id in ids]
    size = len(ids), batch_size, None if lengths is None else len(lengths)
    before = None if after is None else after.ids
    coded, _ = _code(coder, reader, run.vocabulary.start, *size, before, progress, units, lengths)
    code = coder.finish()
    header = Header(
        content="tokens",
        size=4 * len(ids),
        sha256=ids_hash(ids),
        tokens=len(ids),
        code_size=len(code),
        code_crc=zlib.crc32(code),
        text=text,
        lines=None if lengths is None else len(lengths),
        after=None if after is None else {"split": after.name, "sha256": ids_hash(after.ids)},
        **describe(run, reader, layers, options, overrides, batch_size),
    )
    return Proof(header, ids, *_length(coded, len(ids)), run, lengths), pack(header, code)


def decode_proof(
    file: Source,
    model: Path | str | Run | None,
    options: ModelOptions,
    progress: ProgressCallback | None = None,
) -> Proof:
    """Decode a proof with its model, by default the run that the file names.

    A split that was read before the text is that of `options.corpus`, by default the run's. Raises UserError for what is no
    proof, a damaged one, another model, a code that cannot be decoded, and where that split is not here.
    """
    name = name_of(file)
    header, code = unpack(read_all(file), name)
    if header.content != "tokens":
        raise UserError(
            f"{one_line(name)} is a compressed file, not the proof of an evaluation; "
            f"use `backstory decompress {pasted(one_line(name))}`"
        )
    # Nothing is downloaded because a file says so.
    if model is None and not Path(header.model.removeprefix("hf:")).is_dir():
        raise UserError(f"the model of {one_line(name)}, {one_line(header.model)}, is not here; name it with --model")
    run, reader = open_decoder(header, header.model if model is None else model, options.device)
    unit = run.vocabulary.tokenizer.unit
    if (header.reader, (header.text or {})["unit"]) != (reader.name, unit):
        raise UserError(
            f"{one_line(name)} names the reader {one_line(header.reader)}, but its code was made by {reader.name} on {unit}s; "
            "it was changed after it was written"
        )
    before, size = _before(name, header, run, options), (header.tokens, header.batch_size, header.lines)
    try:
        with same_threads(header):
            coded, lengths = _code(Decoder(code), reader, run.vocabulary.start, *size, before, progress)
        ids = coded.tokens()
        if ids_hash(ids) != header.sha256:
            raise BrokenCode(coded)
    except BrokenCode as error:
        raise broken(name, header, error.coded) from None
    return Proof(header, ids, *_length(coded, len(ids)), run, lengths)


def _code(
    coder: Coder,
    reader: Reader,
    first: int,
    tokens: int,
    batch_size: int,
    lines: int | None,
    before: np.ndarray | None,
    progress: ProgressCallback | None,
    units: Sequence[Unit] | None = None,
    lengths: np.ndarray | None = None,
) -> tuple[CodedText, np.ndarray | None]:
    """Code tokens in the rows in which they are scored, and in front the lengths (lines,) of `lines`; return both.

    An encoder gives units and lengths. The reader has read the ids `before` (N,), if there are any. Raises BrokenCode.
    """
    if lines is None:
        groups = side_by_side(tokens, batch_size)
    else:
        lengths = code_lines(coder, tokens, lines, lengths)
        if lengths is None:
            raise BrokenCode(CodedText([], []))
        groups = line_groups(lengths, batch_size)
    if before is not None:
        _read(reader, before, first, batch_size)
    joined, start = lines is None, before is None
    coded = code_text(coder, reader, first, groups, units=units, joined=joined, start=start, progress=progress)
    return coded, lengths


@torch.no_grad()
def _read(reader: Reader, ids: np.ndarray, first: int, batch_size: int) -> None:
    """Read token ids (N,) from the start, in the blocks of `evaluate`."""
    reader.start(min(batch_size, len(ids)))
    for block in blocks(ids, first, batch_size, reader.block, next(reader.model.parameters()).device):
        reader.predict(block.tokens)
        reader.observe(block.targets)


def _before(name: str, header: Header, run: Run, options: ModelOptions) -> np.ndarray | None:
    """Return the ids (N,) of the split that was read before the text, if one was. Raises UserError if it is not here."""
    if header.after is None:
        return None
    described: dict[str, Any] = header.text or {}
    title = one_line(f"the {header.after['split']} split of {described['corpus']}")
    if options.corpus is None and described["fingerprint"] != run.corpus.get("fingerprint"):
        raise UserError(f"{one_line(name)} was scored after {title} had been read; name that corpus with --corpus")
    try:
        corpus = run.other_dataset(options.corpus, options.data_dir, options.field)
        split = corpus.splits.get(header.after["split"])
    except UserError as error:
        raise UserError(f"{one_line(name)} was scored after {title} had been read, and {error}") from None
    if split is None or ids_hash(split.ids) != header.after["sha256"]:
        here, right = "the run's corpus here", "the folder of the right one with --data-dir"
        if options.corpus is not None:
            here, right = f"that of {one_line(options.corpus)}", "the right corpus with --corpus"
        raise UserError(f"{one_line(name)} was scored after {title} had been read, and {here} is another; name {right}")
    return split.ids


def _length(coded: CodedText, tokens: int) -> tuple[float, float]:
    """Return the nats per token, and the share of what is not counted in them."""
    model, rows = coded.bits["model"], coded.bits["rows"]
    return model * math.log(2) / tokens, rows / model if model else float(rows > 0)
