"""States as trees of any types: mapped, flattened to names and rebuilt."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from backstory.models import clone, detach, flatten, map_state, to, unflatten
from backstory.models.auxiliary import GatedState


class Memory(NamedTuple):
    cells: Tensor
    reads: tuple[Tensor, ...]
    extra: dict[str, list[Tensor]]
    nothing: None = None


def memory(fill: float = 1.0) -> Memory:
    reads = torch.full((2, 3), fill), torch.full((2, 1), fill)
    return Memory(torch.full((2, 2), fill), reads, {"ring": [torch.full((2,), fill)]})


def test_names_are_paths() -> None:
    assert list(flatten(memory())) == ["cells", "reads.0", "reads.1", "extra.ring.0"]
    assert flatten(None) == {}


def test_unflatten_rebuilds_the_tree() -> None:
    rebuilt = unflatten(memory(0.0), flatten(memory(2.0)))
    assert isinstance(rebuilt, Memory)
    assert isinstance(rebuilt.reads, tuple) and isinstance(rebuilt.extra["ring"], list)
    assert all((t == 2).all() for t in flatten(rebuilt).values())
    assert unflatten(None, {}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cells": torch.zeros(2, 3)}, r"state 'cells' is \(2, 3\), the model expects \(2, 2\)"),
        ({"cells": torch.zeros(2, 2, dtype=torch.float64)}, "state 'cells'"),
        ({"other": torch.zeros(1)}, "'other'"),
    ],
)
def test_unflatten_refuses_what_does_not_fit(change: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unflatten(memory(), flatten(memory()) | change)


def test_unflatten_does_not_depend_on_the_order_of_names() -> None:
    tensors = {name: torch.full_like(t, i) for i, (name, t) in enumerate(flatten(memory()).items())}
    rebuilt = unflatten(memory(), dict(reversed(tensors.items())))
    assert [int(t.flatten()[0]) for t in flatten(rebuilt).values()] == [0, 1, 2, 3]


def test_map_state_keeps_the_tree() -> None:
    doubled = map_state(lambda t: 2 * t, memory())
    assert isinstance(doubled, Memory) and doubled.nothing is None
    assert all((t == 2).all() for t in flatten(doubled).values())


def test_clone_shares_no_memory_and_detach_does() -> None:
    state = memory()
    copied, cut = clone(state), detach(state)
    state.cells.fill_(9)
    assert (copied.cells == 1).all()
    assert (cut.cells == 9).all()


def test_to_moves_every_tensor() -> None:
    assert {t.device.type for t in flatten(to(memory(), "meta")).values()} == {"meta"}


@pytest.mark.parametrize("leaf", [7, "text", object()])
def test_a_state_holds_nothing_but_tensors(leaf: object) -> None:
    for use in (detach, clone, flatten):
        with pytest.raises(TypeError, match="a state holds tensors"):
            use({"h": torch.zeros(1), "count": leaf})
    assert flatten({"h": torch.zeros(1), "none": None}).keys() == {"h"}


def test_parts_of_saved_states_are_found_under_their_former_names() -> None:
    state = GatedState(torch.ones(2), torch.full((3,), 2.0))
    saved = {name.replace("auxiliary", "second"): tensor for name, tensor in flatten(state).items()}
    assert saved.keys() == {"core", "second"}
    rebuilt = unflatten(GatedState(torch.zeros(2), torch.zeros(3)), saved)
    assert all(map(torch.equal, rebuilt, state))
