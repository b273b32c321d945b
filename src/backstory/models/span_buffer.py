"""The span-based neural buffer (eqs. 4 to 8 of its paper): an auxiliary prediction by attention over spans of earlier states.

A span of L words from i - L + 1 to i is the difference of two states, s_i = h_i - h_{i-L+1}; m = B / L of them tile the B words
before the present one. States are kept raw, as they were when they were read, and detached from segment to segment.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.config import SpanBufferConfig, UserError
from backstory.models.auxiliary import Second, SecondVectors
from backstory.models.devices import compute_dtype
from backstory.models.kernels.span_attention import (
    Parts,
    additive_scores,
    dot_scores,
    log_mean_exp,
    masked_softmax,
    weighed,
)


@dataclass(frozen=True)
class Spans:
    """Which states the spans of a position are made of."""

    count: int
    """m"""
    stride: int
    """Words from the end of one span to the end of the next."""
    length: int
    """Words that must have been read for a span to be there."""
    back: int
    """s_i = h_i - h_{i - back}; 0: s_i = h_i."""
    lag: int
    """The newest span ends this many words before the present one."""

    @classmethod
    def of(cls, config: SpanBufferConfig) -> "Spans":
        """Raises UserError where the buffer is no whole number of spans."""
        length, lag = config.span, int(config.ends == "previous")
        if config.vectors == "words":
            return cls(config.size, 1, 1, 0, lag)
        if config.size % length:
            raise UserError(
                f"model.buffer.size must be a multiple of model.buffer.span, and {config.size} is none of {length}; "
                f"use {max(length, config.size // length * length)}"
            )
        if config.vectors == "minus" and length == 1:
            raise UserError(
                "a span of one word has no difference h_i - h_i; use model.buffer.vectors minus-before or words, or a "
                "longer model.buffer.span"
            )
        back = {"minus": length - 1, "minus-before": length, "end": 0}[config.vectors]
        return cls(config.size // length, length, length, back, lag)

    @property
    def reach(self) -> int:
        """States before the present one that spans are made of."""
        return (self.count - 1) * self.stride + max(self.back, self.length - 1) + self.lag


class Remembered(NamedTuple):
    """Spans that the positions of a segment attend to: those of states before it, to which no gradient goes, and its own."""

    keys: Parts
    """(B, N, D) in all."""
    values: Parts
    """(B, N, D) in all."""
    there: Tensor
    """(B, T, m) bool: which spans there are."""
    starts: range | None
    """Span j of position t is number starts[j] + t; none: all positions share all N."""
    words: Tensor | None = None
    """(B, N): the word of each, where words are what is pointed to."""

    def places(self) -> Tensor | None:
        """(T, m): the number of each span of each position."""
        if self.starts is None:
            return None
        first, device = self.starts, self.there.device
        return torch.arange(first.start, first.stop, first.step, device=device) + torch.arange(
            self.there.shape[1], device=device
        ).unsqueeze(1)

    def of_others(self) -> "Remembered":
        """Every row with the spans of the row before it."""
        keys, values = ((old.roll(1, 0), new.roll(1, 0)) for old, new in (self.keys, self.values))
        words = None if self.words is None else self.words.roll(1, 0)
        return Remembered(keys, values, self.there.roll(1, 0), self.starts, words)


class SlidingState(NamedTuple):
    """The last words of B rows."""

    states: Tensor
    """(B, R, D): raw states, oldest first."""
    words: Tensor
    """(B, R) int64; (B, 0) where they are not asked for."""
    filled: Tensor
    """(B,) int64: how many words were read, R + 1 at most."""


class GridState(NamedTuple):
    """The last spans of B rows."""

    spans: Tensor
    """(B, m, D), oldest first."""
    tail: Tensor
    """(B, L, D): the last raw states, of which the next span may be made."""
    read: Tensor
    """(B,) int64: how many words were read."""


class SpanBuffer(Second):
    """A buffer of spans, with an attention."""

    def __init__(self, config: SpanBufferConfig, size: int, embedding_size: int) -> None:
        """`size` is D, of the states. Raises UserError for settings that do not go together."""
        super().__init__()
        self.config, self.spans, self.size = config, Spans.of(config), size
        self.keeps_words, self.points = config.values != "spans", config.prediction == "pointer"
        if self.points and (not self.keeps_words or config.residual or config.dropout):
            raise UserError(
                "model.buffer.prediction pointer points to words, which are not summed or dropped; set model.buffer.values "
                "following or last-words, no residual, and a dropout of 0"
            )
        if config.theta != 1.0 and not (self.points and config.attention == "bilinear"):
            raise UserError(
                "model.buffer.theta is where a pointer of bilinear attention begins; leave it out, or set "
                "model.buffer.prediction pointer and model.buffer.attention bilinear"
            )
        if config.values == "following" and config.ends == "present":
            raise UserError(
                "model.buffer.values following needs the word after a span, which is not known of one that ends at the "
                "present word; use model.buffer.ends previous"
            )
        if config.alignment == "fixed" and (self.keeps_words or config.vectors == "words"):
            raise UserError(
                "model.buffer.alignment fixed keeps spans of words alone, no words; use sliding with vectors words and with "
                "values other than spans"
            )
        inner = config.attention_size or size
        if config.attention == "bilinear":
            self.query = nn.Linear(size, size, bias=False)
            if self.points:
                with torch.no_grad():  # a neural cache, of which learning makes more
                    nn.init.eye_(self.query.weight).mul_(config.theta)
        else:
            self.key = nn.Linear(size, inner, bias=False)
            self.v = nn.Parameter(torch.empty(inner).uniform_(-(inner**-0.5), inner**-0.5))
        if config.attention == "additive":
            self.query = nn.Linear(size, inner, bias=False)
        if self.keeps_words and not self.points:
            self.value = nn.Linear(embedding_size, size, bias=False)
            if embedding_size == size:
                nn.init.eye_(self.value.weight)  # the word itself, where the head is tied to the embedding

    def start(self, batch_size: int) -> SlidingState | GridState:
        zeros = next(self.parameters()).new_zeros
        none = zeros(batch_size, dtype=torch.long)
        if self.config.alignment == "fixed":
            spans = zeros(batch_size, self.spans.count, self.size)
            return GridState(spans, zeros(batch_size, self.config.span, self.size), none)
        words = zeros(batch_size, self.spans.reach if self.keeps_words else 0, dtype=torch.long)
        return SlidingState(zeros(batch_size, self.spans.reach, self.size), words, none)

    def covered(self, position: int, begun: int = 0) -> dict[int, tuple[int, int]]:
        """The first and the last word of every span that a position attends to, by its place in `Blend.attention`.

        The position is how many words of its row were read before the present one, and words are counted in the same way;
        `begun` is the position at which the segment began. Places where there is no span are left out.
        """
        spans, length = self.spans, self.spans.length
        newest = position - spans.lag
        if self.config.alignment == "sliding":
            ends = range(newest, length - 2, -spans.stride)[: spans.count]
            return {place: (end - length + 1, end) for place, end in enumerate(ends)}
        ended, before = (newest + 1) // length, begun // length - spans.count
        numbers = range(max(0, ended - spans.count), ended)
        return {number - before: (number * length, (number + 1) * length - 1) for number in numbers}

    def forward(
        self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: SlidingState | GridState, foreign: bool
    ) -> SecondVectors:
        own = hidden.to(state[0].dtype)
        if isinstance(state, SlidingState):
            found, after = self._sliding(own, tokens, embedding, state)
        else:
            found, after = self._grid(own, state)
        if foreign:
            found = found.of_others()
        scores, places = self._scores(hidden, found), found.places()
        weights, some = masked_softmax(scores, found.there), found.there.any(2)
        evidence = log_mean_exp(scores, found.there) if self.config.sentinel else None
        if self.points:
            assert found.words is not None and places is not None
            return SecondVectors(None, some, weights, after, found.words[:, places], evidence)
        xi = weighed(weights, found.values, places).to(hidden.dtype)
        if self.config.residual:
            xi = xi + hidden
        return SecondVectors(xi, some, weights, after, None, evidence)

    def _scores(self, hidden: Tensor, found: Remembered) -> Tensor:
        """gamma (B, T, m)."""
        if self.config.attention == "bilinear":
            return dot_scores(self.query(hidden), found.keys, found.places())
        old, new = self.key(found.keys[0]), self.key(found.keys[1])
        if self.config.attention == "linear":
            # As printed. v W_h h is the same for every span and goes out of the softmax.
            v = self.v.to(old.dtype).expand(*hidden.shape[:2], -1)
            return dot_scores(v, (old, new), found.places())
        keys, width = torch.cat([old, new], 1), 1 if found.starts is None else hidden.shape[1]
        return additive_scores(self.query(hidden), keys, self.v, found.starts or range(keys.shape[1]), width)

    def _sliding(
        self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: SlidingState
    ) -> tuple[Remembered, SlidingState]:
        spans, time, reach, back = self.spans, hidden.shape[1], self.spans.reach, self.spans.back
        # The segment's own spans are made of as many of the states before it.
        joined = torch.cat([state.states[:, reach - back :], hidden], 1)
        old, new = state.states[:, back:], hidden
        if back:
            old, new = old - state.states[:, : reach - back], new - joined[:, :time]
        keys = old.to(compute_dtype(hidden)), new
        newest = reach - back - spans.lag
        starts = range(newest, newest - spans.count * spans.stride, -spans.stride)
        position = torch.arange(time, device=hidden.device)[:, None]
        needed = spans.lag + spans.length - 1 + spans.stride * torch.arange(spans.count, device=hidden.device)
        there = state.filled[:, None, None] + position >= needed
        values, words, pointed = keys, state.words, None
        if self.keeps_words:
            words = torch.cat([state.words, tokens], 1)
            pointed = self._words_of_spans(words[:, back:])
            if not self.points:
                vectors = self.value(F.embedding(pointed, embedding))
                values = vectors[:, : reach - back], vectors[:, reach - back :]
            words = words[:, time:]
        states = torch.cat([state.states, hidden], 1)[:, time:]
        after = SlidingState(states, words, (state.filled + time).clamp(max=reach + 1))
        return Remembered(keys, values, there, starts, pointed), after

    def _words_of_spans(self, last: Tensor) -> Tensor:
        """The words that end the spans (B, N), or those after them; the newest of these is not known, and never attended to."""
        return F.pad(last[:, 1:], (0, 1)) if self.config.values == "following" else last

    def _grid(self, hidden: Tensor, state: GridState) -> tuple[Remembered, GridState]:
        spans, length, time = self.spans, self.config.span, hidden.shape[1]
        # Spans that may end within the segment, and where: one after every `length` words since the text began.
        number = -(-time // length)
        first = length - 1 - state.read % length
        ends = first[:, None] + length * torch.arange(number, device=hidden.device)
        joined = torch.cat([state.tail, hidden], 1)
        new = _at(joined, ends + length)
        if spans.back:
            new = new - _at(joined, ends + length - spans.back)
        spans_now = torch.cat([state.spans, new], 1)
        # Each span that has ended takes the place of the oldest: at a position that is the window of m after so many.
        position, slot = (torch.arange(n, device=hidden.device) for n in (time, spans_now.shape[1]))
        ended = (ends[:, None] + spans.lag <= position[:, None]).sum(2, keepdim=True)
        filled = slot >= spans.count - (state.read // length)[:, None]
        there = filled[:, None] & (slot >= ended) & (slot < ended + spans.count)
        done = (ends < time).sum(1, keepdim=True)
        kept = _at(spans_now, done + torch.arange(spans.count, device=hidden.device))
        after = GridState(kept, joined[:, -length:], state.read + time)
        keys = state.spans.to(compute_dtype(hidden)), new
        return Remembered(keys, keys, there, None), after


def _at(vectors: Tensor, places: Tensor) -> Tensor:
    """Vectors (B, N, D) at places (B, K), those beyond the last being the last."""
    index = places.clamp(max=vectors.shape[1] - 1)[..., None].expand(-1, -1, vectors.shape[2])
    return vectors.gather(1, index)
