"""Compare a tempered reader with a plain loop in float64, and tune its temperature in one reading."""

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from adapting import text
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import TYPES, buffered, lstm, mixture
from tiers import several

from backstory.config.readers import CacheSettings, TemperedSettings
from backstory.evaluation import read
from backstory.evaluation.metrics.gate_statistics import own_blend
from backstory.models import ComposedModel, Interpolation, MixtureOfSoftmaxes
from backstory.models import prediction as predictions
from backstory.readers import Reader, StaticReader
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.tempered import TemperatureScorer, TemperedReader
from backstory.tuning.reader_search import score_grid
from backstory.utils.errors import UserError

MODELS = {"lstm": lstm, "mixture": mixture, "span buffer": buffered}
FIRST = 3


def naive(model: ComposedModel, ids: np.ndarray, temperature: float) -> list[float]:
    """Nats of every token, one token at a time, in float64."""
    pupil, found = copy.deepcopy(model).double().eval(), []
    state = pupil.start(1)
    for previous, token in zip([FIRST, *ids[:-1]], ids, strict=True):
        with torch.no_grad():
            prediction, state = pupil(torch.tensor([[int(previous)]]), state)
        power = [math.exp(value / temperature) for value in prediction.log_probs()[0, 0].tolist()]
        found.append(-math.log(power[int(token)] / sum(power)))
    return found


def nats(reader: Reader, ids: np.ndarray, block: int | None = None) -> list[float]:
    found: list[float] = []
    read(
        reader, ids, FIRST, block=block, each=lambda piece, prediction, log_prob: found.extend((-log_prob[0]).tolist())
    )
    return found


def nats_by_temperature(
    inner: Reader,
    ids: np.ndarray,
    first: int,
    temperatures: Sequence[float],
    progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    scorer = TemperatureScorer(inner, temperatures, len(ids))
    return [nats for _, nats in score_grid(scorer, inner, ids, first, progress)]


@settings(max_examples=several(6, 25))
@given(st.sampled_from(sorted(MODELS)), st.floats(0.4, 3.0), st.integers(1, 40), st.sampled_from([1, 7, 256]))
def test_it_equals_a_plain_loop(name: str, temperature: float, length: int, block: int) -> None:
    model, ids = MODELS[name](), text(length)
    found = nats(TemperedReader(StaticReader(model), TemperedSettings(temperature)), ids, block)
    assert found == pytest.approx(naive(model, ids, temperature), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_temperature_of_one_changes_not_one_bit(name: str) -> None:
    model, ids = MODELS[name](), text(50)
    assert nats(TemperedReader(StaticReader(model), TemperedSettings()), ids) == nats(StaticReader(model), ids)


@pytest.mark.full
@settings(max_examples=15)
@given(
    name=st.sampled_from(sorted(MODELS)),
    temperatures=st.lists(st.floats(0.3, 4.0), min_size=1, max_size=5),
    length=st.integers(1, 40),
    block=st.sampled_from([1, 6, 256]),
)
def test_one_reading_scores_every_temperature(name: str, temperatures: list[float], length: int, block: int) -> None:
    model, ids, told = MODELS[name](), text(length), []
    inner = StaticReader(model)
    inner.block = block
    found = nats_by_temperature(inner, ids, FIRST, temperatures, lambda *progress: told.append(progress))
    assert told[-1] == (length, length)
    for temperature, value in zip(temperatures, found, strict=True):
        reader = TemperedReader(StaticReader(model), TemperedSettings(temperature))
        assert value == pytest.approx(read(reader, ids, FIRST, block=block).nats, rel=1e-5, abs=1e-6)


@given(st.sampled_from(sorted(MODELS)), st.floats(0.2, 4.0), st.floats(0.2, 4.0), st.integers(0, 50))
@settings(max_examples=several(6, 20))
def test_between_two_temperatures_it_is_no_worse_than_their_mean(name: str, one: float, two: float, seed: int) -> None:
    """Nats are convex in 1 / T, so that the best of a fine grid is the best there is, to its step."""
    between = 2 / (1 / one + 1 / two)
    low, high, middle = nats_by_temperature(StaticReader(MODELS[name]()), text(20, seed), FIRST, [one, two, between])
    assert middle <= (low + high) / 2 + 1e-5


def test_only_a_part_of_the_table_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, sizes = text(40), []
    whole = nats_by_temperature(StaticReader(mixture()), ids, FIRST, [0.7, 1.5])
    select = MixtureOfSoftmaxes.select

    def note(self: MixtureOfSoftmaxes, rows: torch.Tensor, times: torch.Tensor) -> MixtureOfSoftmaxes:
        sizes.append(len(rows))
        return select(self, rows, times)

    monkeypatch.setattr(MixtureOfSoftmaxes, "select", note)
    monkeypatch.setattr(predictions, "TABLE", 3 * TYPES)
    assert nats_by_temperature(StaticReader(mixture()), ids, FIRST, [0.7, 1.5]) == pytest.approx(whole, rel=1e-6)
    assert max(sizes) == 3 and sum(sizes) == 40


def test_the_gate_of_a_model_is_found_inside_it() -> None:
    model = buffered()
    inner = TemperedReader(StaticReader(model), TemperedSettings(1.2))
    cache = NeuralCache(inner, CacheSettings(5))
    for reader in (inner, cache, TemperedReader(cache, TemperedSettings(0.9))):
        reader.start(1)
        tokens = torch.from_numpy(text(9).astype(np.int64))[None]
        found, own = own_blend(reader.predict(tokens)), StaticReader(model)
        own.start(1)
        expected = own.predict(tokens)
        assert isinstance(expected, Interpolation) and torch.equal(found.log_prob(tokens), expected.log_prob(tokens))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, 1000.0])
def test_a_temperature_out_of_range_is_told(wrong: float) -> None:
    with pytest.raises(UserError, match="the temperature: temperature must be"):
        TemperedReader(StaticReader(lstm()), TemperedSettings(wrong))
