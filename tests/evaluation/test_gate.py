"""A mixture whose weights a gate sets, against a plain loop in float64, and what its weights begin with."""

import math

import numpy as np
import pytest
import torch
from adapting import text
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import TYPES, lstm, mixture
from test_mixture import FIRST, cache, ppm, stack

from backstory.config.readers import MixtureSettings
from backstory.evaluation import read
from backstory.models import Interpolation, Softmax
from backstory.readers import Reader, StaticReader
from backstory.readers.gate import fixed_weights, gate_inputs
from backstory.readers.mixture import MixtureReader, MixtureScorer
from backstory.tuning.reader_search import score_grid


def gate(rate: float, domain: str = "linear", step: float = 0.0) -> MixtureSettings:
    return MixtureSettings(weights="gate", gate_rate=rate, domain=domain, step=step)  # type: ignore[arg-type]


def tables_along(reader: Reader, ids: np.ndarray) -> tuple[list[list[list[float]]], list[list[float]]]:
    """Distributions of a text under static, cache and PPM at each position, and the fixed weights of the three."""
    tables, weights = [], []

    def note(block: object, prediction: object, log_prob: object) -> None:
        assert isinstance(prediction, Interpolation) and isinstance(prediction.p, Interpolation)
        three = [one.log_probs()[0].double().exp() for one in (prediction.p.p, prediction.p.q, prediction.q)]
        tables.extend(torch.stack(three, 1).tolist())
        (outer, rest), (inner, left) = (one.log_gates() for one in (prediction, prediction.p))
        shares = [(rest + left)[0].exp(), (rest + inner)[0].exp(), outer.expand_as(left)[0].exp()]
        weights.extend(torch.stack(shares, 1).double().tolist())

    read(reader, ids, FIRST, each=note)
    return tables, weights


def naive(tables: list[list[list[float]]], shares: list[list[float]], ids: np.ndarray, rate: float) -> list[float]:
    """Probability of every word, one word at a time."""
    count, mixed = len(tables[0]), []
    slopes = [[0.0] * (1 + 2 * count) for _ in range(count)]
    squares = [[0.0] * (1 + 2 * count) for _ in range(count)]
    for table, share, word in zip(tables, shares, ids.tolist(), strict=True):
        f = [1.0]
        for p in table:
            f += [sum(-x * math.log(x) for x in p if x > 0) / math.log(len(p)), max(p)]
        raw = [
            fixed * math.exp(sum(a * b for a, b in zip(slope, f, strict=True)))
            for fixed, slope in zip(share, slopes, strict=True)
        ]
        v = [r / sum(raw) for r in raw]
        total = sum(w * p[word] for w, p in zip(v, table, strict=True))
        mixed.append(total)
        for k in range(count):
            error = v[k] * table[k][word] / total - v[k]
            for i in range(len(f)):
                squares[k][i] += (error * f[i]) ** 2
                slopes[k][i] += rate * error * f[i] / math.sqrt(1 + squares[k][i])
    return mixed


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 50), st.sampled_from([0.0, 0.3, 3.0]), st.sampled_from([1, 7, 256]))
def test_it_equals_a_plain_loop(length: int, rate: float, block: int) -> None:
    ids = text(length, length)
    expected = naive(*tables_along(stack(), ids), ids, rate)
    actual, sums = [], []

    def note(piece: object, prediction: object, log_prob: torch.Tensor) -> None:
        actual.extend(log_prob[0].double().exp().tolist())
        sums.append(prediction.log_probs().double().exp().sum(2))  # type: ignore[attr-defined]

    read(MixtureReader(stack(), gate(rate)), ids, FIRST, block=block, each=note)
    assert actual == pytest.approx(expected, rel=5e-4)
    torch.testing.assert_close(torch.cat(sums, 1), torch.ones(1, length, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("domain", ["linear", "logistic"])
def test_a_gate_that_learns_nothing_is_the_fixed_mixture(domain: str) -> None:
    ids = text(80, 2)
    expected = read(stack(), ids, FIRST).nats
    assert read(MixtureReader(stack(), gate(0.0, domain)), ids, FIRST).nats == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("domain", ["linear", "logistic"])
def test_whole_distributions_are_computed_once_at_each_position(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, log_probs = [], Softmax.log_probs

    def count(self: Softmax) -> torch.Tensor:
        sizes.append(self.hidden.shape[0] * self.hidden.shape[1])
        return log_probs(self)

    monkeypatch.setattr(Softmax, "log_probs", count)
    read(MixtureReader(stack(), gate(0.3, domain)), text(80, 2), FIRST, block=40)
    assert sum(sizes) == 80


def test_readers_of_several_models_begin_with_equal_weights() -> None:
    shares = torch.tensor([[[1.0, 0.2, 0.5, 1.0, 0.3]]])
    torch.testing.assert_close(fixed_weights(shares, [3, 2]), torch.tensor([[[0.2, 0.05, 0.25, 0.35, 0.15]]]))
    ids = text(60, 3)
    models = StaticReader(lstm()), StaticReader(mixture())
    mean = [torch.exp(torch.tensor(scores_of(model, ids))) for model in models]
    blended = scores_of(MixtureReader(models[0], gate(0.0), models[1]), ids)
    torch.testing.assert_close(torch.tensor(blended), torch.stack(mean).mean(0).log(), rtol=0, atol=1e-5)


def scores_of(reader: Reader, ids: np.ndarray) -> list[float]:
    scores: list[float] = []
    read(reader, ids, FIRST, each=lambda block, prediction, log_prob: scores.extend(log_prob[0].tolist()))
    return scores


def test_an_empty_cache_takes_no_part_and_a_sure_reader_is_measured() -> None:
    reader = cache(StaticReader(lstm()))
    reader.start(1)
    prediction = reader.predict(torch.tensor([[3]]))
    inputs = gate_inputs((prediction.p, prediction.q), torch.tensor([[[1.0, 0.0]]]), [2])
    assert inputs.log_shares[0, 0].tolist() == [0.0, -math.inf]
    p = prediction.p.log_probs()[0, 0].detach().double().exp()
    expected = [1.0, float(torch.special.entr(p).sum()) / math.log(TYPES), float(p.max())]
    assert inputs.features[0, 0, :3].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.full
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.sampled_from([3, 256]), st.sampled_from(["linear", "logistic"]))
def test_one_reading_scores_every_setting(length: int, block: int, domain: str) -> None:
    ids, inner = text(length, 1), stack()
    inner.block = block
    steps = {"step": (0.001, 0.05)} if domain == "logistic" else {}
    values = {"weights": ["gate"], "domain": [domain], "gate_rate": (0.1, 2.0), **steps}
    tried = score_grid(MixtureScorer(inner, values, length), inner, ids, FIRST)
    assert len(tried) == 2 * max(1, len(steps.get("step", ())))
    for setting, nats in tried:
        assert nats == pytest.approx(read(MixtureReader(stack(), setting), ids, FIRST, block=block).nats, rel=1e-4)


def test_it_learns_whom_to_trust_when_sure() -> None:
    """PPM is sure of a text that repeats itself, and right."""
    ids = np.tile(text(30, 5), 20)
    fixed = read(ppm(StaticReader(lstm())), ids, FIRST).nats
    assert read(MixtureReader(ppm(StaticReader(lstm())), gate(0.3)), ids, FIRST).nats < 0.7 * fixed
