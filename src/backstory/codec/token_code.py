"""Code a text token by token with a reader's own distributions: the encoder takes the decoder's steps, in the same shapes.

    predict the next token of every row -> code the tokens -> observe them -> the next step

Whatever a reader does with its observations, the decoder repeats. It cannot use anything that the decoder lacks.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from backstory.codec.code_file import CHECK_BITS, CHECK_EVERY
from backstory.codec.range_coder import Coder
from backstory.codec.shares import cumulative_shares
from backstory.codec.spelling import ESCAPED, Speller, Unit, kind_of_last
from backstory.readers import Reader
from backstory.readers.base import line_batches
from backstory.utils.terminal import ProgressCallback

Rows = Sequence[tuple[int, int]]
"""Where the texts begin and end (exclusive) that are read side by side, each from the reader's start."""


@dataclass
class CodedText:
    """The tokens and bytes coded so far."""

    ids: list[int]
    texts: list[bytes]
    """The bytes of each token."""
    checked: int = 0
    """Steps verified by checksums."""
    checked_tokens: int = 0
    """Tokens of these steps."""
    bits: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("model", "spelling", "rows", "checks"), 0.0))
    """Length of the code by its parts."""

    def joined(self) -> bytes:
        """Return the text."""
        return b"".join(self.texts)

    def first_row(self) -> bytes:
        """Return the beginning of the text that came out right: of its first row, if there are several."""
        return b"".join(self.texts[: self.checked])

    def tokens(self) -> np.ndarray:
        """Return the ids (N,) int32."""
        return np.array(self.ids, np.int32)


class BrokenCode(Exception):
    """Raised when a checksum differs."""

    def __init__(self, coded: CodedText) -> None:
        super().__init__(f"the code cannot be decoded after step {coded.checked}")
        self.coded = coded


class CodingCheckpoint(Protocol):
    """Saves a coding while it lasts, and resumes it."""

    @property
    def done(self) -> int:
        """Steps that were coded before; the reader skips them."""
        ...

    def restore(self, reader: Reader, coder: Coder, coded: CodedText) -> None:
        """Restore all three as they were after these steps."""

    def passed(self, step: int, rows: int, reader: Reader, coder: Coder, coded: CodedText) -> None:
        """Save them if it is time to; called after a step at which the reader has observed every token."""


class Steps:
    """Reads rows one token at a time.

    A reader for which the cut into blocks makes no difference reads blocks of one token. For any other, a block grows by a
    token at a time until it has the reader's own length, and is observed then, as `evaluate` does: that takes quadratic time.
    """

    def __init__(self, reader: Reader, rows: int, start: bool = True) -> None:
        """Without `start` the reader goes on from what it has read."""
        self.reader, self._rows = reader, rows
        self._device = next(reader.model.parameters()).device
        # A reader that goes on may hold a part of a block already: then its blocks must end where they do in `evaluate`.
        single = one_by_one(reader) if start else reader.capabilities.block_invariant
        self._size = 1 if single else reader.block
        self._tokens = self._targets = torch.empty(rows, 0, dtype=torch.long, device=self._device)
        if start:
            reader.start(rows)

    @property
    def between_blocks(self) -> bool:
        """True if the reader has observed all tokens."""
        return not self._tokens.shape[1]

    def predict(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the cumulative shares (B, V + 1) of what follows the last tokens (B) of the rows. Raises UserError."""
        self._tokens = torch.cat([self._tokens, self._column(tokens)], 1)
        prediction = self.reader.predict(self._tokens)
        length = self._tokens.shape[1]
        with self.reader.precision.context(self._device):
            if length > 1:
                rows = torch.arange(self._rows, device=self._device)
                prediction = prediction.select(rows, torch.full_like(rows, length - 1))
            log_probs = prediction.log_probs()[:, 0]
        return cumulative_shares(log_probs, self.reader.name)

    def observe(self, targets: Sequence[int]) -> None:
        """Take the tokens (B) that followed as read."""
        self._targets = torch.cat([self._targets, self._column(targets)], 1)
        if self._targets.shape[1] == self._size:
            self.reader.observe(self._targets)
            self._tokens = self._targets = self._targets[:, :0]

    def _column(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.long, device=self._device)[:, None]


def one_by_one(reader: Reader) -> bool:
    """Return True if a reader's scores are the same when its blocks come one token at a time."""
    return reader.capabilities.block_invariant or reader.capabilities.collects_blocks


def side_by_side(tokens: int, batch_size: int) -> list[Rows]:
    """Return the group of rows that a text of so many tokens is cut into; the last ones may be shorter, or empty."""
    if not tokens:
        return []
    rows = min(batch_size, tokens)
    length = math.ceil(tokens / rows)
    return [[(min(row * length, tokens), min((row + 1) * length, tokens)) for row in range(rows)]]


def code_lines(coder: Coder, tokens: int, lines: int, lengths: np.ndarray | None = None) -> np.ndarray | None:
    """Code how many tokens each line of a text has, (lines,); return None where these are no lines of so many tokens.

    An encoder gives the lengths; a decoder gets them back.
    """
    bits, left = tokens.bit_length(), tokens
    coded = np.empty(lines, np.int64)
    for line in range(lines):
        coded[line] = coder.number(bits, 0 if lengths is None else int(lengths[line]))
        left -= int(coded[line])
        if coded[line] < 1 or left < 0:
            return None
    return None if left else coded


def line_groups(lengths: np.ndarray, batch_size: int) -> list[Rows]:
    """Return the groups of rows that lines of these lengths (lines,) are read in, each line by itself."""
    ends = np.cumsum(lengths)
    return [
        [(int(ends[line] - lengths[line]), int(ends[line])) for line in batch]
        for batch in line_batches(lengths, batch_size)
    ]


@torch.no_grad()
def code_text(
    coder: Coder,
    reader: Reader,
    first: int,
    groups: Sequence[Rows],
    *,
    units: Sequence[Unit] | None = None,
    speller: Speller | None = None,
    joined: bool = False,
    start: bool = True,
    checkpoint: CodingCheckpoint | None = None,
    progress: ProgressCallback | None = None,
) -> CodedText:
    """Code the tokens of groups of rows, one group after the other, each row from the token `first` on.

    An encoder gets the `units`; a decoder finds them. Without a `speller` only the ids are coded. `joined` rows begin with the
    last token of the row before, as in `evaluate`, and these tokens are coded before all others. Without `start` the reader
    of a single group goes on from what it has read. Raises BrokenCode where the decoder comes to another text than the
    encoder, and UserError for a reader without whole distributions.
    """
    tokens = max((end for rows in groups for _, end in rows), default=0)
    text = _TextCoder(coder, CodedText([ESCAPED] * tokens, [b""] * tokens), units, speller)
    step, done = 0, 0 if checkpoint is None else checkpoint.done
    for rows in groups:
        steps, before = Steps(reader, len(rows), start), [0] * len(rows)
        inputs = [first] * len(rows)
        if joined:
            inputs[1:] = [text.row_end(begin - 1, reader) if begin < end else first for begin, end in rows[1:]]
        for offset in range(max(end - begin for begin, end in rows)):
            step += 1
            # What was coded before a resumption is coded again without the reader: the spelling learns from it.
            shares = steps.predict(inputs) if step > done else None
            for row, (begin, end) in enumerate(rows):
                inputs[row] = first
                if (position := begin + offset) < end:
                    id, before[row] = text.code(position, None if shares is None else shares[row], before[row])
                    inputs[row] = first if id == ESCAPED else id
            if shares is not None:
                steps.observe(inputs)
            if step % CHECK_EVERY == 0:
                text.check(step)
            if checkpoint is not None and step == done:
                checkpoint.restore(reader, coder, text.coded)
            elif checkpoint is not None and step > done and steps.between_blocks:
                checkpoint.passed(step, len(rows), reader, coder, text.coded)
            if progress is not None and step > done:
                progress(text.tokens, tokens)
    return text.coded


_NOTHING = Unit(ESCAPED, b"", b"")


class _TextCoder:
    """A text that is being coded, unit by unit."""

    def __init__(self, coder: Coder, coded: CodedText, units: Sequence[Unit] | None, speller: Speller | None) -> None:
        self.coder, self.coded, self.tokens = coder, coded, 0
        self._units, self._speller, self._crc = units, speller, 0

    def code(self, position: int, shares: np.ndarray | None, before: int) -> tuple[int, int]:
        """Code a unit, after a byte of the kind `before`; return its id and the kind of its last byte.

        It has three parts: whether it has a type, which one, and how it is written. Without `shares` the type is not coded.
        """
        coder, speller, bits = self.coder, self._speller, self.coded.bits
        unit = _NOTHING if self._units is None else self._units[position]
        start = coder.bits
        escaped = speller is not None and speller.is_escaped(coder, unit)
        flagged = coder.bits
        id = ESCAPED if escaped else unit.id if shares is None else coder.choose(shares, unit.id)
        with_id = coder.bits
        text = b"" if speller is None else b"".join(speller.code(coder, id, unit, before))
        bits["model"] += with_id - flagged
        bits["spelling"] += flagged - start + coder.bits - with_id
        self._crc = zlib.crc32(text, zlib.crc32(id.to_bytes(4, "big", signed=True), self._crc))
        self.coded.ids[position], self.coded.texts[position] = id, text
        self.tokens += 1
        return id, kind_of_last(text, before)

    def check(self, step: int) -> None:
        """Code the checksum of everything up to a step. Raises BrokenCode if it does not come out."""
        bits = self.coder.bits
        if self.coder.number(CHECK_BITS, self._crc) != self._crc:
            raise BrokenCode(self.coded)
        self.coded.bits["checks"] += self.coder.bits - bits
        self.coded.checked, self.coded.checked_tokens = step, self.tokens

    def row_end(self, position: int, reader: Reader) -> int:
        """Code the last token of a row, each as likely as any other. Raises BrokenCode for one that there is not."""
        types, bits = reader.model.vocabulary_size, self.coder.bits
        id = self.coder.number((types - 1).bit_length(), 0 if self._units is None else self._units[position].id)
        self.coded.bits["rows"] += self.coder.bits - bits
        if id >= types:
            raise BrokenCode(self.coded)
        return id
