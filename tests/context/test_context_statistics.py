"""Bootstrap intervals against a plain loop, against normal theory, and on data whose answer is known."""

import math
from collections.abc import Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from backstory.config import TextConfig
from backstory.context import (
    Examination,
    effective_context,
    measure,
    paired_interval,
    paired_intervals,
)
from backstory.context import (
    bootstrap as statistics,
)
from backstory.context.bootstrap import (
    BLOCK,
    FEWEST_CLUSTERS,
    EffectiveContext,
    Interval,
    clusters_of,
    last_crossing,
    means_in_clusters,
    over_seeds,
    resampled_means,
    resampled_seeds,
    t_limit,
)
from backstory.data import prepare
from backstory.results.examination_record import ContextRecord, Tried
from backstory.utils.errors import UserError

CONTEXTS = (5, 10, 20, 50)


def loop(values: np.ndarray, seed: int) -> tuple[float, float]:
    """Textbook percentile bootstrap."""
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


@pytest.mark.full
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
    monkeypatch.setattr(statistics, "MOST_KEPT", 0)
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
        ((0.5, 0.0, 0.5, 0.0), 50),  # 10 is good, but beyond it something is still gained
        ((0.5, 0.0, 0.5, 0.5), None),
        ((0.5, 0.0, -0.0099, 0.0), 10),
        ((0.5, 0.4, 0.3, 0.2), None),
    ],
)
def test_the_effective_context_is_the_first_from_which_on_all_are_within_a_percent(
    means: tuple[float, ...], answer: int | None
) -> None:
    assert effective_context(CONTEXTS, *with_excess(*means)) == EffectiveContext(answer, answer, answer)


def test_the_threshold_is_of_perplexity() -> None:
    data = with_excess(0.5, math.log(1.5) + 1e-6, math.log(1.5) - 1e-6, 0.0)
    assert effective_context(CONTEXTS, *data, threshold=0.5).context == 20


def test_the_interval_of_the_effective_context_tells_what_is_unsure() -> None:
    # At 10 the excess may well be above one percent where it varies; at 20 it cannot.
    found = effective_context(CONTEXTS, *with_excess(0.5, 0.009, 0.0, 0.0, spread=0.001))
    assert (found.context, found.low, found.high) == (10, 10, 10)
    found = effective_context(CONTEXTS, *with_excess(0.5, 0.0099, 0.0, 0.0, spread=0.05))
    assert (found.context, found.low, found.high) == (10, 10, 20)
    found = effective_context(CONTEXTS, *with_excess(0.5, 0.5, 0.5, 0.009, spread=0.1))
    assert (found.context, found.low, found.high) == (50, 50, None)


def test_there_is_no_effective_context_where_more_context_hurts() -> None:
    # 22.5 percent better with 5 than with all, by ten standard errors; 10 is better too, and not by as much.
    found = effective_context(CONTEXTS, *with_excess(math.log(0.775), -0.1, 0.0, 0.0, spread=0.5))
    assert (found.context, found.low, found.high) == (None, None, None)
    assert found.best is not None and found.best.length == 5
    effect = found.best.effect
    assert effect.value == pytest.approx(math.log(0.775)) and effect.low < effect.value < effect.high < 0


@pytest.mark.parametrize(
    ("gain", "spread", "answer"),
    [
        (-0.0099, 0.001, 5),  # surely better, by less than the threshold
        (-0.05, 1.0, 10),  # better by more, and not surely: 10 is the first that is as good
    ],
)
def test_a_gain_that_is_small_or_unsure_is_no_harm(gain: float, spread: float, answer: int) -> None:
    baseline, conditions = with_excess(gain, 0.0, 0.0, 0.0, spread=spread)
    conditions[:, 1:] = baseline[:, None]
    found = effective_context(CONTEXTS, baseline, conditions)
    assert found.best is None and found.context == answer


def order(context: int | None) -> float:
    return math.inf if context is None else context


@hypothesis.given(
    means=st.lists(st.floats(-0.02, 0.05), min_size=4, max_size=4), spread=st.floats(0, 1), targets=st.integers(2, 60)
)
def test_the_interval_holds_the_effective_context(means: list[float], spread: float, targets: int) -> None:
    found = effective_context(CONTEXTS, *with_excess(*means, spread=spread, targets=targets))
    assert {found.context, found.low, found.high} <= {*CONTEXTS, None}
    assert found.best is not None or order(found.low) <= order(found.context) <= order(found.high)


@hypothesis.given(st.lists(st.sampled_from([-0.03, -0.0099, 0.0, 0.0099, 0.02]), min_size=1, max_size=8))
def test_the_last_crossing_is_that_of_a_plain_loop(effects: list[float]) -> None:
    first = len(effects)
    while first and abs(effects[first - 1]) < 0.00995:
        first -= 1
    assert last_crossing(np.array(effects), 0.01) == first
    tried = [Tried(n, e, e, 1.0) for n, e in enumerate(effects)]
    older = ContextRecord(context=99, low=1, high=2).redefined(tried, 1.0)
    assert older == ContextRecord(context=None if first == len(effects) else first, more_context_hurts=False)


def test_a_value_that_older_results_lack_is_printed_by_its_name() -> None:
    assert repr(ContextRecord(context=99)).startswith("ContextRecord(context=99, low=ABSENT, high=ABSENT, ")


def test_the_interval_holds_it_where_every_context_is_at_the_threshold() -> None:
    # Each context but the last misses by a hair, so that many resamples find the first of them good, and all after it.
    contexts = tuple(range(1, 12))
    excess = with_excess(0.0101, spread=1.0)[1] - with_excess(0.0101, spread=1.0)[0][:, None]
    found = effective_context(contexts, np.zeros(400), np.hstack([np.repeat(excess, 10, 1), np.zeros((400, 1))]))
    assert found.context == 11 and found.low in (1, 11) and order(found.high) >= 11


# --- clusters and seeds ---


def adapting(random: np.random.Generator, tokens: int, length: int) -> np.ndarray:
    """Effects with half of their variance shared within stretches, as for a reader that adapts to a stretch."""
    stretches = np.repeat(random.normal(size=tokens // length), length)
    return np.sqrt(0.5) * stretches + np.sqrt(0.5) * random.normal(size=tokens)


def alone(effects: np.ndarray) -> float:
    """Half-width of an interval that treats targets as independent, as a bootstrap over targets does."""
    return 1.96 * float(effects.std()) / math.sqrt(len(effects))


def holds(interval: Interval) -> bool:
    return interval.low <= 0 <= interval.high


@pytest.mark.full
def test_documents_are_drawn_where_a_reader_adapts_to_them() -> None:
    random, length, trials = np.random.default_rng(0), 100, 150
    positions, hits = np.arange(6_000), np.zeros(2)
    clusters = clusters_of(positions, np.arange(0, 6_000, length))
    assert len(np.unique(clusters)) == 60
    for seed in range(trials):
        effects = adapting(random, 6_000, length)
        hits += [abs(effects.mean()) <= alone(effects), holds(paired_interval(effects, seed, clusters))]
    # Four standard deviations of 150 trials: 0.07 either way; targets alone hold it in about 22%.
    assert hits[0] / trials < 0.4 and 0.87 <= hits[1] / trials <= 1.0


@pytest.mark.full
def test_intervals_over_few_clusters_hold_the_truth_as_often_as_they_say() -> None:
    """Eight clusters that share half of the variance, alone and in a group. Plain resamples cover only 87% to 89%."""
    random, trials, hits = np.random.default_rng(0), 1_000, np.zeros(2)
    clusters = np.repeat(np.arange(24), 10)
    few = clusters < 8
    for _ in range(trials):
        effects = adapting(random, len(clusters), 10)
        limits = np.quantile(means_in_clusters(effects, few, clusters), [0.025, 0.975])
        hits += [holds(paired_interval(effects[few], 0, clusters[few])), holds(Interval(0.0, *limits))]
    # A share of 1,000 trials has a standard deviation of 0.7% where 95% is true.
    assert (hits / trials > 0.92).all() and (hits / trials < 0.97).all(), hits / trials


def test_means_are_widened_for_the_clusters_that_hold_values() -> None:
    values, clusters = np.random.default_rng(0).normal(size=60), np.repeat(np.arange(6), 10)
    for held in (2, 3):  # so few that some resample has the extreme one alone
        group = means_in_clusters(values, clusters < held, clusters)
        plain = values[clusters < held].reshape(held, 10).mean(1)
        limits = t_limit(held - 1) / 1.959963984540054 * math.sqrt(held / (held - 1)) * (plain - plain.mean())
        assert group.max() == pytest.approx(plain.mean() + limits.max(), abs=1e-12)
    one = means_in_clusters(values, clusters < 1, clusters)
    np.testing.assert_allclose(one, values[:10].mean())


@pytest.mark.full
def test_long_blocks_are_drawn_where_documents_are_unknown() -> None:
    # What a target costs depends on those before it, the less the farther they are: a moving average of 100 tokens.
    random, tokens, trials, hits = np.random.default_rng(1), 30_000, 100, np.zeros(2)
    clusters = clusters_of(np.arange(tokens))
    assert len(np.unique(clusters)) == 60 and clusters[BLOCK - 1] == 0 and clusters[BLOCK] == 1
    for seed in range(trials):
        noise = np.cumsum(np.append(0.0, random.normal(size=tokens + 99)))
        effects = (noise[100:] - noise[:-100]) / 10
        hits += [abs(effects.mean()) <= alone(effects), holds(paired_interval(effects, seed, clusters))]
    assert hits[0] / trials < 0.4 and hits[1] / trials >= 0.85


def test_blocks_are_of_what_is_left_behind_the_first_contexts() -> None:
    """The first targets of a short text come late, but its present blocks are still enough."""
    for tokens, first in ((3_000, 1_000), (4_400, 1_000), (7_000, 4_000)):
        assert len(np.unique(clusters_of(np.arange(first, tokens), tokens=tokens))) >= FEWEST_CLUSTERS


def test_few_clusters_are_drawn_as_wholes_too() -> None:
    values, clusters = np.repeat([0.0, 1.0, 2.0], 30)[:, None], np.repeat([0, 1, 2], 30)
    wide, narrow = resampled_means(values, 0, clusters=clusters).std(), resampled_means(values, 0).std()
    assert wide > 3 * narrow


def test_clusters_are_drawn_as_wholes() -> None:
    values, clusters = np.random.default_rng(0).normal(size=(200, 2)), np.repeat(np.arange(20) * 7, 10)
    means = resampled_means(values, 0, clusters=clusters)
    alike = resampled_means(values.reshape(20, 10, 2).mean(1), 0)
    np.testing.assert_allclose(means, alike)
    # One of all sizes: the mean is over the drawn targets, not over clusters.
    uneven = np.array([0] * 50 + [*range(1, 51)])
    drawn = resampled_means(np.where(uneven == 0, 1.0, 0.0)[:, None], 0, clusters=uneven)
    wider = t_limit(50) / 1.959963984540054 * math.sqrt(51 / 50)
    drawn = 0.5 + (drawn - 0.5) / wider
    times = np.arange(10)
    assert np.isclose(drawn[:, 0, None], 50 * times / (50 * times + 51 - times), atol=1e-12).any(1).all()


@pytest.mark.parametrize(
    ("documents", "tokens", "clusters"),
    [
        (None, 8_000, 16),
        (np.arange(0, 8_000, 1_000), 8_000, 8),
        (np.arange(0, 8_000, 2_000), 8_000, 16),  # four documents are too few
        (np.zeros(1, np.int64), 8_000, 16),
        (None, 80, 8),  # a short text has shorter blocks
        (None, 5, 5),
    ],
)
def test_clusters_are_documents_or_else_blocks(documents: np.ndarray | None, tokens: int, clusters: int) -> None:
    assert len(np.unique(clusters_of(np.arange(tokens), documents, tokens))) == clusters


def test_groups_in_the_same_clusters_are_drawn_together() -> None:
    values, clusters = np.random.default_rng(0).normal(size=1_000), np.repeat(np.arange(50), 20)
    even = np.arange(1_000) % 2 == 0
    shared = values + np.repeat(np.random.default_rng(1).normal(0, 5, 50), 20)
    parts = [means_in_clusters(shared, mask, clusters) for mask in (even, ~even)]
    assert (parts[0] - parts[1]).std() < 0.2 < parts[0].std(), (
        "what a cluster adds to both groups is in neither's favour"
    )
    whole = means_in_clusters(values, np.ones(1_000, bool), clusters)
    np.testing.assert_allclose(whole, resampled_means(values[:, None], 0, clusters=clusters)[:, 0])


@pytest.mark.parametrize(
    ("of_seeds", "of_targets", "of_both", "least", "most"),
    [
        (0.0, 1.0, 0.0, 0.92, 0.98),  # targets alone
        (0.1, 0.0, 0.0, 0.92, 0.98),  # seeds alone
        (0.05, 1.0, 0.3, 0.93, 0.99),
        (0.1, 1.0, 1.0, 0.94, 1.0),
        (0.0, 0.0, 1.0, 0.97, 1.0),  # the interaction of seed and target counts twice
    ],
)
def test_intervals_over_seeds_hold_the_truth_as_often_as_they_say(
    of_seeds: float, of_targets: float, of_both: float, least: float, most: float
) -> None:
    """Three seeds on the same 400 targets, 1,000 times; normal intervals over targets stand for bootstrap ones."""
    random, seeds, targets, trials = np.random.default_rng(0), 3, 400, 1_000
    hits = old = 0
    for _ in range(trials):
        effects = of_seeds * random.normal(size=(seeds, 1)) + of_targets * random.normal(size=targets)
        effects = effects + of_both * random.normal(size=(seeds, targets))
        means, errors = effects.mean(1), 1.96 * effects.std(1) / math.sqrt(targets)
        sampling = [Interval(m, m - e, m + e) for m, e in zip(means, errors, strict=True)]
        found = over_seeds(means.tolist(), sampling)
        assert found.value == pytest.approx(means.mean())
        hits += holds(found)
        old += abs(means.mean()) <= t_limit(2) * means.std(ddof=1) / math.sqrt(seeds)
    assert least <= hits / trials <= most
    if of_targets > 10 * of_seeds:
        assert old / trials < 0.9, "seeds alone leave out the targets, which are the same for all of them"


def test_one_seed_has_the_interval_of_its_targets() -> None:
    found = over_seeds([0.5], [Interval(0.5, 0.2, 0.9)])
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.2, 0.9))


def test_draws_over_seeds_have_the_limits_of_a_t_interval_and_keep_conditions_together() -> None:
    effects = np.array([[0.1, 1.0], [0.4, 4.0], [0.2, 2.0], [0.9, 9.0]])
    draws = resampled_seeds(effects, 0, 100_000)
    limit = t_limit(3) * effects.std(0, ddof=1) / 2
    np.testing.assert_allclose(np.quantile(draws, [0.025, 0.975], axis=0), [-limit, limit], rtol=0.03)
    np.testing.assert_allclose(draws[:, 1], 10 * draws[:, 0], atol=1e-9)
    with pytest.raises(ValueError, match="cannot be seen from one seed"):
        resampled_seeds(effects[:1], 0)


def test_the_effective_context_of_models_that_differ_is_unsure() -> None:
    curves = np.array([[0.5, 0.002, 0.0, 0.0], [0.5, 0.009, 0.0, 0.0], [0.5, 0.016, 0.008, 0.0]])
    data = with_excess(*curves.mean(0))
    alike = effective_context(CONTEXTS, *data, models=np.repeat(curves.mean(0)[None], 3, 0))
    assert (
        (alike.context, alike.low, alike.high)
        == (10, 10, 10)
        == (alike.context, *ends(effective_context(CONTEXTS, *data)))
    )
    differing = effective_context(CONTEXTS, *data, models=curves)
    assert differing.context == 10 and ends(differing) == (10, 50)


def test_resamples_that_are_known_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    baseline, conditions = data = with_excess(0.5, 0.0099, 0.0, 0.0, spread=0.05)
    differences = conditions - baseline[:, None]
    expected = paired_intervals(differences), effective_context(CONTEXTS, *data)
    known = {"resamples": resampled_means(differences, 0)}
    monkeypatch.setattr(statistics, "resampled_means", lambda *_, **__: pytest.fail("drawn again"))
    assert (paired_intervals(differences, **known), effective_context(CONTEXTS, *data, **known)) == expected


def ends(found: EffectiveContext) -> tuple[int | None, int | None]:
    return found.low, found.high


@pytest.mark.full
def test_intervals_of_effective_contexts_over_models_hold_the_truth() -> None:
    """Three models of a family, 200 times, whose losses decay at different rates."""
    contexts, random = [5, 10, 20, 40, 80, 160, 320], np.random.default_rng(0)

    def curves(models: int) -> np.ndarray:
        return np.exp(-np.array(contexts) / random.lognormal(2.3, 0.5, (models, 1)))

    truth = contexts[int(last_crossing(curves(100_000).mean(0), 0.01))]
    hits = without = 0
    for _ in range(200):
        models = curves(3)
        baseline, conditions = with_excess(*models.mean(0), spread=0.01, targets=100)
        over, alone = (effective_context(contexts, baseline, conditions, models=m) for m in (models, None))
        hits += (over.low or 0) <= truth <= (over.high or math.inf)
        without += (alone.low or 0) <= truth <= (alone.high or math.inf)
    assert hits / 200 >= 0.93 and without / 200 < 0.85


class Recalling:
    """A counting model: words of the training text, likelier with each occurrence in the context."""

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
    effects = (losses.nats - losses.baseline)[:4].T  # 5, 10, 13 and 20 tokens instead of 100
    assert len(effects) == len(ids) - 100
    whole, draws = effects.mean(0), 100
    covered = np.zeros(4)
    for seed in range(draws):
        drawn = Examination(ids, None, Recalling(counts), 2000, 100, seed).positions() - 100
        intervals = paired_intervals(effects[drawn], seed // 10)  # most of the time would go into making resamples
        covered += [i.low <= value <= i.high for i, value in zip(intervals, whole, strict=True)]
    # A share of 100 draws has a standard deviation of 2.2% where 95% is true.
    assert (np.abs(covered / draws - 0.95) < 0.065).all()
