"""Code of tokens by every model with every reader: a decoder comes to the same tokens."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from catalogue import MODELS, TYPES

from backstory.codec.range_coder import Decoder, Encoder
from backstory.codec.spelling import Unit
from backstory.codec.token_code import code_text, side_by_side
from backstory.config.readers import (
    CacheSettings,
    DynamicSettings,
    GateSettings,
    MixtureSettings,
    NgramSettings,
    PPMSettings,
    TemperedSettings,
)
from backstory.models import LanguageModel
from backstory.readers import Reader, StaticReader
from backstory.readers.counting import CountingReader, ngram_counts_of, ppm_counts
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.gradient_statistics import Statistics, collect
from backstory.readers.learned import GateNetwork, Learned, LearnedReader
from backstory.readers.mixture import MixtureReader
from backstory.readers.moving_weights import MovingWeights
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.ngram_counts import count_ngrams
from backstory.readers.shuffled_buffer import ShuffledBuffer
from backstory.readers.tempered import TemperedReader

BASE = DynamicSettings(rate=0.01, decay=0.05, epsilon=1e-2, segment=4)


def text(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, TYPES, count).astype(np.uint16)


def statistics(model: LanguageModel) -> Statistics:
    return collect(model, text(40, 5), 0, moving="all", batch_size=4, segment=3)


def learned(model: LanguageModel) -> Reader:
    torch.manual_seed(3)
    network = GateNetwork(GateSettings(), len(MovingWeights(model, "all").names))
    return LearnedReader(model, Learned(network, BASE, (-1.0, 2.0), {}), statistics(model))


def cache(inner: Reader) -> Reader:
    return NeuralCache(inner, CacheSettings(window=20, weight=0.3))


def ngram(inner: Reader) -> Reader:
    settings = NgramSettings(order=3, weight=0.4, online=True)
    counts = count_ngrams(text(100, 7), TYPES, 0, settings.order, settings.across_lines)
    return CountingReader(inner, settings, ngram_counts_of(counts, settings))


def ppm(inner: Reader) -> Reader:
    settings = PPMSettings(order=3, weight=0.4)
    return CountingReader(inner, settings, ppm_counts(settings, TYPES))


READERS: dict[str, Callable[[LanguageModel], Reader]] = {
    "static": StaticReader,
    "dynamic, rms": lambda model: DynamicEvaluation(model, BASE, statistics(model)),
    "dynamic, nadam": lambda model: DynamicEvaluation(model, DynamicSettings(rule="nadam", rate=0.01, segment=5)),
    "learned": learned,
    "shuffled-buffer": ShuffledBuffer,
    "cache": lambda model: cache(StaticReader(model)),
    "ngram": lambda model: ngram(StaticReader(model)),
    "ppm": lambda model: ppm(StaticReader(model)),
    "tempered": lambda model: TemperedReader(StaticReader(model), TemperedSettings(1.3)),
    "mixture": lambda model: MixtureReader(ppm(cache(StaticReader(model))), MixtureSettings(share=0.05)),
    "logistic over dynamic": lambda model: MixtureReader(
        cache(ppm(DynamicEvaluation(model, BASE, statistics(model)))), MixtureSettings(domain="logistic", step=0.05)
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_come_back_from_every_model_with_every_reader(name: str, reader: str) -> None:
    if reader == "shuffled-buffer" and "span buffer" not in name:
        pytest.skip("needs a span buffer")
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    ids, encoder, make = text(31, 1), Encoder(), READERS[reader]
    groups = side_by_side(len(ids), 1 if make(model).capabilities.adapts_weights else 3)
    code_text(encoder, make(model), 0, groups, units=[Unit(int(id), b"", b"") for id in ids])
    assert (code_text(Decoder(encoder.finish()), make(model), 0, groups).tokens() == ids).all()
