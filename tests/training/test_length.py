"""A training of so many minutes or steps: its stages keep their shares, and the steps that fitted repeat its result."""

import dataclasses
import io
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from runs import events, with_training

from backstory.cli.train import TrainArguments, parse_with_recipe
from backstory.config import RunConfig, TrainingConfig
from backstory.data import Dataset
from backstory.jobs.ranks import Ranks
from backstory.runs.run import load_run, weights_hash
from backstory.training import Stopped, loop, stages, train
from backstory.training.callbacks import TrainingStep
from backstory.training.events import Events
from backstory.training.progress import Progress
from backstory.utils.errors import UserError

Train = Callable[..., dict]


def scaled(**changes: object) -> TrainingConfig:
    return dataclasses.replace(TrainingConfig(epochs=4, finetune_epochs=2, learning_rate=8.0), **changes)  # type: ignore[arg-type]


def test_stages_keep_their_shares_of_the_steps() -> None:
    settings = scaled(steps=30)
    assert stages.first_stage_steps(30, settings) == 20
    assert not stages.stage_is_over(Progress(step=19), settings)
    assert stages.finetuning_due(Progress(step=20), settings)
    assert not stages.stage_is_over(Progress(step=29, finetuning=True), settings)
    assert stages.finished(Progress(step=30, finetuning=True, history=[2.0, 1.0, 3.0, 4.0, 5.0, 6.0, 7.0]), settings)


def test_the_step_schedule_decays_at_its_share_of_the_first_stage() -> None:
    settings = scaled(steps=60, schedule="step", decay_epochs=(2, 3), decay_factor=0.5)
    rates = [stages.learning_rate(Progress(step=step), settings, 10) for step in (0, 19, 20, 29, 30, 39)]
    assert rates == [8.0, 8.0, 4.0, 4.0, 2.0, 2.0]
    assert stages.learning_rate(Progress(step=40, finetuning=True), settings, 10) == 8.0


def test_the_steps_that_fit_leave_time_for_the_validations() -> None:
    # 100 steps of 0.3 s and one validation of 6 s have taken 36 of 600 s; an epoch has 100 steps.
    progress = Progress(step=100, epoch=2, seconds=36.0, validation_seconds=6.0)
    more = (600 - 36 - 2 * 6) / (0.3 + 6 / 100)
    assert stages.fitting_steps(progress, scaled(minutes=10), 100, 0.1) == 100 + round(more)
    # Before the first validation, it is thought to take a third of the time of as many tokens in training.
    progress = Progress(step=50, seconds=15.0)
    more = (600 - 15 - 2 * 1) / (0.3 + 1 / 100)
    assert stages.fitting_steps(progress, scaled(minutes=10), 100, 0.1) == 50 + round(more)
    assert stages.fitting_steps(Progress(step=5, seconds=900.0), scaled(minutes=10), 100, 0.1) == 6
    # What was prepared before the first step makes no step longer.
    progress = Progress(step=50, seconds=55.0, preparation_seconds=40.0)
    assert stages.fitting_steps(progress, scaled(minutes=10), 100, 0.1) == 50 + round((600 - 55 - 2) / (0.3 + 1 / 100))


def test_steps_are_planned_once_a_quarter_of_the_time_has_passed() -> None:
    assert not stages.plan_is_due(Progress(step=9, seconds=149.0), scaled(minutes=10))
    assert stages.plan_is_due(Progress(step=9, seconds=150.0), scaled(minutes=10))
    assert not stages.plan_is_due(Progress(step=9, seconds=150.0), scaled())


def test_a_plan_is_repeatable_if_the_schedule_changes_after_it() -> None:
    progress = Progress(step=25)
    assert stages.is_repeatable(progress, scaled(), 100)
    assert not stages.is_repeatable(progress, scaled(epochs=1, finetune_epochs=4), 100)
    decaying = scaled(finetune_epochs=0, schedule="step", decay_epochs=(1, 3))
    assert stages.is_repeatable(progress, decaying, 100)
    assert not stages.is_repeatable(Progress(step=26), decaying, 100)


def test_a_plan_for_other_minutes_no_longer_counts() -> None:
    progress = Progress(step=100, planned_steps=100, planned_minutes=1.0)
    assert stages.finished(progress, scaled(minutes=1.0, finetune_epochs=0))
    assert not stages.finished(progress, scaled(minutes=2.0, finetune_epochs=0))


def test_one_length_is_given() -> None:
    with pytest.raises(UserError, match=r"training.minutes 1 and training.steps 9 cannot be combined"):
        scaled(minutes=1.0, steps=9).check()


def test_a_training_ends_after_its_steps_within_an_epoch(
    tiny_config: RunConfig, tiny_dataset: Dataset, quietly: Train, tmp_path: Path
) -> None:
    config = with_training(tiny_config, epochs=2, finetune_epochs=1, steps=12)
    quietly(config, tmp_path / "run")
    epochs = events(tmp_path / "run", "epoch")
    assert [e["step"] for e in epochs][-1] == 12
    assert [e["step"] for e in epochs if not e["finetuning"]][-1] == 8


@pytest.mark.full
@pytest.mark.parametrize("stopped", [False, True])
def test_the_steps_that_fitted_repeat_the_result(
    tiny_config: RunConfig, quietly: Train, stop_after: Callable[[int], None], tmp_path: Path, stopped: bool
) -> None:
    config = with_training(tiny_config, epochs=2, finetune_epochs=1)
    timed, counted = tmp_path / "timed", tmp_path / "counted"
    minutes = with_training(config, minutes=0.02)
    if stopped:
        stop_after(3)
        with pytest.raises(Stopped):
            quietly(minutes, timed)
        quietly(minutes, timed, mode="resume")
    else:
        quietly(minutes, timed)
    steps = events(timed, "epoch")[-1]["step"]
    assert steps > 3
    quietly(with_training(config, steps=steps), counted)
    assert weights_hash(load_run(timed).model) == weights_hash(load_run(counted).model)
    assert [e["valid_nats"] for e in events(timed, "epoch")] == [e["valid_nats"] for e in events(counted, "epoch")]


@pytest.mark.full
def test_a_finished_training_goes_on_for_more_minutes(tiny_config: RunConfig, quietly: Train, tmp_path: Path) -> None:
    config = with_training(tiny_config, minutes=0.01)
    quietly(config, tmp_path / "run")
    before = events(tmp_path / "run", "epoch")[-1]["step"]
    longer = with_training(config, minutes=0.03)
    quietly(longer, tmp_path / "run", mode="resume", accept=frozenset({"config"}))
    assert events(tmp_path / "run", "epoch")[-1]["step"] > before


def test_a_plan_is_saved_with_the_step_that_made_it(
    tiny_config: RunConfig, quietly: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the number was printed, a training goes on to that number."""
    saved, save = [], loop.Trainer.save

    def noted(trainer: loop.Trainer, log: Events) -> None:
        saved.append((trainer.progress.step, trainer.progress.planned_steps))
        save(trainer, log)

    monkeypatch.setattr(loop.Trainer, "save", noted)
    monkeypatch.setattr(stages, "plan_is_due", lambda progress, settings: progress.step >= 3)
    quietly(with_training(tiny_config, minutes=0.02, save_minutes=10.0), tmp_path / "run")
    assert saved[0][0] == 3 and saved[0][1] is not None


def test_the_printed_flags_repeat_a_training_of_so_many_minutes(tiny_config: RunConfig, tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    train(with_training(tiny_config, minutes=0.02), tmp_path / "run", console=console)
    said = re.search(
        r"\((--training.minutes none --training.steps \d+) repeats this training\)", console.file.getvalue()
    )
    assert said is not None
    _, parsed = parse_with_recipe(TrainArguments, [str(tmp_path / "run"), *said[1].split()], "train")
    assert (parsed.config.training.minutes, parsed.config.training.steps) == (None, int(said[1].split()[-1]))


def test_the_learning_rate_of_every_worker_follows_the_time_of_the_first(
    tiny_config: RunConfig,
    quietly: Train,
    stop_after: Callable[[int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a cosine the time sets the rate until the steps are planned: other rates would be other models."""
    rates = []

    class Noted:
        def on_step(self, step: TrainingStep) -> None:
            rates.append(step.learning_rate)

    monkeypatch.setattr(Ranks, "of_first", lambda ranks, value: value if isinstance(value, bool) else 14.0)
    stop_after(4)
    with pytest.raises(Stopped):
        changes = {"minutes": 1.0, "schedule": "cosine", "segment_deviation": 0.0}
        quietly(with_training(tiny_config, **changes), tmp_path / "run", callbacks=[Noted()])
    assert rates == [pytest.approx(2.0 * 0.5 * (1 + math.cos(math.pi * 14 / 60)))] * 4


def test_fewer_steps_accepted_than_are_done_end_with_a_validation(
    tiny_config: RunConfig, quietly: Train, stop_after: Callable[[int], None], tmp_path: Path
) -> None:
    stop_after(5)
    with pytest.raises(Stopped):
        quietly(with_training(tiny_config, steps=200), tmp_path / "run")
    fewer = with_training(tiny_config, steps=3)
    for accept in (frozenset({"config"}), frozenset[str]()):
        result = quietly(fewer, tmp_path / "run", mode="resume", accept=accept)
        assert result.figures.epochs == 1 and [e["step"] for e in events(tmp_path / "run", "epoch")] == [5]


def test_a_stopped_training_of_so_many_steps_resumes_to_the_same_bits(
    tiny_config: RunConfig, resumes_exactly: Callable[..., object]
) -> None:
    resumes_exactly(with_training(tiny_config, epochs=2, finetune_epochs=1, steps=14), 10)
