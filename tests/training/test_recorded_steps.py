"""Recorded steps are the eager ones, bit for bit, on imitated CUDA graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import OTHER_CORES, VARIANTS, imitate_graphs
from runs import checkpoints, with_training

from backstory.config import RunConfig
from backstory.storage.checkpoint import read_checkpoint
from backstory.training.gradients import Recorded

FAST = {"float32", "bfloat16", "span buffer"}
NAMES = [
    name if name in FAST else pytest.param(name, marks=pytest.mark.full)
    for name in {**VARIANTS, **OTHER_CORES}
    if name != "wide"  # which is about kernels of a GPU
]


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_training_is_the_same(
    name: str,
    tiny_config: RunConfig,
    quietly: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    imitate_graphs(monkeypatch)
    config = {**VARIANTS, **OTHER_CORES}[name](with_training(tiny_config, epochs=2))
    outcomes = []
    for most in (3, 0):  # lengths that are recorded and others take turns; no length is recorded
        monkeypatch.setattr(Recorded, "MOST", most)
        quietly(config, tmp_path / str(most))
        outcomes.append(read_checkpoint(checkpoints(tmp_path / str(most), "last")[0]).tensors)
    recorded, eager = outcomes
    for file in ("weights", "optimizer", "state", "random"):
        torch.testing.assert_close(recorded[file], eager[file], rtol=0, atol=0)


def test_a_step_that_waits_for_a_number_is_not_recorded(
    tiny_config: RunConfig, quietly: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("backstory.training.gradients.Eager.clipped", lambda self: torch.tensor(float(torch.ones(()))))
    imitate_graphs(monkeypatch)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        quietly(tiny_config, tmp_path / "run")
