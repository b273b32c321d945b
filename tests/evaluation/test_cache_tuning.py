"""Tuning measures of settings what a reading with them gives, and reads the text once."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import TYPES, lstm, mixture
from tiers import several

from backstory.config.readers import CacheSettings
from backstory.evaluation import read
from backstory.models import ComposedModel
from backstory.readers import StaticReader
from backstory.readers.neural_cache import CacheScorer, NeuralCache
from backstory.tuning.reader_search import at_edge, score_grid
from backstory.utils.errors import UserError

Stream = Callable[[int], np.ndarray]
Grid = Mapping[str, Any]
FIRST = 3
MODELS = {"lstm": lstm(), "mixture": mixture()}


def tune_cache(
    inner: StaticReader,
    ids: np.ndarray,
    grid: Grid | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[CacheSettings, float]]:
    return list(score_grid(CacheScorer(grid or {}, len(ids)), inner, ids, FIRST, progress))


def chosen(values: list) -> st.SearchStrategy:
    return st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True).map(tuple)


@given(
    name=st.sampled_from(sorted(MODELS)),
    grid=st.fixed_dictionaries(
        {
            "window": chosen([1, 2, 7, 20, 30, 1000]),
            "theta": chosen([0.0, 0.3, 1.0, 20.0]),
            "weight": chosen([0.0, 0.1, 0.9]),
            "confidence": chosen([0.0, 0.103, 0.507, 0.9]),
        }
    ),
    count=st.integers(1, 50),
    block=st.sampled_from([1, 6, 256]),
)
@settings(max_examples=several(5, 15))
def test_it_is_what_reading_gives(name: str, grid: Grid, count: int, block: int) -> None:
    ids = np.random.default_rng(count).integers(0, TYPES, count).astype(np.uint16)
    inner = StaticReader(MODELS[name])
    inner.block = block
    tried = tune_cache(inner, ids, grid)
    windows = [w for w in sorted(grid["window"]) if w < count]
    windows += [w for w in sorted(grid["window"]) if w >= count][:1]
    assert {settings.window for settings, _ in tried} == set(windows)
    assert len(tried) == len(windows) * len(grid["theta"]) * len(grid["weight"]) * len(grid["confidence"])
    for point, nats in tried[:: max(1, len(tried) // 6)]:
        reading = read(NeuralCache(StaticReader(MODELS[name]), point), ids, FIRST, block=block)
        assert nats == pytest.approx(reading.nats, rel=1e-5, abs=1e-6), point


def test_the_text_is_read_once_in_order(small_lstm: ComposedModel, stream: Stream) -> None:
    fed: list[int] = []

    class Watched(StaticReader):
        def predict(self, tokens):
            fed.extend(tokens[0].tolist())
            return super().predict(tokens)

    seen: list[tuple[int, int]] = []
    inner = Watched(small_lstm)
    inner.block = 16
    grid = {"window": [10], "theta": [1.0], "weight": [0.1]}
    tune_cache(inner, stream(50), grid, lambda done, total: seen.append((done, total)))
    assert fed == [FIRST, *stream(50)[:-1].tolist()]
    assert seen == [(16, 50), (32, 50), (48, 50), (50, 50)]


def test_the_default_grid_holds_the_published_settings(small_lstm: ComposedModel, stream: Stream) -> None:
    tried = [settings for settings, _ in tune_cache(StaticReader(small_lstm), stream(600))]
    assert CacheSettings(500, 1.0, 0.1, 0.0) in tried
    assert max(settings.window for settings in tried) == 1000


@pytest.mark.parametrize("wrong", [{"window": [0]}, {"theta": [-1.0]}, {"weight": [1.0]}, {"confidence": [2.0]}])
def test_a_grid_out_of_range_is_told_before_anything_is_read(wrong: dict, stream: Stream) -> None:
    with pytest.raises(UserError, match="the grid: "):
        tune_cache(StaticReader(lstm()), stream(20), wrong)


def test_what_a_text_needs_is_found() -> None:
    """A text that alternates between two words except at its beginning, which the cache should forget."""
    ids = np.array([1, 2, 3, 4, 5, 6] + 40 * [7, 8], dtype=np.uint16)
    grid = {"window": [6, 1000], "theta": [0.0], "weight": [0.1, 0.9], "confidence": [0.0, 0.9]}
    tried = tune_cache(StaticReader(lstm()), ids, grid)
    best, nats = min(tried, key=lambda point: point[1])
    assert (best.window, best.weight, best.confidence) == (6, 0.9, 0.0)
    assert nats < 1.2 < read(StaticReader(lstm()), ids, FIRST).nats


def test_the_edge_is_named_where_values_may_lie_beyond_it() -> None:
    points = [
        CacheSettings(window, theta, weight)
        for window in (5, 10, 20)
        for theta in (0.0, 1.0)
        for weight in (0.1, 0.999)
    ]
    assert at_edge(CacheSettings(20, 1.0, 0.1), points) == {
        "window": "largest",
        "theta": "largest",
        "weight": "smallest",
    }
    assert at_edge(CacheSettings(10, 0.0, 0.999), points) == {}, "in the middle, and at the ends of what is allowed"
    assert at_edge(CacheSettings(), [CacheSettings()]) == {}, "with one value there was no choice"
