"""On a GPU a run trains, is read and examined, and a stopped one resumes bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from runs import ADVERSARIAL, checkpoints, with_model, with_settings, with_training

import backstory as bs
from backstory.config import (
    AuxiliarySoftmaxConfig,
    GateConfig,
    LSTMConfig,
    MixtureConfig,
    RewardConfig,
    RunConfig,
    SpanBufferConfig,
)
from backstory.evaluation import evaluate
from backstory.storage.checkpoint import read_checkpoint
from backstory.training.gradients import Recorded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
Train = Callable[..., dict]

VARIANTS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "float32": lambda c: c,
    "bfloat16": lambda c: with_training(c, precision="bfloat16"),
    "averaged": lambda c: with_training(c, averaging="always"),
    "adam, mixture": lambda c: with_model(
        with_training(c, optimizer="adam", learning_rate=0.01, averaging="none"), head=MixtureConfig(experts=3)
    ),
    "span buffer": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, span=4, gate=GateConfig(reward=RewardConfig(weight=0.01)))
    ),
    "span buffer, grid": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, span=4, alignment="fixed", attention="bilinear")
    ),
    "span buffer, following words": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, vectors="words", values="following", attention="linear")
    ),
    "pointer": lambda c: with_model(
        c, buffer=SpanBufferConfig(size=12, vectors="words", values="following", prediction="pointer", sentinel=True)
    ),
    "second softmax": lambda c: with_model(c, buffer=AuxiliarySoftmaxConfig()),
    "adversarial, fine-tuned": lambda c: with_settings(with_training(c, epochs=1, finetune_epochs=1), ADVERSARIAL),
    # Units of the published sizes take other kernels than tiny ones.
    "wide": lambda c: with_model(c, core=LSTMConfig(layers=2, hidden=1152)),
}


@pytest.fixture(params=VARIANTS)
def config(request: pytest.FixtureRequest, tiny_config: RunConfig) -> RunConfig:
    return VARIANTS[request.param](with_training(tiny_config, epochs=2, device="cuda"))


def test_a_stopped_run_resumes_bit_for_bit(config: RunConfig, resumes_exactly: Callable[..., object]) -> None:
    resumes_exactly(config, 7)


@pytest.mark.parametrize("most", [256, 1, 2])
def test_recorded_steps_are_the_eager_ones(
    most: int, config: RunConfig, quietly: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
