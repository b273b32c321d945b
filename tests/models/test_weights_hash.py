"""The hash of a model's weights: of names, shapes, types and values, and computed once for a loaded run."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

import backstory as bs
from backstory.runs import run as runs
from backstory.runs.run import load_run, weights_hash


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The models that were hashed."""
    models: list[nn.Module] = []
    compute = runs.weights_hash
    monkeypatch.setattr(runs, "weights_hash", lambda model: (models.append(model), compute(model))[1])
    return models


def test_the_hash_is_that_of_names_shapes_types_and_bytes() -> None:
    model = nn.Linear(2, 3)
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(f"{name} {tuple(p.shape)} torch.float32\n".encode() + p.detach().numpy().tobytes())
    assert weights_hash(model) == digest.hexdigest()


def test_the_hash_changes_with_any_value_or_type() -> None:
    model = nn.Linear(2, 3)
    hashes = [weights_hash(model)]
    with torch.no_grad():
        model.weight[0, 0] += 1
    hashes.append(weights_hash(model))
    model.bias = nn.Parameter(model.bias.detach() + 1)
    hashes.append(weights_hash(model))
    hashes.append(weights_hash(model.double()))
    assert len(set(hashes)) == 4
    other = nn.Linear(2, 3)
    other.load_state_dict({name: p.clone() for name, p in model.float().named_parameters()})
    assert weights_hash(other) == weights_hash(model)


def test_a_run_is_hashed_once(tiny_run: Path, hashed: list[nn.Module]) -> None:
    run = load_run(tiny_run)
    assert not hashed
    assert run.identity()["weights"] == run.weights_hash == weights_hash(run.model)
    assert hashed == [run.model]


@pytest.mark.parametrize("reader", ["static", "cache", "dynamic:rule=sgd+cache"])
def test_an_evaluation_hashes_the_weights_once(
    tiny_run: Path, hashed: list[nn.Module], tmp_path: Path, reader: str
) -> None:
    bs.evaluate(tiny_run, reader=reader, out=tmp_path)
    assert len(hashed) == 1
