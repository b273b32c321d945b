"""The contract of readers, which covers new ones automatically: honest, forked cleanly, wrapped or not, learning or not."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from adapting import BASE, gates, statistics, text
from adaptive import Doubtful, Learning
from small_models import TYPES, buffered, dual, lstm, mixture
from tiers import fast_then_full
from torch import Tensor

from backstory.config.readers import (
    CacheSettings,
    EnsembleSettings,
    MixtureSettings,
    NgramSettings,
    PPMSettings,
    TemperedSettings,
)
from backstory.evaluation import Audit, block_count, read
from backstory.models import Capabilities, ComposedModel, Prediction
from backstory.plugins.reader_contract import READER_CHECKS, reader_of
from backstory.readers import READERS as KINDS
from backstory.readers import Reader, ReaderKind, StaticReader
from backstory.readers.counting import CountingReader, ngram_counts_of, ppm_counts
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.ensemble import EnsembleReader, Members
from backstory.readers.kind import BuildContext
from backstory.readers.learned import LearnedReader
from backstory.readers.mixture import MixtureReader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.ngram_counts import count_ngrams
from backstory.readers.tempered import TemperedReader
from backstory.runs.run import Run
from backstory.utils.errors import NonFiniteError, UserError


def dynamic(model: ComposedModel) -> DynamicEvaluation:
    return DynamicEvaluation(model, BASE, statistics(model))


def learned(model: ComposedModel) -> LearnedReader:
    return LearnedReader(model, gates(model, size=0.3), statistics(model))


def cache(inner: Reader) -> NeuralCache:
    return NeuralCache(inner, CacheSettings(window=20, weight=0.3))


def ngram(inner: Reader, **fields: Any) -> CountingReader:
    settings = NgramSettings(**{"order": 3, "weight": 0.4} | fields)
    counts = count_ngrams(text(300, seed=7), TYPES, 0, settings.order, settings.across_lines)
    return CountingReader(inner, settings, ngram_counts_of(counts, settings))


def ppm(inner: Reader, **fields: Any) -> CountingReader:
    settings = PPMSettings(**{"order": 3, "weight": 0.4} | fields)
    return CountingReader(inner, settings, ppm_counts(settings, TYPES))


def blend(inner: Reader, *others: Reader, **fields: Any) -> MixtureReader:
    return MixtureReader(inner, MixtureSettings(share=0.05, **fields), *others)


READERS: dict[str, Callable[[], Reader]] = {
    "static": lambda: StaticReader(lstm()),
    "wrapped": lambda: Doubtful(StaticReader(lstm())),
    "learning": lambda: Learning(lstm()),
    "wrapped learning": lambda: Doubtful(Learning(lstm())),
    "static, span buffer": lambda: StaticReader(buffered()),
    "dynamic, span buffer": lambda: dynamic(buffered(attention="bilinear")),
    "cache over dynamic, span buffer": lambda: NeuralCache(dynamic(buffered()), CacheSettings(window=20, weight=0.3)),
    "cache": lambda: NeuralCache(StaticReader(lstm()), CacheSettings(window=20, weight=0.3)),
    "cache over learning": lambda: NeuralCache(Learning(lstm()), CacheSettings(window=20, weight=0.3)),
    "dynamic": lambda: dynamic(lstm()),
    "learned": lambda: learned(lstm()),
    "static, dual mogrifier": lambda: StaticReader(dual()),
    "dynamic, dual mogrifier": lambda: dynamic(dual()),
    "learned, dual mogrifier": lambda: learned(dual()),
    "cache over dynamic, dual mogrifier": lambda: NeuralCache(dynamic(dual()), CacheSettings(window=20, weight=0.3)),
    "cache over dynamic": lambda: NeuralCache(dynamic(lstm()), CacheSettings(window=20, weight=0.3)),
    "tempered": lambda: TemperedReader(StaticReader(lstm()), TemperedSettings(0.8)),
    "tempered over dynamic, mixture": lambda: TemperedReader(dynamic(mixture()), TemperedSettings(1.3)),
    "tempered over cache over dynamic, span buffer": lambda: TemperedReader(
        NeuralCache(dynamic(buffered()), CacheSettings(window=20, weight=0.3)), TemperedSettings(1.3)
    ),
    "cache over tempered": lambda: NeuralCache(
        TemperedReader(StaticReader(lstm()), TemperedSettings(1.3)), CacheSettings(window=20, weight=0.3)
    ),
    "cache over learned": lambda: NeuralCache(learned(lstm()), CacheSettings(window=20, weight=0.3)),
    "ngram": lambda: ngram(StaticReader(lstm())),
    "ngram alone, lines apart": lambda: ngram(StaticReader(lstm()), weight=1.0, across_lines=False),
    "ngram online": lambda: ngram(StaticReader(lstm()), online=True, weight=0.9),
    "ngram over cache over dynamic": lambda: ngram(cache(dynamic(lstm()))),
    "ppm": lambda: ppm(StaticReader(lstm())),
    "ppm with exclusion": lambda: ppm(StaticReader(lstm()), exclusion=True, escape="c", weight=1.0),
    "cache over ppm over ngram, span buffer": lambda: cache(ppm(ngram(StaticReader(buffered()), online=True))),
    "mixture": lambda: blend(ppm(ngram(cache(StaticReader(lstm()))))),
    "mixture over dynamic": lambda: blend(cache(ppm(dynamic(lstm())))),
    "mixture of readers": lambda: blend(
        cache(StaticReader(lstm())), StaticReader(mixture()), ppm(StaticReader(lstm()))
    ),
    "gate": lambda: blend(ppm(ngram(cache(StaticReader(lstm())))), weights="gate"),
    "gated product over dynamic": lambda: blend(cache(ppm(dynamic(lstm()))), weights="gate", domain="logistic"),
    "gate of readers": lambda: blend(cache(StaticReader(lstm())), StaticReader(mixture()), weights="gate"),
    "logistic": lambda: blend(ppm(ngram(cache(StaticReader(lstm())))), domain="logistic", step=0.05, context="length"),
    "logistic by lengths over dynamic": lambda: blend(
        cache(ppm(dynamic(lstm()))), domain="logistic", context="entropy", lengths=True
    ),
    "logistic over cache over learned, pointer": lambda: blend(
        cache(ngram(learned(buffered()))), StaticReader(mixture()), domain="logistic", step=0.05
    ),
    "ensemble": lambda: EnsembleReader(StaticReader(lstm()), EnsembleSettings(), Members([StaticReader(mixture())])),
    "cache over ensemble over dynamic": lambda: cache(
        EnsembleReader(dynamic(lstm()), EnsembleSettings(), Members([dynamic(dual()), StaticReader(buffered())]))
    ),
    "tempered over mixture": lambda: TemperedReader(blend(cache(StaticReader(lstm()))), TemperedSettings(0.8)),
}
# A new kind that needs no more than a model joins by itself; a shuffled buffer needs several rows.
READERS |= {name: partial(reader_of, kind) for name, kind in KINDS.items() if name not in {*READERS, "shuffled-buffer"}}

Stream = Callable[[int], np.ndarray]


VARIANTS = {
    "dynamic, span buffer", "dynamic, dual mogrifier", "learned, dual mogrifier", "cache over dynamic, dual mogrifier",
    "wrapped learning", "cache over learning", "cache over tempered", "cache over dynamic", "cache over learned",
    "tempered over cache over dynamic, span buffer", "ngram alone, lines apart", "ngram over cache over dynamic",
    "cache over ppm over ngram, span buffer", "mixture over dynamic", "mixture of readers", "tempered over mixture",
    "cache over ensemble over dynamic", "gated product over dynamic", "gate of readers",
    "logistic by lengths over dynamic", "logistic over cache over learned, pointer", "gate", "logistic",
    "static, dual mogrifier", "ppm with exclusion", "ngram online", "tempered over dynamic, mixture",
}  # fmt: skip
"""Readers that have the parts of others; with `--full` they are tested as these are."""


@pytest.fixture(params=fast_then_full(READERS, READERS.keys() - VARIANTS))
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]()


@pytest.mark.parametrize("check", READER_CHECKS)
def test_it_keeps_the_contract(reader: Reader, check: str) -> None:
    READER_CHECKS[check](reader)


def test_a_learning_reader_chooses_its_block_and_reads_one_row(stream: Stream) -> None:
    sizes: list[int] = []
    read(Learning(lstm()), stream(23), 0, each=lambda block, prediction, score: sizes.append(block.tokens.shape[1]))
    assert sizes == [5, 5, 5, 5, 3]
    with pytest.raises(UserError, match=r"learns as it reads, so it reads one row only; use --batch-size 1"):
        read(Learning(lstm()), stream(23), 0, batch_size=2)


def test_a_score_that_is_not_a_number_stops_the_reading(stream: Stream) -> None:
    model = lstm()
    with torch.no_grad():
        model.head.weight.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="the score of block 0 is nan"):
        read(StaticReader(model), stream(20), 0)


class Forgetful(ComposedModel):
    """Restarts at every call, as a Transformer with a window does."""

    def forward(self, tokens: Tensor, state: Any) -> tuple[Prediction, Any]:
        prediction, _ = super().forward(tokens, self.start(len(tokens)))
        return prediction, state


def test_a_model_without_exact_state_is_read_in_its_own_blocks(stream: Stream) -> None:
    whole = lstm()
    model = Forgetful(whole.embedding, whole.core, whole.head)
    model.capabilities = Capabilities(exact_state=False, recurrent=False, maximum_length=7)
    sizes: list[int] = []
    audit = Audit(block_count(20, 1, 7), 3)
    reader = StaticReader(model)
    read(
        reader, stream(20), 0, observer=audit, each=lambda block, prediction, score: sizes.append(block.tokens.shape[1])
    )
    assert sizes == [7, 7, 6]
    assert audit.report.failures == []


def test_the_run_of_the_check_has_a_word_for_each_type_of_its_model() -> None:
    """A plugin's reader that takes the size of its counts from the vocabulary failed the check."""
    runs: list[Run] = []

    def build(context: BuildContext, settings: Any) -> Reader:
        runs.append(context.run)
        return TemperedReader(context.wrapped(), TemperedSettings())

    reader_of(ReaderKind("sizes", "counts words", build, wraps=True))
    assert [len(run.vocabulary) for run in runs] == [run.model.vocabulary_size for run in runs] != []
