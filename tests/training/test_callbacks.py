"""Callbacks of a training: their arguments, their lack of effect, and the end of a training by a failing one."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import events, outcome, with_training

from backstory.config import AlgorithmConfig, RunConfig, TextConfig
from backstory.data import prepare, rows
from backstory.results.training_record import EpochRecord
from backstory.training import train
from backstory.training.callbacks import TrainingStep
from backstory.utils.errors import UserError


class Watching:
    """Notes all that it is told, and disturbs whatever it can reach."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.steps: list[TrainingStep] = []
        self.epochs: list[EpochRecord] = []
        self.fails_at = fails_at

    def on_step(self, step: TrainingStep) -> None:
        self.steps.append(step)
        torch.manual_seed(5)
        torch.rand(3)
        if step.step == self.fails_at:
            raise ZeroDivisionError("division\nby zero")

    def on_epoch(self, epoch: EpochRecord) -> None:
        self.epochs.append(epoch)
        torch.manual_seed(5)


@pytest.fixture(scope="module")
def config(tiny_config: RunConfig) -> RunConfig:
    return with_training(tiny_config, epochs=2)


@pytest.fixture(scope="module")
def plain(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(config, folder)
    return folder


@pytest.mark.full
def test_callbacks_are_told_of_every_step_and_epoch_and_change_nothing(
    config: RunConfig, plain: Path, tmp_path: Path
) -> None:
    watching, epochs = Watching(), []
    train(config, tmp_path / "run", callbacks=[watching, epochs.append])
    assert events(tmp_path / "run") == events(plain)
    assert outcome(tmp_path / "run") == outcome(plain)
    logged = events(plain, "epoch")
    assert [epoch.valid_nats for epoch in epochs] == [epoch["valid_nats"] for epoch in logged]
    assert watching.epochs == epochs
    assert [step.step for step in watching.steps] == list(range(1, logged[-1]["step"] + 1))
    first = [step for step in watching.steps if step.epoch == 1]
    mean = sum(step.nats * step.tokens for step in first) / sum(step.tokens for step in first)
    assert mean == pytest.approx(logged[0]["train_nats"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        watching.steps[0].nats = 0.0  # type: ignore[misc]


def test_steps_that_train_on_answers_alone_count_these(config: RunConfig, tmp_path: Path) -> None:
    text = TextConfig("copy", algorithm=AlgorithmConfig(bits=2, longest=3, documents=15, held_out=2))
    config = with_training(
        dataclasses.replace(config, text=text), answer_loss_only=True, epochs=1, batch_size=1, segment=3
    )
    watching = Watching()
    train(config, tmp_path / "run", callbacks=[watching])
    (epoch,), steps = watching.epochs, watching.steps
    dataset = prepare(config.text)
    targets = rows(dataset.answer_mask(dataset.epoch(1)), config.training.batch_size)[:, 1:]
    assert sum(step.tokens for step in steps) == targets.sum()
    assert any(step.tokens == step.nats == 0 for step in steps)  # a segment without an answer
    mean = sum(step.nats * step.tokens for step in steps) / sum(step.tokens for step in steps)
    assert mean == pytest.approx(epoch.train_nats)


@pytest.mark.parametrize("when", [3, "epoch"])
def test_a_callback_that_fails_is_named_and_the_training_goes_on_to_the_same_bits(
    config: RunConfig, plain: Path, tmp_path: Path, when: Any
) -> None:
    def broken(epoch: EpochRecord) -> None:
        raise KeyError(epoch.epoch)

    callback = broken if when == "epoch" else Watching(when)
    with pytest.raises(UserError) as caught:
        train(config, tmp_path / "run", callbacks=[callback])
    name = "broken failed after step" if when == "epoch" else "Watching.on_step failed after step 3 (ZeroDivisionError"
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError | ZeroDivisionError)
    train(config, tmp_path / "run", mode="resume")
    assert outcome(tmp_path / "run") == outcome(plain)


@pytest.mark.parametrize("callback", [None, 3, "print", object(), Watching])
def test_what_is_no_callback_is_refused_before_anything_is_written(
    config: RunConfig, tmp_path: Path, callback: Any
) -> None:
    with pytest.raises(TypeError, match="a callback must be a function, or an object with on_step or on_epoch, not "):
        train(config, tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()


def test_a_partial_function_is_a_callback(config: RunConfig, tmp_path: Path) -> None:
    seen: list[int] = []
    train(config, tmp_path / "run", callbacks=[functools.partial(lambda seen, epoch: seen.append(epoch.epoch), seen)])
    assert seen == [1, 2]
