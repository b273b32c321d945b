"""The span-based neural buffer (Li et al. 2020, eqs. 4 to 7): attention over spans of earlier states, for q.

A span of L words from i - L + 1 to i is the difference of two states, s_i = h_i - h_{i-L+1}, both of which have read its first
word; m = B / L of them tile the B words before the present one. States are stored raw, as they were when they were read, and
detached from segment to segment.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.config import SpanBufferConfig
from backstory.models.auxiliary import AuxiliaryOutput, AuxiliaryPredictor
from backstory.models.devices import compute_dtype
from backstory.models.kernels.span_attention import (
    Parts,
    additive_scores,
    dot_scores,
    log_mean_exp,
    masked_softmax,
    weighted_sum,
)
from backstory.utils.errors import UserError


@dataclass(frozen=True)
class Spans:
    """The states that make up the spans of a position."""

    count: int
    """m"""
    stride: int
    """Words between the ends of two spans."""
    length: int
    """Words that must have been read before a span exists."""
    back: int
    """s_i = h_i - h_{i - back}; 0: s_i = h_i."""
    lag: int
    """The newest span ends this many words before the present one."""

    @classmethod
    def of(cls, config: SpanBufferConfig) -> "Spans":
        """Raises UserError if the buffer is not a whole number of spans."""
        length, lag = config.span, int(config.ends == "previous")
        if config.vectors == "words":
            return cls(config.size, 1, 1, 0, lag)
        if config.size % length:
            raise UserError(
                f"model.buffer.size must be a multiple of model.buffer.span, which is {length}, and {config.size} is not; "
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
        """R, states before the present one that spans are made of."""
        return (self.count - 1) * self.stride + max(self.back, self.length - 1) + self.lag


class Memory(NamedTuple):
    """The spans that the positions of a segment attend to: those of earlier states, without a gradient, then its own."""

    keys: Parts
    """(B, N, D) in all."""
    values: Parts
    """(B, N, D) in all."""
    present: Tensor
    """(B, T, m) bool: which spans exist."""
    starts: range | None
    """Span j of position t has the index starts[j] + t; None if all positions share all N."""
    words: Tensor | None = None
    """(B, N): the word of each span, if q points to words."""

    def index(self) -> Tensor | None:
        """Return (T, m): the index of each span of each position."""
        if self.starts is None:
            return None
        first, device = self.starts, self.present.device
        return torch.arange(first.start, first.stop, first.step, device=device) + torch.arange(
            self.present.shape[1], device=device
        ).unsqueeze(1)

    def rolled(self) -> "Memory":
        """Return the memory with the spans of text b - 1 in the place of those of text b: a control."""
        keys, values = ((old.roll(1, 0), new.roll(1, 0)) for old, new in (self.keys, self.values))
        words = None if self.words is None else self.words.roll(1, 0)
        return Memory(keys, values, self.present.roll(1, 0), self.starts, words)


class SlidingState(NamedTuple):
    """The last words of B texts."""

    states: Tensor
    """(B, R, D): raw states, oldest first."""
    words: Tensor
    """(B, R) int64; (B, 0) if no value is a word."""
    filled: Tensor
    """(B,) int64: words read so far, R + 1 at most."""


class FixedState(NamedTuple):
    """The last spans of B texts."""

    spans: Tensor
    """(B, m, D), oldest first."""
    tail: Tensor
    """(B, L, D): the last raw states, from which the next span may be made."""
    read: Tensor
    """(B,) int64: words read so far."""


def _make_scaled_identity(weight: Tensor, factor: float) -> None:
    """Make a square matrix `factor` times the identity. (`nn.init.eye_` loads torch's compiler when a model is outlined.)"""
    with torch.no_grad():
        weight.zero_().fill_diagonal_(factor)


def _check_settings(config: SpanBufferConfig) -> None:
    """Raise UserError for settings that contradict each other."""
    stores_words, points = config.values != "spans", config.prediction == "pointer"
    if points and (not stores_words or config.residual or config.dropout):
        raise UserError(
            "model.buffer.prediction pointer points to words, which are not summed or dropped; set model.buffer.values "
            "following or last-words, no residual, and a dropout of 0"
        )
    if config.theta != 1.0 and not (points and config.attention == "bilinear"):
        raise UserError(
            "model.buffer.theta is the initial scale of a pointer with bilinear attention; leave it out, or set "
            "model.buffer.prediction pointer and model.buffer.attention bilinear"
        )
    if config.values == "following" and config.ends == "present":
        raise UserError(
            "model.buffer.values following needs the word after a span, which is unknown if the span ends at the "
            "present word; use model.buffer.ends previous"
        )
    if config.alignment == "fixed" and (stores_words or config.vectors == "words"):
        raise UserError(
            "model.buffer.alignment fixed stores spans only, no words; use sliding with vectors words and with "
            "values other than spans"
        )


class SpanBuffer(AuxiliaryPredictor):
    """A buffer of spans, with an attention over them."""

    def __init__(self, config: SpanBufferConfig, size: int, embedding_size: int) -> None:
        """`size` is D, of the states. Raises UserError for settings that contradict each other."""
        super().__init__()
        self.config, self.spans, self.size = config, Spans.of(config), size
        self.stores_words, self.points = config.values != "spans", config.prediction == "pointer"
        _check_settings(config)
        attention_size = config.attention_size or size
        if config.attention == "bilinear":
            self.query = nn.Linear(size, size, bias=False)
            if self.points:
                _make_scaled_identity(self.query.weight, config.theta)  # starts as a neural cache
        else:
            self.key = nn.Linear(size, attention_size, bias=False)  # W_s
            bound = attention_size**-0.5
            self.v = nn.Parameter(torch.empty(attention_size).uniform_(-bound, bound))
        if config.attention == "additive":
            self.query = nn.Linear(size, attention_size, bias=False)  # W_h
        if self.stores_words and not self.points:
            self.value = nn.Linear(embedding_size, size, bias=False)
            if embedding_size == size:
                _make_scaled_identity(self.value.weight, 1.0)  # the word itself if the head is tied to the embedding

    def start(self, batch_size: int) -> SlidingState | FixedState:
        zeros = next(self.parameters()).new_zeros
        none = zeros(batch_size, dtype=torch.long)
        if self.config.alignment == "fixed":
            spans = zeros(batch_size, self.spans.count, self.size)
            return FixedState(spans, zeros(batch_size, self.config.span, self.size), none)
        words = zeros(batch_size, self.spans.reach if self.stores_words else 0, dtype=torch.long)
        return SlidingState(zeros(batch_size, self.spans.reach, self.size), words, none)

    def covered(self, position: int, segment_start: int = 0) -> dict[int, tuple[int, int]]:
        """Return the first and the last word of every span that a position attends to, by its index in the attention.

        The index is that of `Interpolation.attention`. Positions and words are counted from the start of the text;
        `segment_start` is the position at which the segment began. Spans that do not exist yet are left out.
        """
        spans, length = self.spans, self.spans.length
        newest = position - spans.lag
        if self.config.alignment == "sliding":
            ends = range(newest, length - 2, -spans.stride)[: spans.count]
            return {index: (end - length + 1, end) for index, end in enumerate(ends)}
        ended, before = (newest + 1) // length, segment_start // length - spans.count
        numbers = range(max(0, ended - spans.count), ended)
        return {number - before: (number * length, (number + 1) * length - 1) for number in numbers}

    def forward(
        self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: SlidingState | FixedState
    ) -> AuxiliaryOutput:
        memory, after = self.recall(hidden, tokens, embedding, state)
        return self.attend(hidden, memory, after)

    def recall(
        self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: SlidingState | FixedState
    ) -> tuple[Memory, SlidingState | FixedState]:
        """Return the spans that the positions of a segment may attend to (eq. 4), and the state after it."""
        hidden = hidden.to(state[0].dtype)
        if isinstance(state, SlidingState):
            return self._sliding_spans(hidden, tokens, embedding, state)
        return self._fixed_spans(hidden, state)

    def attend(self, hidden: Tensor, memory: Memory, after: SlidingState | FixedState) -> AuxiliaryOutput:
        """xi = sum_i alpha_i s_i, alpha = softmax(gamma) (eqs. 5 and 6), for the states (B, T, D) of a segment."""
        scores, index = self._scores(hidden, memory), memory.index()
        weights, any_present = masked_softmax(scores, memory.present), memory.present.any(2)
        evidence = log_mean_exp(scores, memory.present) if self.config.sentinel else None
        if self.points:
            assert memory.words is not None and index is not None
            return AuxiliaryOutput(None, any_present, weights, after, memory.words[:, index], evidence)
        xi = weighted_sum(weights, memory.values, index).to(hidden.dtype)
        if self.config.residual:
            xi = xi + hidden
        return AuxiliaryOutput(xi, any_present, weights, after, None, evidence)

    def _scores(self, hidden: Tensor, memory: Memory) -> Tensor:
        """Return gamma (B, T, m) (eq. 7)."""
        if self.config.attention == "bilinear":
            return dot_scores(self.query(hidden), memory.keys, memory.index())
        old, new = self.key(memory.keys[0]), self.key(memory.keys[1])
        if self.config.attention == "linear":
            # As printed. v W_h h is the same for every span, so it cancels in the softmax.
            v = self.v.to(old.dtype).expand(*hidden.shape[:2], -1)
            return dot_scores(v, (old, new), memory.index())
        keys, width = torch.cat([old, new], 1), 1 if memory.starts is None else hidden.shape[1]
        return additive_scores(self.query(hidden), keys, self.v, memory.starts or range(keys.shape[1]), width)

    def _sliding_spans(
        self, hidden: Tensor, tokens: Tensor, embedding: Tensor, state: SlidingState
    ) -> tuple[Memory, SlidingState]:
        spans, time, reach, back = self.spans, hidden.shape[1], self.spans.reach, self.spans.back
        # The segment's own spans start up to `back` states before it.
        joined = torch.cat([state.states[:, reach - back :], hidden], 1)
        old, new = state.states[:, back:], hidden
        if back:
            old, new = old - state.states[:, : reach - back], new - joined[:, :time]
        keys = old.to(compute_dtype(hidden)), new
        newest = reach - back - spans.lag
        starts = range(newest, newest - spans.count * spans.stride, -spans.stride)
        position = torch.arange(time, device=hidden.device)[:, None]
        required = spans.lag + spans.length - 1 + spans.stride * torch.arange(spans.count, device=hidden.device)
        present = state.filled[:, None, None] + position >= required
        values, words, span_words = keys, state.words, None
        if self.stores_words:
            words = torch.cat([state.words, tokens], 1)
            span_words = self._span_words(words[:, back:])
            if not self.points:
                vectors = self.value(F.embedding(span_words, embedding))
                values = vectors[:, : reach - back], vectors[:, reach - back :]
            words = words[:, time:]
        # Of the layout that a saved state has, too: products round by the layout.
        states = torch.cat([state.states[:, time:], hidden[:, max(0, time - reach) :]], 1)
        after = SlidingState(states, words, (state.filled + time).clamp(max=reach + 1))
        return Memory(keys, values, present, starts, span_words), after

    def _span_words(self, last: Tensor) -> Tensor:
        """Return the words that end the spans (B, N), or those after them: the newest is unknown, and is never attended to."""
        return F.pad(last[:, 1:], (0, 1)) if self.config.values == "following" else last

    def _fixed_spans(self, hidden: Tensor, state: FixedState) -> tuple[Memory, FixedState]:
        spans, length, time = self.spans, self.config.span, hidden.shape[1]
        # Spans that may end within the segment: one after every `length` words since the text began.
        number = -(-time // length)
        first = length - 1 - state.read % length
        ends = first[:, None] + length * torch.arange(number, device=hidden.device)
        joined = torch.cat([state.tail, hidden], 1)
        new = _at(joined, ends + length)
        if spans.back:
            new = new - _at(joined, ends + length - spans.back)
        spans_now = torch.cat([state.spans, new], 1)
        # Each span that has ended replaces the oldest: position t sees the m spans after the first `ended`.
        position, slot = (torch.arange(n, device=hidden.device) for n in (time, spans_now.shape[1]))
        ended = (ends[:, None] + spans.lag <= position[:, None]).sum(2, keepdim=True)
        filled = slot >= spans.count - (state.read // length)[:, None]
        present = filled[:, None] & (slot >= ended) & (slot < ended + spans.count)
        done = (ends < time).sum(1, keepdim=True)
        last = _at(spans_now, done + torch.arange(spans.count, device=hidden.device))
        after = FixedState(last, joined[:, -length:], state.read + time)
        keys = state.spans.to(compute_dtype(hidden)), new
        return Memory(keys, keys, present, None), after


def span_buffer_of(model: nn.Module) -> SpanBuffer | None:
    """Return the span buffer of a model, None if it has none."""
    auxiliary = getattr(getattr(model, "gated", None), "auxiliary", None)
    return auxiliary if isinstance(auxiliary, SpanBuffer) else None


def _at(vectors: Tensor, index: Tensor) -> Tensor:
    """Return vectors (B, N, D) at an index (B, K), clamped to the last."""
    index = index.clamp(max=vectors.shape[1] - 1)[..., None].expand(-1, -1, vectors.shape[2])
    return vectors.gather(1, index)
