"""Neural cache (Grave et al. 2017; Khandelwal et al. 2018, eq. 5): words that recently followed similar states are more likely.

    P_cache(w | h_t) ~ sum_i [w_i = w] exp(theta h_i . h_t)        over the last `window` pairs (h_i, w_i), i < t
    P(w) = (1 - lambda) P_inner(w) + lambda P_cache(w)

h_t is the head's input before dropout; w_i is the word after h_i.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.config import validate
from backstory.config.readers import CacheSettings
from backstory.config.strict import conforming
from backstory.models import Interpolation, Prediction, clone
from backstory.models.devices import available
from backstory.models.prediction import Pointer
from backstory.readers.base import Block, Reader, WrappingReader
from backstory.readers.kind import ReaderKind, joined
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError
from backstory.utils.free_memory import shown_bytes

GROWTH = 4
"""A full buffer grows by one part in this many, so that a token is copied only a few times in all."""


class Pairs:
    """The last `most` pairs (h_i, w_i) of B rows, oldest first, in a buffer that grows with its content.

    A block's pairs are first offered, then kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._vectors: Tensor | None = None
        self._words: Tensor | None = None
        self._start = self._end = self._offered = 0

    def __len__(self) -> int:
        """Return the number of pairs that a row holds, without offered ones."""
        return self._end - self._start

    def offer(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs held and after them those that a block, head inputs (B, T, D) and its tokens (B, T), adds of itself.

        Vectors (B, n + T - 1, D), a view until the next call, and words (B, n + T - 1) int64; the block's last word is not
        known yet. A block that was offered before and not kept is forgotten. Raises UserError where the pairs can never fit
        into memory.
        """
        steps = hidden.shape[1]
        vectors, words = self._with_room(hidden)
        vectors[:, self._end : self._end + steps] = hidden
        words[:, self._end : self._end + steps - 1] = tokens[:, 1:]
        self._offered = steps
        known = slice(self._start, self._end + steps - 1)
        return vectors[:, known], words[:, known].clone()

    def keep(self, targets: Tensor) -> None:
        """Store the last offered block with its targets (B, T) as words; the oldest pairs are dropped."""
        if self._words is None or not self._offered:
            return
        self._words[:, self._end : self._end + self._offered] = targets
        self._end += self._offered
        self._start, self._offered = max(self._start, self._end - self._most), 0

    def snapshot(self) -> tuple[Tensor, Tensor] | None:
        """Return a copy of the vectors and words in the cache, without a block not yet observed; None before the first."""
        if self._vectors is None or self._words is None:
            return None
        held = slice(self._start, self._end)
        return self._vectors[:, held].clone(), self._words[:, held].clone()

    def restore(self, snapshot: tuple[Tensor, Tensor] | None) -> None:
        """Restore a snapshot."""
        self._vectors, self._words = (None, None) if snapshot is None else clone(snapshot)
        self._start, self._end = 0, 0 if self._words is None else self._words.shape[1]
        self._offered = 0

    def _with_room(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the buffers, with space for the block after what is held."""
        rows, steps, size = hidden.shape
        if self._vectors is None or self._words is None:
            self._check_memory(hidden)
            self._vectors, self._words = hidden.new_empty(rows, 0, size), hidden.new_empty(rows, 0, dtype=torch.long)
        if self._end + steps > self._vectors.shape[1]:
            held, count = slice(self._start, self._end), len(self)
            capacity = count + steps + max(steps, count // GROWTH)
            vectors, words = hidden.new_empty(rows, capacity, size), self._words.new_empty(rows, capacity)
            vectors[:, :count], words[:, :count] = self._vectors[:, held], self._words[:, held]
            self._vectors, self._words, self._start, self._end = vectors, words, 0, count
        return self._vectors, self._words

    def _check_memory(self, hidden: Tensor) -> None:
        """Raise UserError when a full window, and a block's scores of it, are more than is free; nothing is allocated."""
        rows, steps, size = hidden.shape
        needed = rows * self._most * ((size + steps) * hidden.itemsize + torch.long.itemsize)
        free = available(hidden.device)
        if free is not None and needed > free:
            raise UserError(
                f"a cache of {self._most:,} words needs {shown_bytes(needed)} when it is full, and {shown_bytes(free)} are "
                "free; lower its window (it never holds more words than the text has)"
            )


class NeuralCache(WrappingReader):
    """Any reader with a neural cache on top.

    Vectors stay as they were when they were read, also when the inner reader's weights move. They and their products are in
    float32 at least, whatever the precision of the model.
    """

    interpolates = adapts = True

    @checked()
    def __init__(self, inner: Reader, settings: CacheSettings) -> None:
        """Raises UserError for settings out of range."""
        super().__init__(inner, "cache")
        self.settings = conforming(settings, "the cache")
        self._pairs = Pairs(settings.window)

    def start(self, batch_size: int) -> None:
        super().start(batch_size)
        self._pairs = Pairs(self.settings.window)

    def predict(self, tokens: Tensor) -> Interpolation:
        """Return the inner reader's prediction `p` and the cache's `q`, which is off where it is empty or not confident.

        Raises UserError where a full window can never fit into memory.
        """
        p = self.inner.predict(tokens)
        q = self._pointer(p, tokens)
        weight = self.settings.weight
        gates = q.weights.new_tensor([math.log(weight) if weight else -math.inf, math.log1p(-weight)])
        gates = gates.repeat(*tokens.shape, 1)
        if self.settings.confidence:
            gates[..., 0].masked_fill_(q.confidence() < self.settings.confidence, -torch.inf)
        if not len(self._pairs):
            gates[:, 0, 0] = -torch.inf
        return Interpolation(p.activations, p, q, gates)

    def _pointer(self, p: Prediction, tokens: Tensor) -> Pointer:
        hidden = head_input(p)
        vectors, known = self._pairs.offer(hidden, tokens)
        scores, words = in_window(hidden * self.settings.theta, vectors, known, self.settings.window)
        weights = torch.softmax(scores, 2)
        if not len(self._pairs):
            weights[:, 0] = 0.0  # not nan: the first position of a text has no pair
        return Pointer(p.activations, weights, words, self.model.vocabulary_size)

    def observe(self, targets: Tensor) -> None:
        super().observe(targets)
        self._pairs.keep(targets)

    def snapshot(self) -> Any:
        return super().snapshot(), self._pairs.snapshot()

    def restore(self, snapshot: Any) -> None:
        super().restore(snapshot[0])
        self._pairs = Pairs(self.settings.window)
        self._pairs.restore(snapshot[1])


def head_input(prediction: Prediction) -> Tensor:
    """Return the head's input (B, T, D), detached, in at least float32."""
    assert prediction.activations is not None, "a cache needs a prediction that carries its activations"
    hidden = prediction.activations.head_input.detach()
    return hidden.to(torch.promote_types(hidden.dtype, torch.float32))


def in_window(queries: Tensor, vectors: Tensor, words: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Dot products of each query with the pairs before it, and their words, each (B, T, N); N is `window`, or less early on.

    Queries (B, T, D); vectors (B, n + T - 1, D) and words (B, n + T - 1): n pairs from before the block, oldest first, and
    the block's own, of which position t may know the first t. Minus infinity where there is no pair. The words are a view.
    """
    steps, pairs = queries.shape[1], vectors.shape[1]
    width = min(window, max(1, pairs))
    products = queries @ vectors.transpose(1, 2)
    missing = width + steps - 1 - pairs  # below the first pair of a text
    if missing:
        products, words = F.pad(products, (missing, 0), value=-torch.inf), F.pad(words, (missing, 0))
    # Position t sees the columns t to t + width - 1: a slanted band, which is a view.
    rows, _, columns = products.shape
    band = products.as_strided((rows, steps, width), (steps * columns, columns + 1, 1))
    return band, words.unfold(1, width, 1)


GRID: Mapping[str, Sequence[Any]] = {
    "window": (100, 200, 500, 1000, 2000, 5000, 10000),
    "theta": (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0),
    "weight": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5),
    "confidence": (0.0,),
}
"""The values of each setting that are tried, each with each other, in the order of CacheSettings."""


class CacheScorer:
    """Scores every cache of a grid from one reading with the reader inside it.

    The products of states are computed once for all of the grid, so that it takes about as long as one reading with the
    largest window and one more pass over its products for each theta.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]], tokens: int) -> None:
        """`values` to try of some settings; of the others, those in GRID. Raises UserError for one out of range."""
        grid = {**GRID, **values}
        for settings in itertools.product(*grid.values()):
            validate(CacheSettings(*settings), "the grid")
        windows, self.thetas, self.weights, self.confidences = grid.values()
        self.windows = _useful(windows, tokens)
        self._pairs, self._inner = Pairs(self.windows[-1]), []
        self._scores: dict[tuple[int, float], list[tuple[Tensor, Tensor]]] = {
            (window, theta): [] for window in self.windows for theta in self.thetas
        }
        """By window and theta what `_by_window` yields for each block, where it was computed."""

    def update(self, block: Block, prediction: Prediction, log_prob: Tensor) -> None:
        hidden = head_input(prediction)
        products, words = in_window(hidden, *self._pairs.offer(hidden, block.tokens), self.windows[-1])
        self._pairs.keep(block.targets)
        self._inner.append(log_prob[0])
        matches = words[0] == block.targets[0, :, None]
        missing = products[0] == -torch.inf
        for theta in self.thetas:
            at_theta = (products[0] * theta).masked_fill_(missing, -torch.inf)  # not nan where theta is 0
            by_window = _by_window(at_theta, matches, self.windows)
            for window, scores in zip(self.windows, by_window, strict=True):
                self._scores[window, theta].append(scores)

    def scores(self) -> list[tuple[CacheSettings, float]]:
        inner, points = joined(self._inner), []
        for (window, theta), of_blocks in self._scores.items():
            log_prob, confidence = map(joined, zip(*of_blocks, strict=True))
            for weight, least in itertools.product(self.weights, self.confidences):
                nats = _mixed(inner, log_prob, confidence, weight, least)
                points.append((CacheSettings(window, theta, weight, least), nats))
        return points


def _useful(windows: Sequence[int], tokens: int) -> list[int]:
    """Return the windows in rising order, up to the first that holds the whole text: longer ones see no more."""
    ordered = sorted(set(windows))
    longest = next((i for i, window in enumerate(ordered) if window >= tokens), len(ordered))
    return ordered[: longest + 1]


def _by_window(scores: Tensor, matches: Tensor, windows: list[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each window the log-probability of the target and the mass of the likeliest pair, each (T,).

    Scores (T, N), the oldest pair first; matches (T, N): the pair's word is the target. Each window adds the pairs between
    the next smaller one and itself.
    """
    steps, width = scores.shape
    nothing = scores.new_full((steps,), -torch.inf)
    total, gold, largest, inside = nothing, nothing, nothing, 0
    gold_scores = scores.masked_fill(~matches, -torch.inf)
    for window in windows:
        ring = slice(max(0, width - window), max(0, width - inside))
        if ring.start < ring.stop:
            total = torch.logaddexp(total, scores[:, ring].logsumexp(1))
            gold = torch.logaddexp(gold, gold_scores[:, ring].logsumexp(1))
            largest = torch.maximum(largest, scores[:, ring].amax(1))
        inside = window
        empty = total == -torch.inf
        yield (gold - total).masked_fill(empty, -torch.inf), (largest - total).exp().masked_fill(empty, 0.0)


def _mixed(inner: Tensor, cache: Tensor, confidence: Tensor, weight: float, least: float) -> float:
    """Return the mean nats of the mixture; the cache is off where it is empty or not confident."""
    heard = (confidence > 0) & (confidence >= least)
    log_weight = math.log(weight) if weight else -math.inf
    mixture = torch.logaddexp(inner + math.log1p(-weight), cache + log_weight)
    return -torch.where(heard, mixture, inner).mean().item()


KIND = ReaderKind(
    "cache",
    "a neural cache on top: words that recently followed states like the current one become more likely",
    lambda context, settings: NeuralCache(context.wrapped(), settings),
    CacheSettings,
    wraps=True,
    grid_scorer=lambda context, values, tokens: CacheScorer(values, tokens),
)
