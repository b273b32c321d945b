"""Range coding (Martin 1979): a sequence of choices as one number, each choice as long as its share of a whole is small.

    cost of a choice = log2(total / size) bits, plus less than 2^-30 of it for rounding

`Encoder` and `Decoder` have the same methods, so that every model is written once: the encoder codes the choice that it is
given and returns it; the decoder ignores what it is given and returns the choice that it reads. The state has 96 bits and moves
by 32, since totals have up to 32 bits: with constriction's 24 a vocabulary of 50,000 types, each with a share of at least one
step, would already lose 0.3% of the mass.
"""

import math
from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

TOTAL_BITS = 32
"""Largest total of the shares of a choice, in bits."""
_WORD, _STATE = 32, 96
_SMALLEST, _FULL = 1 << (_STATE - _WORD), 1 << _STATE
_LOW_WORD = _FULL - 1

Cumulative = Sequence[int] | np.ndarray
"""Rising whole numbers: choice i has the share from `cumulative[i]` to `cumulative[i + 1]` of the last."""


class Coder:
    """Codes choices from their shares, and counts the bits that they cost."""

    def __init__(self) -> None:
        self.bits = 0.0
        """Bits of all choices up to now, before rounding to whole bytes."""
        self._range = _FULL - 1

    def choose(self, cumulative: Cumulative, choice: int) -> int:
        """Code one of several choices."""
        raise NotImplementedError

    def bit(self, ones: int, total: int, bit: int) -> int:
        """Code a bit whose share of ones is `ones` of `total`."""
        return self.choose((0, total - ones, total), bit)

    def number(self, bits: int, number: int) -> int:
        """Code a whole number of so many bits, up to 32, each as likely as any other."""
        raise NotImplementedError

    def _narrow(self, low: int, high: int, total: int) -> int:
        """Narrow the range to the share from low to high; return by how much its lower end moves."""
        self.bits += math.log2(total / (high - low))
        step = self._range // total
        start = step * low
        self._range = step * (high - low) if high < total else self._range - start
        return start


class Encoder(Coder):
    """Writes choices."""

    def __init__(self) -> None:
        super().__init__()
        self._low, self._written = 0, bytearray()

    def choose(self, cumulative: Cumulative, choice: int) -> int:
        self._code(int(cumulative[choice]), int(cumulative[choice + 1]), int(cumulative[-1]))
        return choice

    def number(self, bits: int, number: int) -> int:
        self._code(number, number + 1, 1 << bits)
        return number

    def finish(self) -> bytes:
        """Return everything that was coded, in as few bytes as tell it apart."""
        for size in range(_STATE // 8 + 1):  # the shortest number within the range; zeros follow
            unit = 1 << (_STATE - 8 * size)
            number = -(-self._low // unit) * unit
            if number < self._low + self._range:
                break
        if number >= _FULL:
            self._carry()
        tail = (number & _LOW_WORD).to_bytes(_STATE // 8, "big")
        return bytes(self._written + tail).rstrip(b"\0")

    def state_dict(self) -> tuple[dict[str, Any], bytes]:
        """Return the state as plain values, and what was written."""
        return {"low": hex(self._low), "range": hex(self._range), "bits": self.bits}, bytes(self._written)

    def load_state_dict(self, state: Mapping[str, Any], written: bytes) -> None:
        """Restore a state. Raises ValueError for none."""
        self._low, self._range, self.bits = int(state["low"], 16), int(state["range"], 16), state["bits"]
        self._written = bytearray(written)
        if not (0 <= self._low < _FULL and _SMALLEST <= self._range < _FULL):
            raise ValueError("the coder is out of its range")

    def _code(self, low: int, high: int, total: int) -> None:
        self._low += self._narrow(low, high, total)
        if self._low >= _FULL:
            self._low -= _FULL
            self._carry()
        while self._range < _SMALLEST:
            self._written += (self._low >> (_STATE - _WORD)).to_bytes(_WORD // 8, "big")
            self._low = (self._low << _WORD) & _LOW_WORD
            self._range <<= _WORD

    def _carry(self) -> None:
        """Add one to what is written."""
        last = len(self._written) - 1
        while self._written[last] == 255:
            self._written[last] = 0
            last -= 1
        self._written[last] += 1


class Decoder(Coder):
    """Reads choices that an encoder has written; beyond the end of the code there are zeros."""

    def __init__(self, code: bytes) -> None:
        super().__init__()
        self._code, self._next = code, 0
        self._value = 0
        for _ in range(_STATE // _WORD):
            self._read_word()

    def choose(self, cumulative: Cumulative, choice: int) -> int:
        total = int(cumulative[-1])
        point = min(self._value // (self._range // total), total - 1)
        if isinstance(cumulative, np.ndarray):
            choice = int(np.searchsorted(cumulative, point, "right")) - 1
        else:
            choice = bisect_right(cumulative, point) - 1
        self._take(int(cumulative[choice]), int(cumulative[choice + 1]), total)
        return choice

    def number(self, bits: int, number: int) -> int:
        total = 1 << bits
        number = min(self._value // (self._range // total), total - 1)
        self._take(number, number + 1, total)
        return number

    def _take(self, low: int, high: int, total: int) -> None:
        self._value -= self._narrow(low, high, total)
        while self._range < _SMALLEST:
            self._range <<= _WORD
            self._read_word()

    def _read_word(self) -> None:
        word = self._code[self._next : self._next + _WORD // 8]
        self._next += _WORD // 8
        self._value = self._value << _WORD | int.from_bytes(word.ljust(_WORD // 8, b"\0"), "big")


class AdaptiveBits:
    """Bits by context, each as likely as in this context before: (n_1 + 1/2) / (n + 1) (Krichevsky and Trofimov 1981)."""

    LIMIT = 1 << 20

    def __init__(self) -> None:
        self._counts: dict[Hashable, list[int]] = {}

    def code(self, coder: Coder, context: Hashable, bit: Any) -> bool:
        """Code a bit in its context, and count it."""
        counts = self._counts.setdefault(context, [0, 0])
        coded = coder.bit(2 * counts[1] + 1, 2 * (counts[0] + counts[1] + 1), int(bit))
        counts[coded] += 1
        if counts[coded] > self.LIMIT:
            counts[:] = [count // 2 for count in counts]
        return bool(coded)
