"""Auxiliary predictors: the span-based neural buffer, and its control without memory."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backstory.interop.exported.cores import Settings, State

POSITIONS = 64
"""Positions whose spans are laid out side by side at once."""


class AuxiliarySoftmax(nn.Module):
    """tanh(W h + b), of which the head makes the second prediction."""

    def __init__(self, settings: Settings, size: int, embedding: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, size)

    def start(self, rows: int, like: Tensor) -> State:
        return ()

    def forward(self, hidden: Tensor, tokens: Tensor | None, words: Tensor, state: State) -> dict[str, Any]:
        return {"vectors": torch.tanh(self.projection(hidden)), "state": state}


class SpanBuffer(nn.Module):
    """Attention over spans of the states before: spans slide with the text, or begin at multiples of their length.

    `state` holds the last raw states and tokens, and how many were read.
    """

    def __init__(self, settings: Settings, size: int, embedding: int) -> None:
        super().__init__()
        self.settings, self.size = settings, size
        length, of_words = settings["span"], settings["vectors"] == "words"
        self.count = settings["size"] if of_words else settings["size"] // length
        self.length = 1 if of_words else length
        self.back = {"minus": length - 1, "minus-before": length, "end": 0, "words": 0}[settings["vectors"]]
        self.lag, self.fixed = int(settings["ends"] == "previous"), settings["alignment"] == "fixed"
        self.points, self.stores_words = settings["prediction"] == "pointer", settings["values"] != "spans"
        # The farthest state that a span is made of; spans on a grid end up to a span later.
        self.reach = (self.count - 1) * self.length + max(self.back, self.length - 1) + self.lag + self.fixed * length
        rows = settings["attention_size"] or size
        if settings["attention"] == "bilinear":
            self.query = nn.Linear(size, size, bias=False)
        else:
            self.key = nn.Linear(size, rows, bias=False)
            self.v = nn.Parameter(torch.empty(rows).uniform_(-(rows**-0.5), rows**-0.5))
        if settings["attention"] == "additive":
            self.query = nn.Linear(size, rows, bias=False)
        if self.stores_words and not self.points:
            self.value = nn.Linear(embedding, size, bias=False)

    def start(self, rows: int, like: Tensor) -> State:
        zeros = like.new_zeros
        return (
            zeros(rows, self.reach, self.size),
            zeros(rows, self.reach, dtype=torch.long),
            zeros(rows, dtype=torch.long),
        )

    def forward(self, hidden: Tensor, tokens: Tensor | None, words: Tensor, state: State) -> dict[str, Any]:
        """Attend from states (B, T, D) of tokens (B, T); `words` is the embedding (V, E)."""
        if tokens is None and self.stores_words:
            raise ValueError("this model's buffer holds words; give input_ids, not inputs_embeds")
        tokens = hidden.new_zeros(hidden.shape[:2], dtype=torch.long) if tokens is None else tokens
        pieces = []
        for some, ids in zip(hidden.split(POSITIONS, 1), tokens.split(POSITIONS, 1), strict=True):
            pieces.append(self._attend(some, ids, words, state))
            state = pieces[-1].pop("state")
        return {"state": state, **{name: torch.cat([piece[name] for piece in pieces], 1) for name in pieces[0]}}

    def _attend(self, hidden: Tensor, tokens: Tensor, words: Tensor, state: State) -> dict[str, Any]:
        (before, before_tokens, read), steps = state, hidden.shape[1]
        joined, ids = torch.cat([before, hidden], 1), torch.cat([before_tokens, tokens], 1)
        position = read.unsqueeze(1) + torch.arange(steps, device=hidden.device)  # (B, T), in the text
        newest = position - self.lag
        if self.fixed:  # the last grid point at which a span has ended
            newest = (newest + 1) // self.length * self.length - 1
        ends = newest.unsqueeze(2) - self.length * torch.arange(self.count, device=hidden.device)  # (B, T, m)
        present = ends - self.length + 1 >= 0
        index = ends - read.view(-1, 1, 1) + self.reach  # in `joined`
        spans = _at(joined, index)
        if self.back:
            # h_{i-L} before the text is the zero state.
            spans = spans - _at(joined, index - self.back)
        scores, values = self._scores(hidden, spans), spans
        if self.stores_words:
            of_span = _at(ids.unsqueeze(2), index + (self.settings["values"] == "following")).squeeze(3)
            values = None if self.points else self.value(F.embedding(of_span, words))
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        wide = wide.masked_fill(~present, torch.finfo(wide.dtype).min)
        weights = torch.softmax(wide, 2) * present
        result: dict[str, Any] = {"present": present.any(2)}
        result["state"] = joined[:, steps:], ids[:, steps:], read + steps
        if self.settings["sentinel"]:
            mean = torch.logsumexp(wide, 2) - present.sum(2).clamp(min=1).to(wide.dtype).log()
            result["evidence"] = mean.masked_fill(~present.any(2), 0.0)
        if values is None:
            return {**result, "weights": weights, "words": of_span}
        xi = (weights.unsqueeze(3).to(values.dtype) * values).sum(2).to(hidden.dtype)
        return {**result, "vectors": xi + hidden if self.settings["residual"] else xi}

    def _scores(self, hidden: Tensor, spans: Tensor) -> Tensor:
        """Return the scores (B, T, m) of spans (B, T, m, D)."""
        if self.settings["attention"] == "bilinear":
            return (spans @ self.query(hidden).unsqueeze(3)).squeeze(3)
        if self.settings["attention"] == "linear":
            return self.key(spans) @ self.v
        return torch.tanh(self.query(hidden).unsqueeze(2) + self.key(spans)) @ self.v


def _at(vectors: Tensor, index: Tensor) -> Tensor:
    """Return vectors (B, N, D) at an index (B, T, m), clamped: (B, T, m, D)."""
    rows = torch.arange(len(vectors), device=vectors.device).view(-1, 1, 1)
    return vectors[rows, index.clamp(0, vectors.shape[1] - 1)]


AUXILIARY: dict[str, Any] = {"span-buffer": SpanBuffer, "auxiliary-softmax": AuxiliarySoftmax}
"""Constructors by the kind of auxiliary prediction: of its settings, D and E."""
