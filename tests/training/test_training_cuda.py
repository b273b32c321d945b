"""On a GPU a run trains, is read and examined, and a stopped one resumes bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded import OTHER_CORES, VARIANTS
from runs import checkpoints, with_model, with_training

import backstory as bs
from backstory.config import LSTMConfig, RunConfig
from backstory.evaluation import evaluate
from backstory.storage.checkpoint import read_checkpoint
from backstory.training.gradients import Recorded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
Train = Callable[..., dict]


@pytest.fixture(params=VARIANTS)
def config(request: pytest.FixtureRequest, tiny_config: RunConfig) -> RunConfig:
    return VARIANTS[request.param](with_training(tiny_config, epochs=2, device="cuda"))


def test_a_stopped_run_resumes_bit_for_bit(config: RunConfig, resumes_exactly: Callable[..., object]) -> None:
    resumes_exactly(config, 7)


@pytest.mark.parametrize("most", [256, 1, 2])
def test_recorded_steps_are_the_eager_ones(
    most: int, config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorded_as_eager(most, config, quietly, monkeypatch, tmp_path)


@pytest.mark.parametrize("name", OTHER_CORES)
def test_other_cores_are_recorded_and_resume_bit_for_bit(
    name: str,
    tiny_config: RunConfig,
    quietly: Train,
    resumes_exactly: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    config = OTHER_CORES[name](with_training(tiny_config, device="cuda"))
    resumes_exactly(config, 7)
    recorded_as_eager(3, config, quietly, monkeypatch, tmp_path)


def recorded_as_eager(
    most: int, config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Train with at most so many recorded lengths, and without: the runs must be alike."""
    monkeypatch.setattr(Recorded, "MOST", most)  # with few, lengths that are recorded and others take turns
    quietly(config, tmp_path / "recorded")
    monkeypatch.setattr(Recorded, "MOST", 0)
    quietly(config, tmp_path / "eager")
    one, two = (read_checkpoint(checkpoints(tmp_path / name, "last")[0]).tensors for name in ("recorded", "eager"))
    tolerance = 1e-2 if config.training.precision == "bfloat16" else 1e-4
    for file in ("weights", "state"):
        torch.testing.assert_close(one[file], two[file], rtol=0, atol=tolerance)
    assert torch.equal(one["random"]["cuda"], two["random"]["cuda"])  # the same masks


def test_a_run_is_read_and_examined_alike_on_both_devices(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path
) -> None:
    wide = with_model(tiny_config, core=LSTMConfig(layers=2, hidden=1152))  # where TF32 would show
    quietly(with_training(wide, device="cuda"), tmp_path / "run")
    found = {}
    for device in ("cpu", "cuda"):
        read = evaluate(tmp_path / "run", device=device, out=tmp_path / device / "read")
        seen = bs.examine(
            tmp_path / "run",
            None,
            "truncate",
            targets=40,
            maximum_context=50,
            precision="float32",
            device=device,
            out=tmp_path / device / "examined",
        )
        assert read.figures.audit.passed
        assert read.provenance.device.startswith(device)
        found[device] = read.figures.nats_per_token, [row.nats for row in seen.figures.conditions]
    assert found["cuda"][0] == pytest.approx(found["cpu"][0], abs=1e-5)
    assert found["cuda"][1] == pytest.approx(found["cpu"][1], abs=1e-4)
