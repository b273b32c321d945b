"""The neural cache (Grave et al. 2017): words that followed states like the present one lately are likelier to come again.

    P_cache(w | h_t) ~ sum_i [w_i = w] exp(theta h_i . h_t)        over the last `window` pairs (h_i, w_i), i < t
    P(w) = (1 - lambda) P_inner(w) + lambda P_cache(w)

h_t is what the head read, raw; w_i is the word that came after h_i.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backstory.config.arguments import checked
from backstory.config.readers import CacheSettings
from backstory.config.strict import conforming
from backstory.models import Blend, Prediction
from backstory.models.prediction import Pointer
from backstory.readers.base import Reader
from backstory.readers.cache_memory import Pairs


class NeuralCache(Reader):
    """Any reader with a neural cache on top.

    Vectors stay as they were when they were read, also when the inner reader's weights move. They and their products are in
    float32 at least, whatever the precision of the model.
    """

    inner: Reader

    @checked()
    def __init__(self, inner: Reader, settings: CacheSettings) -> None:
        """Raises UserError for settings out of range."""
        self.inner, self.settings = inner, conforming(settings, "the cache")
        self.name = "cache" if inner.name == "static" else f"{inner.name}+cache"
        self.model, self.precision, self.block = inner.model, inner.precision, inner.block
        self.capabilities = inner.capabilities
        self._pairs = Pairs(settings.window)

    def start(self, batch_size: int) -> None:
        self.inner.start(batch_size)
        self._pairs = Pairs(self.settings.window)

    def predict(self, tokens: Tensor) -> Blend:
        """The inner reader's prediction `p` and the cache's `q`, which is shut off where it is empty or not confident.

        Raises UserError where a full window can never fit into memory.
        """
        p = self.inner.predict(tokens)
        q = self._cached(p, tokens)
        weight = self.settings.weight
        gates = q.weights.new_tensor([math.log(weight) if weight else -math.inf, math.log1p(-weight)])
        gates = gates.repeat(*tokens.shape, 1)
        if self.settings.confidence:
            gates[..., 0].masked_fill_(q.confidence() < self.settings.confidence, -torch.inf)
        if not len(self._pairs):
            gates[:, 0, 0] = -torch.inf
        return Blend(p.activations, p, q, gates)

    def _cached(self, p: Prediction, tokens: Tensor) -> Pointer:
        hidden = head_input(p)
        vectors, known = self._pairs.offer(hidden, tokens)
        scores, words = in_window(hidden * self.settings.theta, vectors, known, self.settings.window)
        weights = torch.softmax(scores, 2)
        if not len(self._pairs):
            weights[:, 0] = 0.0  # not nan: the first position of a text has nothing to remember
        return Pointer(p.activations, weights, words, self.model.vocabulary_size)

    def observe(self, targets: Tensor) -> None:
        self.inner.observe(targets)
        self._pairs.keep(targets)

    def snapshot(self) -> Any:
        return self.inner.snapshot(), self._pairs.snapshot()

    def restore(self, snapshot: Any) -> None:
        self.inner.restore(snapshot[0])
        self._pairs = Pairs(self.settings.window)
        self._pairs.restore(snapshot[1])


def head_input(prediction: Prediction) -> Tensor:
    """What the head read (B, T, D), cut off from its graph, in at least float32."""
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
