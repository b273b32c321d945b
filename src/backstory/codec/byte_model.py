"""A small adaptive model of bytes for text outside a vocabulary, in integer arithmetic.

Context mixing (Mahoney 2005): five contexts, the last 0 to 3 bytes and all of a string so far, each predict the next bit. They
are added in the logistic domain, with weights that learn:

    p = squash(sum_i w_i stretch(p_i)),   w_i <- w_i + rate (bit - p) stretch(p_i)
"""

from decimal import Decimal, localcontext

from backstory.codec.range_coder import Coder

ONE = 1 << 12
"""A probability of one."""
_ORDERS = 5
_LARGEST = 1 << 20
"""Maximum number of stored predictions, beyond which all are dropped."""
_RATE = 10
_NODES = 256
_RECIPROCALS = [(1 << 16) * 2 // (2 * seen + 3) for seen in range(128)]
"""Update rate of a prediction by the number of times it was seen."""
_STEEPEST = 2047
"""The largest logit, in 256ths: beyond it a probability of 1 of 4096 or less is left."""


def _squashed() -> list[int]:
    """Return 4096 / (1 + exp(-x / 256)) for whole x from -2047 to 2047; decimal numbers are the same on every machine."""
    with localcontext(prec=20):
        values = [ONE / (1 + (Decimal(-x) / 256).exp()) for x in range(-_STEEPEST, _STEEPEST + 1)]
        return [min(max(round(value), 1), ONE - 1) for value in values]


_SQUASH = _squashed()


def _squash(x: int) -> int:
    """Return the probability (of 4096) of a logit (in 256ths), between 1 and 4095."""
    return _SQUASH[max(-_STEEPEST, min(_STEEPEST, x)) + _STEEPEST]


def _stretched() -> list[int]:
    """Return the logit of every probability (of 4096): the inverse of `_squash`."""
    logits, x = [], -_STEEPEST
    for probability in range(ONE):
        while x < _STEEPEST and _squash(x) < probability:
            x += 1
        logits.append(x)
    return logits


_STRETCH = _stretched()


class ByteModel:
    """Codes strings of bytes; repeated content becomes shorter."""

    def __init__(self) -> None:
        self._predictions: dict[int, list[int]] = {}
        """Probability (of 65,536) of a one and how often it was seen, by context and the bits of the byte so far."""
        self._weights: dict[int, list[int]] = {}

    def code(self, coder: Coder, text: bytes, kind: int = 0) -> bytes:
        """Code a string and its end; `kind` tells strings apart that have little in common."""
        coded = bytearray()
        while True:
            contexts = self._contexts(coded, kind)
            end = len(coded) >= len(text)
            if self._bit(coder, contexts, 0, int(end)):
                return bytes(coded)
            byte, node = 0 if end else text[len(coded)], 1
            for shift in range(7, -1, -1):
                node = 2 * node + self._bit(coder, contexts, node, byte >> shift & 1)
            coded.append(node - _NODES)

    def _contexts(self, coded: bytearray, kind: int) -> list[int]:
        """Return a number for each context, apart for each order and kind."""
        suffixes = [b"", *(coded[-order:] if len(coded) >= order else coded for order in (1, 2, 3)), coded[-24:]]
        # A leading one keeps the length of a string; the beginning of a text is a context too.
        return [
            ((int.from_bytes(b"\1" + suffix, "big") * 8 + kind) * _ORDERS + order) * _NODES
            for order, suffix in enumerate(suffixes)
        ]

    def _bit(self, coder: Coder, contexts: list[int], node: int, bit: int) -> int:
        """Code a bit of a byte; `node` stands for the bits before it, 0 for whether the string ends."""
        predictions = self._predictions
        if len(predictions) > _LARGEST:
            predictions.clear()
        slots = [predictions.setdefault(context + node, [1 << 15, 0]) for context in contexts]
        inputs = [_STRETCH[slot[0] >> 4] for slot in slots]
        weights = self._weights.setdefault(node, [1 << 14] * _ORDERS)
        p = _squash(sum(w * x for w, x in zip(weights, inputs, strict=True)) >> 16)
        bit = coder.bit(p, ONE, bit)
        error = ((bit << 12) - p) * _RATE
        for i, x in enumerate(inputs):
            weights[i] += (x * error + (1 << 13)) >> 14
        for slot in slots:
            seen = slot[1]
            slot[0] += (((bit << 16) - bit - slot[0]) * _RECIPROCALS[seen]) >> 16
            if seen < 127:
                slot[1] = seen + 1
        return bit
