"""Bootstrap intervals against a plain loop, against normal theory, and on data whose answer is known."""

import math
from collections.abc import Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from backstory.config import TextConfig, UserError
from backstory.context import Examination, effective_context, measure, paired_interval, paired_intervals, statistics
from backstory.context.statistics import resampled_means
from backstory.text import prepare

CONTEXTS = (5, 10, 20, 50)


def loop(values: np.ndarray, seed: int) -> tuple[float, float]:
    """The percentile bootstrap as the books write it."""
    random = np.random.default_rng(seed)
    means = [random.choice(values, len(values)).mean() for _ in range(statistics.RESAMPLES)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


@pytest.mark.parametrize("draw", ["standard_normal", "standard_exponential"])
def test_an_interval_is_that_of_the_plain_bootstrap(draw: str) -> None:
    values = getattr(np.random.default_rng(1), draw)(300)
    interval, (low, high) = paired_interval(values, seed=2), loop(values, seed=3)
    # A limit from 2,000 resamples has a standard deviation of about 0.06 standard errors.
    noise = 5 * 0.06 * math.sqrt(2) * values.std() / math.sqrt(300)
    assert interval.value == values.mean()
    assert interval.low == pytest.approx(low, abs=noise)
    assert interval.high == pytest.approx(high, abs=noise)


def test_an_interval_is_the_normal_one_for_many_normal_differences() -> None:
    values = np.random.default_rng(0).normal(0.3, 2.0, 2000)
    interval, error = paired_interval(values), values.std() / math.sqrt(2000)
    assert interval.low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert interval.high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    random, truth, trials = np.random.default_rng(0), 0.5, 200
    intervals = [paired_interval(random.normal(truth, 1.0, 80), seed) for seed in range(trials)]
    hits = sum(i.low <= truth <= i.high for i in intervals)
    # About 94% are expected for 80 targets; four standard deviations of 200 trials either way.
    assert 0.87 <= hits / trials <= 0.99


def test_pairing_takes_out_what_conditions_share() -> None:
    random = np.random.default_rng(0)
    hard = random.exponential(5, 500)  # some words are hard under every condition
    changed = hard + random.normal(0.1, 0.05, 500)
    paired = paired_interval(changed - hard)
    assert paired.low > 0.09 and paired.high < 0.11
    alone = paired_interval(changed)
    assert alone.high - alone.low > 20 * (paired.high - paired.low)


def test_the_same_draws_serve_all_conditions() -> None:
    values = np.random.default_rng(0).normal(size=(50, 1))
    means = resampled_means(np.hstack([values, values + 1, -values]), seed=0)
    np.testing.assert_allclose(means[:, 1], means[:, 0] + 1)
    np.testing.assert_allclose(means[:, 2], -means[:, 0])


@pytest.mark.parametrize("chunk", [1, 40, 41, 1000, 1 << 24])
@pytest.mark.parametrize("conditions", [1, 3])
def test_memory_changes_nothing(monkeypatch: pytest.MonkeyPatch, chunk: int, conditions: int) -> None:
    values = np.random.default_rng(0).normal(size=(40, conditions))
    expected = resampled_means(values, seed=1, resamples=30)
    monkeypatch.setattr(statistics, "CHUNK", chunk)
    means = resampled_means(values, seed=1, resamples=30)
    assert means.shape == (30, conditions)
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-12)


def test_an_interval_is_repeated_by_its_seed() -> None:
    values = np.random.default_rng(0).normal(size=100)
    assert paired_interval(values, 1) == paired_interval(values, 1) != paired_interval(values, 2)


def with_excess(*means: float, spread: float = 0.0, targets: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Baseline (N,) and conditions (N, C) whose mean excess is exactly as given, with noise of its own per condition."""
    random = np.random.default_rng(0)
    noise = random.normal(0, 1, (targets, len(means)))
    noise = spread * (noise - noise.mean(0)) / noise.std(0)
    baseline = random.exponential(4, targets)
    return baseline, baseline[:, None] + np.array(means) + noise


@pytest.mark.parametrize(
    "means, answer",
    [
        ((0.5, 0.3, 0.001, 0.0), 20),
        ((0.0, 0.0, 0.0, 0.0), 5),
        ((0.5, 0.3, 0.0101, 0.0), 50),  # 1.0101 percent in nats is more than 1 percent of perplexity
        ((0.5, 0.3, 0.0099, 0.0), 20),
        ((0.5, -0.1, 0.5, 0.5), 10),  # the first that is good, though later ones are not
        ((0.5, 0.4, 0.3, 0.2), None),
    ],
)
def test_the_effective_context_is_the_first_within_a_percent(means: tuple[float, ...], answer: int | None) -> None:
    assert effective_context(CONTEXTS, *with_excess(*means)) == (answer, answer, answer)


def test_the_threshold_is_of_perplexity() -> None:
    data = with_excess(0.5, math.log(1.5) + 1e-6, math.log(1.5) - 1e-6, 0.0)
    assert effective_context(CONTEXTS, *data, threshold=0.5)[0] == 20


def test_the_interval_of_the_effective_context_tells_what_is_unsure() -> None:
    # At 10 the excess is 0.009 with a standard error of 0.005: it may well be above one percent; at 20 it cannot.
    assert effective_context(CONTEXTS, *with_excess(0.5, 0.009, 0.0, 0.0, spread=0.1)) == (10, 10, 20)
    assert effective_context(CONTEXTS, *with_excess(0.5, 0.5, 0.5, 0.009, spread=0.1)) == (50, 50, None)


def order(context: int | None) -> float:
    return math.inf if context is None else context


@hypothesis.given(
    means=st.lists(st.floats(-0.02, 0.05), min_size=4, max_size=4), spread=st.floats(0, 1), targets=st.integers(2, 60)
)
def test_the_interval_holds_the_effective_context(means: list[float], spread: float, targets: int) -> None:
    value, low, high = effective_context(CONTEXTS, *with_excess(*means, spread=spread, targets=targets))
    assert {value, low, high} <= {*CONTEXTS, None}
    assert order(low) <= order(value) <= order(high)


def test_the_interval_holds_it_where_every_context_is_at_the_threshold() -> None:
    # Each context but the last misses by a hair, so that nearly every resample finds one of them good.
    contexts = tuple(range(1, 12))
    value, low, high = effective_context(contexts, *with_excess(*[0.0101] * 10, 0.0, spread=1.0))
    assert value == 11 and low == 1
    assert high is not None and high >= value


class Recalling:
    """A model of counts: words of the training text, and the likelier for each time that the context has them."""

    def __init__(self, counts: np.ndarray) -> None:
        self.share = (counts + 1) / (counts + 1).sum()

    def score(self, contexts: Sequence[np.ndarray], targets: np.ndarray, progress: Any = None) -> np.ndarray:
        found = [np.count_nonzero(c == t) / len(c) for c, t in zip(contexts, targets, strict=True)]
        return np.log(0.9 * self.share[targets] + 0.1 * np.array(found))


@pytest.mark.full
def test_intervals_of_a_draw_cover_the_whole_text_as_often_as_they_say() -> None:
    try:
        dataset = prepare(TextConfig(corpus="ptb"))
    except UserError:
        pytest.skip("BACKSTORY_DATA names no folder with ptb")
    ids, counts = dataset.splits["valid"].ids[:30_000], dataset.vocabulary.counts
    losses = measure("truncate", Examination(ids, None, Recalling(counts), len(ids), 100, counts=counts))
    effects = (losses.nats - losses.baseline)[:4].T  # 5, 10, 20 and 30 tokens instead of 100
    assert len(effects) == len(ids) - 100
    whole, draws = effects.mean(0), 100
    covered = np.zeros(4)
    for seed in range(draws):
        drawn = Examination(ids, None, Recalling(counts), 2000, 100, seed).positions() - 100
        intervals = paired_intervals(effects[drawn], seed)
        covered += [i.low <= value <= i.high for i, value in zip(intervals, whole, strict=True)]
    # A share of 100 draws has a standard deviation of 2.2% where 95% is true.
    assert (np.abs(covered / draws - 0.95) < 0.065).all()
