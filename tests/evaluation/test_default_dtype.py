"""Readers where torch's default type is float64: models made there, and models that were saved in float32."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from adapting import BASE, gates, statistics
from small_models import lstm
from test_reader_contract import READERS, VARIANTS, Stream
from tiers import fast_then_full

from backstory.config.readers import GateSettings, MetaTraining
from backstory.evaluation import read
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.learned import LearnedReader, load_learned, save_learned
from backstory.readers.meta_training import train_gates
from backstory.readers.moving_weights import MovingWeights
from backstory.runs.run import load_run, weights_hash


@pytest.fixture
def in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("name", fast_then_full(READERS, READERS.keys() - VARIANTS))
@pytest.mark.usefixtures("in_float64")
def test_every_reader_reads(name: str, stream: Stream) -> None:
    reader = READERS[name]()
    assert {p.dtype for p in reader.model.parameters()} == {torch.float64}
    ids = stream(60)
    scored: list[torch.Tensor] = []
    nats = read(reader, ids, 0, block=15, each=lambda block, prediction, log_prob: scored.append(log_prob)).nats
    assert {log_prob.dtype for log_prob in scored} == {torch.float64}
    again = READERS[name]()
    assert read(again, ids, 0, block=15).nats == pytest.approx(nats, abs=1e-12)


@pytest.mark.parametrize("kind", ["dynamic", "learned"])
def test_a_model_in_float32_reads_as_it_does_by_default(
    kind: str, stream: Stream, request: pytest.FixtureRequest
) -> None:
    model, ids = lstm(), stream(60)
    known, learned = statistics(model), gates(model, size=0.3)

    def nats() -> float:
        made = DynamicEvaluation(model, BASE, known) if kind == "dynamic" else LearnedReader(model, learned, known)
        assert made.weights.delta.dtype == torch.float32
        return read(made, ids, 0, block=15).nats

    plain = nats()
    request.getfixturevalue("in_float64")
    assert nats() == pytest.approx(plain, abs=1e-6)


@pytest.mark.full
@pytest.mark.usefixtures("in_float64")
def test_gates_are_trained_saved_and_loaded(tmp_path: Path) -> None:
    model = lstm()
    ids = np.random.default_rng(2).integers(0, 13, 300).astype(np.uint16)
    training = MetaTraining(streams=1, stream=80, every=2, steps=3, sample=20)
    learned = train_gates(model, statistics(model), ids, 0, BASE, GateSettings(), training)
    assert {p.dtype for p in learned.network.parameters()} == {torch.float64}
    save_learned(tmp_path, "g", weights_hash(model), learned)
    torch.set_default_dtype(torch.float32)
    loaded = load_learned(tmp_path, "g", weights_hash(model), tmp_path)
    for one, other in zip(loaded.network.parameters(), learned.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_adapters_are_the_same_in_either(request: pytest.FixtureRequest) -> None:
    model = lstm()
    plain = MovingWeights(model, "low-rank:2")
    request.getfixturevalue("in_float64")
    again = MovingWeights(model, "low-rank:2")
    for (name, one), (_, other) in zip(plain.model.named_buffers(), again.model.named_buffers(), strict=True):
        assert torch.equal(one, other), name


def test_a_run_is_loaded_in_the_type_it_was_saved_in(tiny_run: Path, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("in_float64")
    model = load_run(tiny_run).model
    assert {p.dtype for p in model.parameters()} == {torch.float32}
