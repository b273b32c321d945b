"""Mixtures of readers against a plain loop in float64: weights follow from the words before, and what is off stays off."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from adapting import text
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import TYPES, dual, lstm, mixture
from tiers import several

from backstory.config.readers import CacheSettings, MixtureSettings, PPMSettings
from backstory.evaluation import read
from backstory.readers import Reader, StaticReader
from backstory.readers.counting import CountingReader, ppm_counts
from backstory.readers.mixture import MixtureReader, MixtureScorer
from backstory.readers.mixture_weights import weights_along
from backstory.readers.neural_cache import NeuralCache
from backstory.tuning.reader_search import score_grid
from backstory.utils.errors import UserError

FIRST = 3


def cache(inner: Reader) -> NeuralCache:
    return NeuralCache(inner, CacheSettings(window=9, weight=0.2, confidence=0.3))


def ppm(inner: Reader) -> CountingReader:
    setting = PPMSettings(order=2)
    return CountingReader(inner, setting, ppm_counts(setting, TYPES))


def stack() -> Reader:
    return ppm(cache(StaticReader(lstm())))


def parts_along(reader: Reader, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, K) of a text under static, cache and PPM, and which of them take part (N, K)."""
    scores, on = [], []

    def note(block: object, prediction: object, log_prob: object) -> None:
        outer = prediction.parts()  # type: ignore[attr-defined]
        inner, targets = outer["p"].parts(), block.targets  # type: ignore[attr-defined]
        three = [one.log_prob(targets)[0].double().exp() for one in (inner["p"], inner["q"], outer["q"])]
        scores.append(torch.stack(three, 1))
        cached = inner["gate_logits"][0, :, 0] > -torch.inf
        on.append(torch.stack([torch.ones_like(cached), cached, torch.ones_like(cached)], 1))

    read(reader, ids, FIRST, each=note)
    return torch.cat(scores).numpy(), torch.cat(on).numpy()


def naive(scores: np.ndarray, on: np.ndarray, share: float, rate: float) -> list[float]:
    """Probability of every word under the mixture, one word at a time."""
    count, mixed = scores.shape[1], []
    weights = [1 / count] * count
    for p, part in zip(scores.tolist(), on.tolist(), strict=True):
        active = [k for k in range(count) if part[k]]
        total = sum(weights[k] for k in active)
        mixed.append(sum(weights[k] / total * p[k] for k in active))
        likelier = {k: weights[k] * p[k] ** rate for k in active}
        for k in active:
            weights[k] = likelier[k] / sum(likelier.values()) * total
        weights = [(1 - share) * weight + share / count for weight in weights]
    return mixed


@pytest.mark.full
@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.floats(1e-5, 1.0), st.sampled_from([0.1, 1.0, 2.0]), st.sampled_from([1, 7, 256]))
def test_it_equals_a_plain_loop(length: int, share: float, rate: float, block: int) -> None:
    ids = text(length, length)
    expected = naive(*parts_along(stack(), ids), share, rate)
    reader, found, sums = MixtureReader(stack(), MixtureSettings(share, rate)), [], []

    def note(piece: object, prediction: object, log_prob: torch.Tensor) -> None:
        found.extend(log_prob[0].double().exp().tolist())
        sums.append(prediction.log_probs().double().exp().sum(2))  # type: ignore[attr-defined]

    read(reader, ids, FIRST, block=block, each=note)
    assert found == pytest.approx(expected, rel=2e-4)
    torch.testing.assert_close(torch.cat(sums, 1), torch.ones(1, length, dtype=torch.float64), rtol=0, atol=1e-5)


def test_a_single_token_is_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is unknown at prediction, so nothing can be scored before it is observed."""
    reader, targets, scored = MixtureReader(stack(), MixtureSettings()), torch.tensor([[3], [5]]), []
    scores_of = MixtureReader.scores_of

    def noted(self: MixtureReader, experts: Any, of: torch.Tensor) -> np.ndarray:
        scored.append(of)
        return scores_of(self, experts, of)

    monkeypatch.setattr(MixtureReader, "scores_of", noted)
    reader.start(2)
    reader.predict(torch.tensor([[1], [2]]))
    assert not scored
    reader.observe(targets)
    assert len(scored) == 1 and scored[0] is targets


@settings(max_examples=several(6, 20), deadline=None)
@given(st.integers(1, 50), st.sampled_from([3, 256]))
def test_one_reading_scores_every_setting(length: int, block: int) -> None:
    ids, inner = text(length, 1), stack()
    inner.block = block
    tried = score_grid(MixtureScorer(inner, {"share": (1e-4, 0.3), "rate": (0.2, 1.0)}, length), inner, ids, FIRST)
    assert len(tried) == 4
    for setting, nats in tried:
        reader = MixtureReader(stack(), setting)
        assert nats == pytest.approx(read(reader, ids, FIRST, block=block).nats, rel=1e-5)


def test_the_best_of_several_models_wins() -> None:
    """Its loss is above that of the best one by no more than the weight it began with costs, and the share."""
    readers: list[Callable[[], Reader]] = [lambda made=made: StaticReader(made()) for made in (lstm, mixture, dual)]
    ids, share = text(300, 4), 1e-4
    each = [read(made(), ids, FIRST).nats for made in readers]
    first, *others = (made() for made in readers)
    reader = MixtureReader(first, MixtureSettings(share, 1.0), *others)
    blended = read(reader, ids, FIRST).nats
    assert blended <= min(each) + np.log(3) / len(ids) - np.log1p(-share) + 1e-6
    facts = reader.facts()
    assert facts["experts"] == ["static"] * 3 and sum(facts["weights"]) == pytest.approx(1, abs=1e-5)


def test_a_row_of_weights_depends_on_its_own_scores_alone() -> None:
    random = np.random.default_rng(0)
    scores, on = np.log(random.random((3, 20, 4))), random.random((3, 20, 4)) > 0.3
    on[..., 0] = True
    start = np.full((3, 4), 0.25)
    along, after = weights_along(scores, on, start, 0.01, 1.0)
    np.testing.assert_allclose(along.sum(2), 1, atol=1e-12)
    np.testing.assert_allclose(after.sum(1), 1, atol=1e-12)
    assert (along[~on] == 0).all()
    for row in range(3):
        one, last = weights_along(scores[row : row + 1], on[row : row + 1], start[:1], 0.01, 1.0)
        assert (one[0] == along[row]).all() and (last[0] == after[row]).all()


def test_it_needs_something_to_blend() -> None:
    with pytest.raises(UserError, match="nothing to blend; put readers before it"):
        MixtureReader(StaticReader(lstm()), MixtureSettings())
