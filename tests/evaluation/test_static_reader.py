"""The static reader: predict is repeatable, forks are independent, and the model stays unchanged."""

import hashlib

import pytest
import torch
from small_models import TYPES
from torch import Tensor

from backstory.models import ComposedModel, Precision
from backstory.readers import StaticReader, evaluating


@pytest.fixture
def reader(model: ComposedModel) -> StaticReader:
    made = StaticReader(model)
    made.start(2)
    return made


def block(seed: int) -> Tensor:
    return torch.randint(TYPES, (2, 6), generator=torch.Generator().manual_seed(seed))


def scores(reader: StaticReader, tokens: Tensor) -> Tensor:
    return reader.predict(tokens).log_probs()


def digest(model: ComposedModel) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def test_predicting_twice_is_predicting_once(reader: StaticReader) -> None:
    first = scores(reader, block(0))
    assert torch.equal(scores(reader, block(0)), first)
    reader.observe(block(0))
    after = scores(reader, block(1))
    reader.start(2)
    scores(reader, block(0))
    reader.observe(block(0))
    assert torch.equal(scores(reader, block(1)), after)


def test_the_last_block_predicted_is_the_one_observed(reader: StaticReader) -> None:
    fork = reader.fork()
    scores(reader, block(0))
    scores(reader, block(1))
    scores(fork, block(1))
    for each in (reader, fork):
        each.observe(block(5))
    assert torch.equal(scores(reader, block(2)), scores(fork, block(2)))


def test_nothing_moves_before_a_block_is_observed(reader: StaticReader) -> None:
    before = scores(reader, block(1))
    scores(reader, block(0))
    assert torch.equal(scores(reader, block(1)), before)
    scores(reader, block(0))
    reader.observe(block(0))
    assert not torch.equal(scores(reader, block(1)), before)


def test_a_snapshot_can_be_restored_more_than_once(reader: StaticReader) -> None:
    scores(reader, block(0))
    reader.observe(block(0))
    snapshot, expected = reader.snapshot(), scores(reader, block(1))
    for _ in range(2):
        scores(reader, block(2))
        reader.observe(block(2))
        assert not torch.equal(scores(reader, block(1)), expected)
        reader.restore(snapshot)
        assert torch.equal(scores(reader, block(1)), expected)


def test_a_block_predicted_before_restoring_is_not_observed_after_it(reader: StaticReader) -> None:
    snapshot, expected = reader.snapshot(), scores(reader, block(1))
    scores(reader, block(0))
    reader.restore(snapshot)
    reader.observe(block(0))
    assert torch.equal(scores(reader, block(1)), expected)


def test_forks_and_their_reader_go_their_own_ways(reader: StaticReader) -> None:
    fork = reader.fork()
    assert fork.model is reader.model
    expected = scores(reader, block(1))
    scores(fork, block(0))
    fork.observe(block(0))
    assert torch.equal(scores(reader, block(1)), expected)
    moved = scores(fork, block(1))
    reader.observe(block(1))
    assert torch.equal(scores(fork, block(1)), moved)


def test_snapshots_share_no_memory_with_the_reader(reader: StaticReader) -> None:
    snapshot, expected = reader.snapshot(), scores(reader, block(0))
    for tensor in (*snapshot.hidden, *snapshot.cell):
        tensor.fill_(9)
    assert torch.equal(scores(reader, block(0)), expected)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(model: ComposedModel, training: bool) -> None:
    model.train(training)
    before, random = digest(model), torch.get_rng_state()
    reader = StaticReader(model)
    reader.start(2)
    prediction = reader.predict(block(0))
    prediction.log_prob(block(0))
    reader.observe(block(0))
    assert model.training == training and model.core.training == training
    assert digest(model) == before
    assert torch.equal(torch.get_rng_state(), random)  # nothing was dropped
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert prediction.activations is not None and not prediction.activations.head_input.requires_grad


def test_a_model_in_training_is_read_without_dropout(reader: StaticReader) -> None:
    expected = scores(reader, block(0))
    reader.model.train()
    assert torch.equal(scores(reader, block(0)), expected)


def test_the_mode_comes_back_after_an_error(model: ComposedModel) -> None:
    model.train()
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not model.training and not torch.is_grad_enabled()
        1 / 0  # noqa: B018
    assert model.training and torch.is_grad_enabled()


@pytest.mark.parametrize("frozen", ["embedding", "core", ""])
def test_parts_that_were_frozen_stay_so(model: ComposedModel, reader: StaticReader, frozen: str) -> None:
    model.train()
    model.get_submodule(frozen).eval()
    model.head.train()
    modes = [part.training for part in model.modules()]
    reader.predict(block(0))
    assert True in modes and False in modes and [part.training for part in model.modules()] == modes


def test_bfloat16_reads_near_float32(model: ComposedModel, reader: StaticReader) -> None:
    short = StaticReader(model, Precision(torch.bfloat16, ""))
    short.start(2)
    prediction = short.predict(block(0))
    assert prediction.activations is not None and prediction.activations.head_input.dtype == torch.bfloat16
    expected = scores(reader, block(0))
    found = prediction.log_probs()
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=0.03)
