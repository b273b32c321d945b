"""N-grams and PPM against plain loops in float64: every distribution sums to one and follows from the words before it."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_counts import (
    naive_context,
    naive_discounts,
    naive_exclusion,
    naive_grams,
    naive_interpolated,
)
from small_models import TYPES, lstm
from tiers import several

import backstory as bs
from backstory.config.readers import NgramSettings, PPMSettings
from backstory.evaluation import read
from backstory.evaluation.audit import copied
from backstory.readers import StaticReader
from backstory.readers.adaptive_counts import AdaptiveCounts, AdaptivePrediction
from backstory.readers.counted_text import CountedText, CountedTexts, Smoothing
from backstory.readers.counting import CountingReader, FixedNgrams, ngram_counts_of, ppm_counts
from backstory.readers.interpolating import PredictionSource, WeightScorer
from backstory.readers.ngram_counts import NgramCounts, count_ngrams, estimate_discounts
from backstory.readers.registry import configure, parse_stack
from backstory.runs.run import load_run
from backstory.tuning.preparation import tune_reader
from backstory.tuning.reader_search import score_grid
from backstory.utils.errors import UserError

FIRST = 2


def words(count: int, seed: int, types: int = TYPES) -> np.ndarray:
    """A text in which a few words are common, as in language."""
    drawn = np.random.default_rng(seed).geometric(0.3, count) - 1
    return np.minimum(drawn, types - 1).astype(np.uint16)


def tables_of(counts: PredictionSource, ids: np.ndarray, block: int) -> np.ndarray:
    """Read a text (N,) block by block; return the distributions (N, V), each checked against the cheap path."""
    inputs, tables = np.concatenate([[FIRST], ids[:-1]]).astype(np.int64), []
    counts.start(1)
    for begin in range(0, len(ids), block):
        tokens = torch.from_numpy(inputs[begin : begin + block])[None]
        targets = torch.from_numpy(ids[begin : begin + block].astype(np.int64))[None]
        prediction = counts.predict(tokens)
        table, cheap = prediction.log_probs(), prediction.log_prob(targets)
        assert torch.equal(table.gather(2, targets[..., None])[..., 0], cheap)
        tables.append(table[0].double().exp().numpy())
        counts.observe(targets)
    return np.concatenate(tables)


texts = st.builds(words, st.integers(0, 80), st.integers(0, 10**6))
blocks = st.sampled_from([1, 5, 256])


@settings(max_examples=several(40, 200), deadline=None)
@given(texts, texts, st.integers(1, 5), st.booleans())
def test_ngrams_are_modified_kneser_ney(train: np.ndarray, ids: np.ndarray, order: int, across: bool) -> None:
    counts, boundary = count_ngrams(train, TYPES, FIRST, order, across), None if across else FIRST
    grams = naive_grams([[FIRST, *train.tolist()]], order, boundary)
    discounts = [naive_discounts(grams, length) for length in range(1, order + 1)]
    np.testing.assert_allclose(counts.discounts, discounts, rtol=1e-12)
    if not len(ids):
        return
    inputs = np.concatenate([[FIRST], ids[:-1]]).astype(np.int64)[None]
    contexts = counts.contexts(np.full((1, order - 1), -1), inputs)[0]
    tables = counts.distribution(contexts)
    for t, table in enumerate(tables):
        context = naive_context(inputs[0, : t + 1].tolist(), order - 1, boundary)
        expected = naive_interpolated(grams, context, TYPES, discounts)
        np.testing.assert_allclose(table, expected, rtol=1e-12)
        assert table.sum() == pytest.approx(1, abs=1e-12) and table.min() > 0
    own = counts.probability(contexts, ids.astype(np.int64))
    assert (own == tables[np.arange(len(ids)), ids.astype(int)]).all()


@pytest.mark.full
@settings(max_examples=80, deadline=None)
@given(texts.filter(len), st.integers(1, 4), st.booleans(), blocks)
def test_they_go_on_counting(ids: np.ndarray, order: int, across: bool, block: int) -> None:
    train, boundary = words(60, 5), None if across else FIRST
    counts = count_ngrams(train, TYPES, FIRST, order, across)
    online = ngram_counts_of(counts, NgramSettings(order=order, online=True))
    discounts, history = [d.tolist() for d in counts.discounts], [FIRST, *ids.tolist()]
    for t, table in enumerate(tables_of(online, ids, block)):
        grams = naive_grams([[FIRST, *train.tolist()], history[: t + 1]], order, boundary)
        context = naive_context(history[: t + 1], order - 1, boundary)
        np.testing.assert_allclose(table, naive_interpolated(grams, context, TYPES, discounts), rtol=1e-5)
        assert table.sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.full
@settings(max_examples=120, deadline=None)
@given(
    texts.filter(len),
    st.builds(PPMSettings, st.integers(0, 4), st.sampled_from(["c", "d"]), st.floats(0.05, 0.95), st.booleans()),
    blocks,
    st.sampled_from([4, TYPES]),
)
def test_ppm_is_what_its_equations_say(ids: np.ndarray, setting: PPMSettings, block: int, types: int) -> None:
    ids, escapes = np.minimum(ids, types - 1), setting.escape == "c"
    history, discounts = [FIRST, *ids.tolist()], [[0.0, *[setting.discount] * 3]] * (setting.order + 1)
    for t, table in enumerate(tables_of(ppm_counts(setting, types), ids, block)):
        grams = naive_grams([history[: t + 1]], setting.order + 1, None)
        context = naive_context(history[: t + 1], setting.order, None)
        if setting.exclusion:
            expected = naive_exclusion(grams, context, types, setting.discount, escapes)
        else:
            expected = naive_interpolated(grams, context, types, discounts, escapes)
        np.testing.assert_allclose(table, expected, rtol=1e-5)
        assert table.sum() == pytest.approx(1, abs=1e-6)


@settings(max_examples=several(20, 100), deadline=None)
@given(st.data(), st.booleans())
def test_a_place_follows_from_what_was_read_alone(data: st.DataObject, counted: bool) -> None:
    """A text that moved back and forth predicts the same at a position as one that went there directly."""
    base = count_ngrams(words(60, 5), TYPES, FIRST, 4) if counted else None
    smoothing = Smoothing.ppm(3, "d", 0.5, False) if base is None else Smoothing.kneser_ney(base)
    texts = CountedTexts(TYPES, 3, smoothing, base)
    codes = st.lists(st.integers(-4, 3), max_size=25).map(lambda codes: np.array(codes, np.int32))
    for place in data.draw(st.lists(codes, min_size=2, max_size=8)):
        straight = CountedText(TYPES, 3, smoothing, base)
        straight.move(place)
        assert (texts.at(place).distribution() == straight.distribution()).all()
        assert len(texts._texts) <= texts.most


@settings(max_examples=several(30, 200), deadline=None)
@given(st.data())
def test_rows_grow_as_concatenated_arrays_do(data: st.DataObject) -> None:
    """A reader that looks ahead, reads on and goes back predicts, from its growing rows, as one that copies them does."""
    counts, drawn = ppm_counts(PPMSettings(2), 3), st.integers(0, 2)
    counts.start(1)
    held: list[tuple[AdaptivePrediction, np.ndarray]] = []
    naive, snapshots = np.empty(0, np.int32), []
    for _ in range(data.draw(st.integers(1, 12))):
        block = np.array([data.draw(st.lists(drawn, min_size=1, max_size=4))], np.int32)
        prediction = counts.predict(torch.from_numpy(block).long())
        last = None if not len(naive) else max(naive[-1], ~naive[-1])
        lead = [] if last == block[0, 0] else [~block[0, 0]]
        held.append((prediction, np.array([*naive, *lead, *block[0, 1:]], np.int32)))
        if data.draw(st.booleans()):  # else only a look
            as_read = data.draw(st.booleans())
            targets = [*block[0, 1:], data.draw(drawn)] if as_read else data.draw(st.lists(drawn, max_size=5))
            counts.observe(torch.tensor([targets], dtype=torch.long))
            naive = np.array([*naive, *lead, *targets], np.int32)
            snapshots.append((counts.snapshot(), naive))
        if snapshots and data.draw(st.booleans()):
            snapshot, naive = data.draw(st.sampled_from(snapshots))
            counts.restore(snapshot)
    for prediction, codes in data.draw(st.permutations(held)):
        assert prediction.codes[0].tolist() == codes.tolist()
        straight = CountedText(3, 2, counts._texts.smoothing)
        straight.move(codes)
        np.testing.assert_allclose(prediction.log_probs()[0, -1].exp(), straight.distribution(), rtol=1e-5)


def adaptive(counted: bool) -> CountingReader:
    """A reader that counts while it reads, beginning with n-grams or with nothing."""
    static = StaticReader(lstm())
    if not counted:
        return CountingReader(static, PPMSettings(order=3), ppm_counts(PPMSettings(order=3), TYPES))
    settings = NgramSettings(order=3, online=True)
    return CountingReader(static, settings, ngram_counts_of(count_ngrams(words(60, 5), TYPES, FIRST, 3), settings))


def read_step(reader: CountingReader, ids: np.ndarray) -> torch.Tensor:
    """Read a piece of a text (T,) and return the distributions (1, T, V)."""
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    table = reader.predict(tokens).log_probs()
    reader.observe(tokens.roll(-1, 1))
    return table


@pytest.mark.parametrize("counted", [False, True])
def test_copies_share_the_counts_and_see_nothing_of_each_other(counted: bool) -> None:
    """A copy as made by the audit, and a fork, continue with other words than the original reader."""
    begun, one = words(40, 1), adaptive(counted)
    later = [words(20, seed).reshape(2, 10) for seed in (2, 3, 4)]
    one.start(1)
    read_step(one, begun)
    readers = [one, copied(one), one.fork()]
    assert isinstance(one.source, AdaptiveCounts)
    assert all(other.source._texts is one.source._texts for other in readers)
    # In turns, so that each moves the shared counts away from where the others are.
    tables = [[read_step(reader, text[part]) for reader, text in zip(readers, later, strict=True)] for part in (0, 1)]
    for number, text in enumerate(later):
        alone = adaptive(counted)
        alone.start(1)
        read_step(alone, begun)
        for part in (0, 1):
            assert torch.equal(tables[part][number], read_step(alone, text[part]))


@pytest.mark.parametrize("online", [False, True])
def test_the_same_targets_are_looked_up_once(online: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric that requests the reader's own scores costs nothing."""
    counts = ngram_counts_of(count_ngrams(words(60, 5), TYPES, FIRST, 3), NgramSettings(order=3, online=online))
    counts.start(1)
    prediction, targets = counts.predict(torch.tensor([[1, 2, 3]])), torch.tensor([[2, 3, 1]])
    with torch.no_grad():
        expected = prediction.log_prob(targets)
        others = prediction.log_probs().roll(-1, 2).gather(2, targets[..., None])[..., 0]
        monkeypatch.setattr(NgramCounts if not online else CountedText, "probability", None)
        assert torch.equal(prediction.log_prob(targets.clone()), expected)
        monkeypatch.undo()
        torch.testing.assert_close(prediction.log_prob((targets + 1) % TYPES), others)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("other", ["rows", "times"])
def test_an_index_on_another_device_is_refused(online: bool, other: str) -> None:
    """With one on "meta", torch would read memory that was never written."""
    counts = ngram_counts_of(count_ngrams(words(60, 5), TYPES, FIRST, 3), NgramSettings(order=3, online=online))
    counts.start(1)
    index = {
        name: torch.zeros(1, dtype=torch.long, device="meta" if name == other else "cpu") for name in ("rows", "times")
    }
    with pytest.raises(ValueError, match=f"{other} must be on cpu, as the model is, not on meta"):
        counts.predict(torch.tensor([[1, 2, 3]])).select(**index)


@given(texts.filter(len), st.integers(1, 79), st.booleans())
@settings(max_examples=several(10, 50), deadline=None)
def test_later_words_change_nothing(ids: np.ndarray, cut: int, online: bool) -> None:
    counts = ngram_counts_of(count_ngrams(words(60, 5), TYPES, FIRST, 3), NgramSettings(order=3, online=online))
    other = np.concatenate([ids[:cut], (ids[cut:] + 1) % TYPES])
    one, two = (tables_of(counts, text, 256)[: cut + 1] for text in (ids, other))
    assert (one == two).all()


@pytest.mark.parametrize(
    ("counts", "discounts"),
    [
        ([], [0, 0.5, 0.5, 0.5]),
        ([2, 2, 3], [0, 0.5, 0.5, 0.5]),  # nothing was seen once
        ([1, 1, 2], [0, 0.5, 0.5, 0.5]),  # D(2) = 2 and D(3) undefined
        ([1] * 6 + [2] * 3 + [3] * 2 + [4], [0, 0.5, 1.0, 2.0]),
    ],
)
def test_discounts_by_hand(counts: list[int], discounts: list[float]) -> None:
    assert estimate_discounts(np.array(counts, int)).tolist() == pytest.approx(discounts)


def test_the_model_has_the_rest_of_the_weight() -> None:
    model, ids = lstm(), words(50, 1)
    counts = count_ngrams(words(300, 2), TYPES, FIRST, 3)
    read_with = {}
    for weight in (0.0, 0.3, 1.0):
        reader = CountingReader(StaticReader(model), NgramSettings(order=3, weight=weight), FixedNgrams(counts))
        scores = read_with[weight] = []
        read(reader, ids, FIRST, each=lambda block, p, log_prob, scores=scores: scores.append(log_prob.double().exp()))
    p, mixed, q = (torch.cat(scores) for scores in read_with.values())
    torch.testing.assert_close(mixed, 0.7 * p + 0.3 * q, rtol=1e-5, atol=1e-8)
    static = torch.cat([s for s in _scores(StaticReader(model), ids)]).double().exp()
    torch.testing.assert_close(p, static, rtol=1e-6, atol=0)


def _scores(reader: StaticReader, ids: np.ndarray) -> list[torch.Tensor]:
    scores: list[torch.Tensor] = []
    read(reader, ids, FIRST, each=lambda block, prediction, log_prob: scores.append(log_prob))
    return scores


def test_one_reading_scores_every_setting() -> None:
    model, ids = lstm(), words(60, 3)
    values = {"order": (0, 2), "escape": ("c", "d"), "weight": (0.0, 0.2, 1.0)}
    scorer = WeightScorer(values, PPMSettings, lambda setting: ppm_counts(setting, TYPES))
    tried = score_grid(scorer, StaticReader(model), ids, FIRST)
    assert len(tried) == 12
    for setting, nats in tried:
        reader = CountingReader(StaticReader(model), setting, ppm_counts(setting, TYPES))
        assert nats == pytest.approx(read(reader, ids, FIRST).nats, rel=1e-5)
    with pytest.raises(UserError, match="weight must be"):
        WeightScorer({"weight": (1.5,)}, PPMSettings, lambda setting: ppm_counts(setting, TYPES))


def test_a_run_counts_its_own_training_text(tiny_run: Path, tmp_path: Path) -> None:
    run = load_run(tiny_run)
    ids, types, start = run.training_text()
    result = bs.evaluate(run, split="valid", reader="ngram:order=3,weight=1", out=tmp_path / "out").figures
    assert result.audit.passed and result.readers[-1]["counted"] == len(ids)
    valid = run.dataset(None, None).splits["valid"].ids.astype(np.int64)
    counts = count_ngrams(ids, types, start, 3)
    contexts = counts.contexts(np.full((1, 2), -1), np.concatenate([[start], valid[:-1]])[None])[0]
    assert result.nats_per_token == pytest.approx(-np.log(counts.probability(contexts, valid)).mean(), rel=1e-6)
    names = [gain.name for gain in result.gains]
    assert names == ["static", "ngram"] and result.gains[1].nats_per_token == result.nats_per_token


@pytest.mark.full
def test_the_weight_is_tuned_by_one_reading(tiny_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    for stack, tried in (("ngram:order=3", 13), ("ppm", 13 * 4 * 2), ("cache+ppm:order=2,weight=0.3+mixture", 45)):
        (path,), tuned = tune_reader(folder, parse_stack(stack), "valid", 100)
        assert tuned.tried == tried
        (*_, layer) = configure(parse_stack(stack), load_run(folder))
        assert layer.settings == tuned.best and path.name == layer.file
        path.unlink()


def test_a_text_shorter_than_the_ngrams_is_counted() -> None:
    counts: NgramCounts = count_ngrams(np.array([3], np.uint16), TYPES, FIRST, 5)
    contexts = counts.contexts(np.full((1, 4), -1), np.array([[FIRST]]))[0]
    assert counts.distribution(contexts).sum() == pytest.approx(1, abs=1e-12)
    assert math.isclose(counts.probability(contexts, np.array([3]))[0], counts.distribution(contexts)[0, 3])
