"""The hash of a model's weights: of names, shapes, types and values, and computed once as long as none of them changes."""

import hashlib

import pytest
import torch
from torch import nn

from backstory.runs import loaded_run as loading
from backstory.runs.loaded_run import tensors_hash, weights, weights_hash


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors were hashed, each time."""
    times: list[int] = []
    compute = loading.tensors_hash
    monkeypatch.setattr(loading, "tensors_hash", lambda t: (times.append(len(t)), compute(t))[1])
    return times


def test_the_hash_is_that_of_names_shapes_types_and_bytes() -> None:
    model = nn.Linear(2, 3)
    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        digest.update(f"{name} {tuple(p.shape)} torch.float32\n".encode() + p.detach().numpy().tobytes())
    assert weights_hash(model) == tensors_hash(weights(model)) == digest.hexdigest()


def test_a_model_is_hashed_once_until_a_weight_changes(hashed: list[int]) -> None:
    model = nn.Linear(2, 3)
    first = weights_hash(model)
    assert weights_hash(model) == first and hashed == [2]
    with torch.no_grad():
        model.weight[0, 0] += 1
    second = weights_hash(model)
    assert second != first and hashed == [2, 2]
    model.bias = nn.Parameter(model.bias.detach() + 1)
    assert weights_hash(model) not in (first, second) and len(hashed) == 3
    model.double()
    assert len({weights_hash(model), first, second}) == 3 and len(hashed) == 4
    other = nn.Linear(2, 3)
    other.load_state_dict({name: p.clone() for name, p in model.float().named_parameters()})
    assert weights_hash(other) == weights_hash(model)
