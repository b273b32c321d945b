"""Code a text token by token with a reader's own distributions: the encoder takes the decoder's steps, in the same shapes.

    predict the next token of every row -> code the tokens -> observe them -> the next step

Whatever a reader does with what it has observed, the decoder's does too; what a decoder does not have, it cannot use.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from backstory.codec.range_coder import Coder
from backstory.codec.shares import cumulative_shares
from backstory.codec.spelling import ESCAPED, Speller, Unit, kind_of_last
from backstory.readers import Reader

CHECK_EVERY = 4096
"""Steps between two checksums."""
CHECK_BITS = 32
_NOTHING = Unit(ESCAPED, b"", b"")


@dataclass
class CodedText:
    """The tokens and bytes coded up to now."""

    ids: list[list[int]]
    """Of each row."""
    texts: list[list[bytes]]
    """The bytes of each token, of each row."""
    checked: int = 0
    """Steps that came out right, by the checksums."""
    bits: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("model", "spelling", "rows", "checks"), 0.0))
    """Length of the code by its parts."""

    def joined(self) -> bytes:
        """Return the text."""
        return b"".join(text for row in self.texts for text in row)

    def first_row(self) -> bytes:
        """Return the beginning of the text that came out right: of its first row, if there are several."""
        return b"".join(self.texts[0][: self.checked]) if self.texts else b""

    def tokens(self) -> np.ndarray:
        """Return the ids (N,) int32."""
        return np.array([id for row in self.ids for id in row], np.int32)


class BrokenCode(Exception):
    """A checksum does not come out."""

    def __init__(self, coded: CodedText) -> None:
        super().__init__(f"the checksum at step {coded.checked} does not come out")
        self.coded = coded


class Steps:
    """Reads rows one token at a time.

    A reader for which the cut into blocks makes no difference reads blocks of one token. For any other, a block grows by a
    token at a time until it has the reader's own length, and is observed then, as `evaluate` does: that takes quadratic time.
    """

    def __init__(self, reader: Reader, rows: int) -> None:
        self.reader, self._rows = reader, rows
        self._device = next(reader.model.parameters()).device
        self._size = 1 if one_by_one(reader) else reader.block
        self._tokens = self._targets = torch.empty(rows, 0, dtype=torch.long, device=self._device)
        reader.start(rows)

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


@torch.no_grad()
def code_text(
    coder: Coder,
    reader: Reader,
    first: int,
    tokens: int,
    batch_size: int = 1,
    units: Sequence[Unit] | None = None,
    speller: Speller | None = None,
    joined: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> CodedText:
    """Code so many tokens, in `batch_size` rows side by side, each from the token `first` on.

    An encoder gets the `units`; a decoder finds them. Without a `speller` only the ids are coded. `joined` rows begin with the
    last token of the row before, as in `evaluate`, and these tokens are coded before all others. Raises BrokenCode where the
    decoder comes to another text than the encoder, and UserError for a reader without whole distributions.
    """
    rows = min(batch_size, tokens)
    coded = CodedText([[] for _ in range(rows)], [[] for _ in range(rows)])
    if not tokens:
        return coded
    length, crc = math.ceil(tokens / rows), 0
    steps, before = Steps(reader, rows), [0] * rows
    inputs = [first] * rows
    if joined:
        ends = [length * row - 1 for row in range(1, rows)]
        inputs[1:] = [_row_end(coder, coded, reader, units, end) if end < tokens else first for end in ends]
    for step in range(length):
        shares = steps.predict(inputs)
        for row in range(rows):
            place = row * length + step
            if place >= tokens:
                inputs[row] = first
                continue
            unit = _NOTHING if units is None else units[place]
            id, text = _code_unit(coder, coded.bits, shares[row], unit, speller, before[row])
            coded.ids[row].append(id)
            coded.texts[row].append(text)
            before[row] = kind_of_last(text, before[row])
            inputs[row] = first if id == ESCAPED else id
            crc = zlib.crc32(text, zlib.crc32(id.to_bytes(4, "big", signed=True), crc))
        steps.observe(inputs)
        if (step + 1) % CHECK_EVERY == 0 or step + 1 == length:
            bits = coder.bits
            if coder.number(CHECK_BITS, crc) != crc:
                raise BrokenCode(coded)
            coded.bits["checks"] += coder.bits - bits
            coded.checked = step + 1
        if progress is not None:
            progress(min((step + 1) * rows, tokens), tokens)
    return coded


def _row_end(coder: Coder, coded: CodedText, reader: Reader, units: Sequence[Unit] | None, place: int) -> int:
    """Code the last token of a row, each as likely as any other."""
    types, bits = reader.model.vocabulary_size, coder.bits
    id = coder.number((types - 1).bit_length(), 0 if units is None else units[place].id)
    coded.bits["rows"] += coder.bits - bits
    if id >= types:
        raise BrokenCode(coded)
    return id


def _code_unit(
    coder: Coder, bits: dict[str, float], shares: np.ndarray, unit: Unit, speller: Speller | None, before: int
) -> tuple[int, bytes]:
    """Code a unit: whether it has a type, which one, and how it is written; return its id and its bytes."""
    start = coder.bits
    escaped = speller is not None and speller.is_escaped(coder, unit)
    flagged = coder.bits
    id = ESCAPED if escaped else coder.choose(shares, unit.id)
    chosen = coder.bits
    text = b"" if speller is None else b"".join(speller.code(coder, id, unit, before))
    bits["model"] += chosen - flagged
    bits["spelling"] += flagged - start + coder.bits - chosen
    return id, text
