"""Readers that count words: n-grams of the training text, and PPM, which counts what it reads; interpolated with any reader.

P(w) = (1 - lambda) P_inner(w) + lambda P_counts(w)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backstory.config.readers import NgramSettings, PPMSettings
from backstory.config.strict import conforming
from backstory.models.positions import steps_at
from backstory.models.prediction import scored_once
from backstory.readers.adaptive_counts import AdaptiveCounts, ByLength, log_tensor
from backstory.readers.base import Reader
from backstory.readers.counted_text import CountedTexts, Smoothing
from backstory.readers.interpolating import InterpolatingReader, PredictionSource, WeightScorer
from backstory.readers.kind import BuildContext, ReaderKind
from backstory.readers.ngram_counts import NOTHING, NgramCounts
from backstory.utils.arguments import checked

Settings = NgramSettings | PPMSettings
ORDERS, DISCOUNTS = (2, 3, 4, 6), (0.5, 0.8)
"""Of PPM, the lengths of contexts and the discounts that are tried."""


class CountingReader(InterpolatingReader):
    """Any reader with the prediction of counts mixed in."""

    @checked()
    def __init__(
        self, inner: Reader, settings: Settings, counts: PredictionSource, facts: Mapping[str, Any] | None = None
    ) -> None:
        """`facts` are what results record of the counts. Raises UserError for settings out of range."""
        kind = "ngram" if isinstance(settings, NgramSettings) else "ppm"
        self.settings = conforming(settings, f"the reader {kind}")
        super().__init__(inner, kind, counts, settings.weight, facts)
        self.adapts = isinstance(counts, AdaptiveCounts)


@dataclass(frozen=True, eq=False)
class NgramPrediction(ByLength):
    """The distribution of n-grams after the contexts at each position."""

    counts: NgramCounts
    contexts: Tensor
    """(B, T, order - 1) int64: the id of the context of each length, from 1; NOTHING where it was never counted."""

    @scored_once
    def log_prob(self, targets: Tensor) -> Tensor:
        p = self.counts.probability(self._flat(), targets.flatten().cpu().numpy())
        return log_tensor(p, targets.device).view(targets.shape)

    def log_probs(self) -> Tensor:
        return log_tensor(self.counts.distribution(self._flat()), self.contexts.device).view(
            *self.contexts.shape[:2], -1
        )

    def log_probs_by_length(self) -> tuple[Tensor, Tensor]:
        tables = [log_tensor(p, self.contexts.device) for p in self.counts.by_length(self._flat())]
        return torch.stack(tables).view(len(tables), *self.contexts.shape[:2], -1), (self.contexts != NOTHING).sum(2)

    def select(self, rows: Tensor, times: Tensor) -> "NgramPrediction":
        contexts = steps_at(self.contexts, rows, times)
        return replace(self, activations=self._selected(rows, times), contexts=contexts)

    def _flat(self) -> np.ndarray:
        return self.contexts.flatten(0, 1).cpu().numpy()


class FixedNgrams:
    """N-grams that were counted beforehand: all that reading changes is the last words."""

    def __init__(self, counts: NgramCounts) -> None:
        self._counts = counts
        self._recent = self._next = torch.empty(0, 0, dtype=torch.long)

    def start(self, batch_size: int) -> None:
        self._recent = self._next = torch.full((batch_size, self._counts.order - 1), NOTHING)

    def predict(self, tokens: Tensor) -> NgramPrediction:
        words = tokens.cpu()
        contexts = self._counts.contexts(self._recent.numpy(), words.numpy())
        self._next = torch.cat([self._recent, words], 1)[:, tokens.shape[1] :]
        return NgramPrediction(None, self._counts, torch.from_numpy(contexts).to(tokens.device))

    def observe(self, targets: Tensor) -> None:
        self._recent = self._next

    def snapshot(self) -> Tensor:
        return self._recent.clone()

    def restore(self, snapshot: Tensor) -> None:
        self._recent = self._next = snapshot.cpu().clone()


def ngram_counts_of(counts: NgramCounts, settings: NgramSettings) -> PredictionSource:
    """Return predictions from n-grams that were counted, which go on counting if they are `online`."""
    if not settings.online:
        return FixedNgrams(counts)
    return AdaptiveCounts(CountedTexts(counts.types, settings.order - 1, Smoothing.kneser_ney(counts), counts))


def ppm_counts(settings: PPMSettings, types: int) -> AdaptiveCounts:
    """Return counts of nothing yet, over V types."""
    smoothing = Smoothing.ppm(settings.order, settings.escape, settings.discount, settings.exclusion)
    return AdaptiveCounts(CountedTexts(types, settings.order, smoothing))


def _build_ngram(context: BuildContext, settings: NgramSettings) -> CountingReader:
    counts = context.ngrams(settings.order, settings.across_lines)
    facts = {
        "counted": counts.tokens,
        "ngrams": [int((counts.unigrams > 0).sum()), *(len(table.keys) for table in counts.tables)],
        "discounts": [[round(float(d), 6) for d in discounts[1:]] for discounts in counts.discounts],
    }
    return CountingReader(context.wrapped(), settings, ngram_counts_of(counts, settings), facts)


def _ngram_scorer(context: BuildContext, values: Mapping[str, Sequence[Any]], tokens: int) -> WeightScorer:
    def make(settings: NgramSettings) -> PredictionSource:
        return ngram_counts_of(context.ngrams(settings.order, settings.across_lines), settings)

    return WeightScorer(values, NgramSettings, make)


def _ppm_scorer(context: BuildContext, values: Mapping[str, Sequence[Any]], tokens: int) -> WeightScorer:
    types, tried = context.wrapped().model.vocabulary_size, {"order": ORDERS, **values}
    if values.get("escape", ["d"]) == ["d"]:
        tried = {"discount": DISCOUNTS} | tried
    return WeightScorer(tried, PPMSettings, lambda settings: ppm_counts(settings, types))


NGRAM = ReaderKind(
    "ngram",
    "n-grams of the training text on top, with modified Kneser-Ney smoothing",
    _build_ngram,
    NgramSettings,
    wraps=True,
    identity=("order", "across_lines", "online"),
    grid_scorer=_ngram_scorer,
)
PPM = ReaderKind(
    "ppm",
    "prediction by partial matching on top: what followed the last few tokens earlier in this text",
    lambda context, settings: CountingReader(
        context.wrapped(), settings, ppm_counts(settings, context.wrapped().model.vocabulary_size)
    ),
    PPMSettings,
    wraps=True,
    grid_scorer=_ppm_scorer,
)
