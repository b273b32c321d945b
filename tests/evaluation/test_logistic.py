"""Logistic mixing against a plain loop in float64 whose gradients are autograd's: normalised, and learned after the score."""

import numpy as np
import pytest
import torch
from adapting import text
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import TYPES, lstm, mixture

from backstory.config.readers import CacheSettings, MixtureSettings, NgramSettings, PPMSettings
from backstory.evaluation import read
from backstory.models import Precision
from backstory.readers import Reader, StaticReader
from backstory.readers.counting import CountingReader, ngram_counts_of, ppm_counts
from backstory.readers.logistic import EDGES
from backstory.readers.mixture import MixtureReader, MixtureScorer
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.ngram_counts import count_ngrams
from backstory.tuning.reader_search import score_grid
from backstory.utils.errors import UserError

FIRST = 3
CONTEXTS = ("none", "entropy", "length")


def stack(exclusion: bool = False, precision: Precision | None = None) -> Reader:
    ngrams, counted = NgramSettings(order=3, weight=0.4), PPMSettings(order=2, weight=0.3, exclusion=exclusion)
    cache = NeuralCache(StaticReader(lstm(), precision), CacheSettings(window=9, weight=0.2, confidence=0.3))
    counts = ngram_counts_of(count_ngrams(text(300, seed=7), TYPES, 0, 3), ngrams)
    return CountingReader(CountingReader(cache, ngrams, counts), counted, ppm_counts(counted, TYPES))


def logistic(step: float, context: str = "none", lengths: bool = False) -> MixtureSettings:
    return MixtureSettings(0.02, 1.0, "logistic", step, context, lengths)  # type: ignore[arg-type]


@torch.no_grad()
def naive(ids: np.ndarray, setting: MixtureSettings) -> list[float]:
    """Log-probability of every word, one word at a time."""
    reader, linear = stack(), MixtureReader(stack(), MixtureSettings(setting.share, setting.rate))
    reader.start(1)
    linear.start(1)
    weights: dict[int, torch.Tensor] = {}
    scores, before = [], FIRST
    for word in ids.tolist():
        tokens, targets = torch.tensor([[before]]), torch.tensor([[word]])
        ppm = reader.predict(tokens).parts()
        ngram = ppm["p"].parts()
        cache = ngram["p"].parts()
        first = cache["p"].log_probs()[0, 0].double().exp()
        factors, known = [linear.predict(tokens).log_probs()[0, 0].double(), first.log()], 0
        for part in (cache, ngram, ppm):
            share = torch.softmax(part["gate_logits"][0, 0].double(), 0)[0]
            tables = [part["q"].log_probs()[0, 0]]
            if part is not cache:
                by_length, longest = part["q"].log_probs_by_length()
                known = int(longest)
                tables = list(by_length[:, 0, 0]) if setting.lengths else tables
            factors += [((1 - share) * first + share * table.double().exp()).log() for table in tables]
        entropy = -float((factors[0].exp() * factors[0]).sum())
        place = {"none": 0, "entropy": sum(entropy > edge for edge in EDGES), "length": known}[setting.context]
        a = weights.setdefault(place, torch.eye(len(factors), dtype=torch.float64)[0]).requires_grad_()
        with torch.enable_grad():
            loss = -torch.log_softmax((a[:, None] * torch.stack(factors)).sum(0), 0)[word]
        scores.append(-float(loss))
        weights[place] = (a - setting.step * torch.autograd.grad(loss, a)[0]).detach()
        reader.observe(targets)
        linear.observe(targets)
        before = word
    return scores


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 40), st.sampled_from([0.0, 0.01, 0.2]), st.sampled_from(CONTEXTS), st.booleans(),
    st.sampled_from([1, 7, 256]),
)  # fmt: skip
def test_it_equals_a_plain_loop(length: int, step: float, context: str, lengths: bool, block: int) -> None:
    ids, setting = text(length, length), logistic(step, context, lengths)
    reader, scores, sums = MixtureReader(stack(), setting), [], []

    def note(piece: object, prediction: object, log_prob: torch.Tensor) -> None:
        scores.extend(log_prob[0].double().tolist())
        sums.append(prediction.log_probs().double().exp().sum(2))  # type: ignore[attr-defined]

    read(reader, ids, FIRST, block=block, each=note)
    assert scores == pytest.approx(naive(ids, setting), rel=1e-3, abs=1e-4)
    torch.testing.assert_close(torch.cat(sums, 1), torch.ones(1, length, dtype=torch.float64), rtol=0, atol=1e-5)


def test_the_readers_inside_are_those_of_the_linear_mixture() -> None:
    """The linear mixture is a factor of the product, and no reader of the stack: gains are of the readers."""
    tokens = torch.from_numpy(text(8, 1)).long()[None]
    inside = []
    for setting in (logistic(0.1), MixtureSettings(0.02)):
        reader = MixtureReader(stack(), setting)
        reader.start(1)
        inside.append(reader.predict(tokens).parts()["p"].log_probs())
    assert torch.equal(*inside)


@torch.no_grad()
def test_probabilities_are_multiplied_in_float32_whatever_the_models_precision() -> None:
    ids, narrow = text(50, 5), Precision(torch.bfloat16, "as asked")
    readers = [MixtureReader(stack(precision=narrow), s) for s in (logistic(0.0), MixtureSettings(0.02, 1.0))]
    product, linear = (read(reader, ids, FIRST).nats for reader in readers)
    assert product == pytest.approx(linear, abs=1e-5)


def test_without_steps_it_is_the_sum() -> None:
    ids = text(50, 5)
    product, linear = (MixtureReader(stack(), s) for s in (logistic(0.0), MixtureSettings(0.02)))
    assert read(product, ids, FIRST).nats == pytest.approx(read(linear, ids, FIRST).nats, rel=1e-5)


def test_it_learns_from_the_targets_also_where_other_tokens_follow() -> None:
    """A block that goes on otherwise than its targets say ends with the weights of single steps."""
    tokens, targets = torch.from_numpy(np.stack([text(6, 1), text(6, 2)])).long()[:, None]
    whole, single = (MixtureReader(StaticReader(lstm()), logistic(0.1), StaticReader(mixture())) for _ in range(2))
    for reader, size in ((whole, 6), (single, 1)):
        reader.start(1)
        for t in range(0, 6, size):
            reader.predict(tokens[:, t : t + size])
            reader.observe(targets[:, t : t + size])
    assert whole.facts()["weights"] == pytest.approx(single.facts()["weights"], abs=1e-5)
    assert whole.facts()["exponents"][0] == pytest.approx(single.facts()["exponents"][0], abs=2e-4)
    assert whole.facts()["exponents"][0] != [1, 0, 0]


@pytest.mark.full
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.sampled_from([3, 256]), st.sampled_from(CONTEXTS))
def test_one_reading_scores_every_setting(length: int, block: int, context: str) -> None:
    ids, inner = text(length, 1), stack()
    inner.block = block
    values = {"domain": ["logistic"], "context": [context], "share": (1e-4, 0.3), "rate": (0.3,), "step": (0.001, 0.05)}
    tried = score_grid(MixtureScorer(inner, values, length), inner, ids, FIRST)
    assert len(tried) == 4
    for setting, nats in tried:
        assert nats == pytest.approx(read(MixtureReader(stack(), setting), ids, FIRST, block=block).nats, rel=1e-4)


def test_what_it_cannot_do_is_said_in_one_line() -> None:
    with pytest.raises(UserError, match="PPM with exclusion has no predictions by length"):
        read(MixtureReader(stack(exclusion=True), logistic(0.1, lengths=True)), text(5, 1), FIRST)
    with pytest.raises(UserError, match="one of weights, domain, context and lengths"):
        MixtureScorer(stack(), {"domain": ["linear", "logistic"]}, 10)
