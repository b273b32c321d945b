"""Steps after a validation, without a model: schedule, trigger, fine-tuning and the end."""

import dataclasses
import math
from typing import Any

import pytest
from runs import with_settings

from backstory.config import ModelConfig, TrainingConfig
from backstory.training import stages
from backstory.training.progress import Progress
from backstory.utils.errors import UserError


def settings(**changes: Any) -> TrainingConfig:
    return dataclasses.replace(TrainingConfig(epochs=3, learning_rate=8.0, trigger=2), **changes)


def after(values: list[float], chosen: TrainingConfig) -> Progress:
    """Progress after epochs with these validations, as the loop takes it there."""
    progress, best = Progress(), float("inf")
    for value in values:
        assert not stages.finished(progress, chosen)
        stages.end_epoch(progress, chosen, value, value < best)
        best = min(best, value)
        if stages.finetuning_due(progress, chosen):
            stages.begin_finetuning(progress)
    return progress


def test_training_ends_after_its_epochs() -> None:
    assert not stages.finished(after([3.0, 2.0], settings()), settings())
    assert stages.finished(after([3.0, 2.0, 1.0], settings()), settings())


@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
def test_the_end_is_that_of_the_settings_as_they_are_now(epochs: int) -> None:
    progress = after([3.0, 2.0, 1.0], settings())
    assert stages.finished(progress, settings(epochs=epochs)) == (epochs <= 3)
    assert not stages.finished(progress, settings(epochs=epochs, finetune_epochs=1))
    assert stages.finetuning_due(progress, settings(epochs=epochs, finetune_epochs=1)) == (epochs <= 3)


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_fine_tuning_ends_after_its_own_epochs(more: int) -> None:
    chosen = settings(finetune_epochs=2)
    progress = after([3.0, 2.0, 1.0, 0.9, 0.8], chosen)
    assert progress.finetuning and progress.history == [0.9, 0.8]
    assert stages.finished(progress, settings(finetune_epochs=more)) == (more <= 2)
    # However many epochs came before, there is no way back to them.
    assert stages.finished(progress, settings(epochs=9, finetune_epochs=more)) == (more <= 2)
    assert not stages.finetuning_due(progress, settings(epochs=1, finetune_epochs=more))


def test_fine_tuning_ends_when_validation_stalls() -> None:
    chosen = settings(finetune_epochs=9)
    progress = after([3.0, 2.0, 1.0, 0.9, 0.8, 0.85, 0.84], chosen)
    assert not stages.finished(progress, chosen)
    stages.end_epoch(progress, chosen, 0.86, False)
    assert stages.finished(progress, chosen)


def test_the_trigger_is_for_sgd_that_waits_for_it() -> None:
    progress = after([1.0, 1.1, 1.2, 1.3], settings(epochs=9))
    assert stages.averaging_due(progress, settings())
    assert not stages.averaging_due(progress, settings(trigger=3))
    assert not stages.averaging_due(progress, settings(averaging="none"))
    assert not stages.averaging_due(progress, settings(optimizer="adam"))
    assert not stages.averaging_due(Progress(), settings())


def test_the_learning_rate_of_stage_and_schedule() -> None:
    chosen = settings(schedule="step", decay_epochs=(2,), finetune_epochs=2, finetune_learning_rate=5.0)
    assert [stages.learning_rate(after([1.0] * n, chosen), chosen, 10) for n in range(5)] == [8.0, 8.0, 2.0, 5.0, 5.0]
    same = dataclasses.replace(chosen, finetune_learning_rate=None)
    assert stages.learning_rate(after([1.0] * 3, same), same, 10) == 8.0


def test_the_plateau_waits_anew_after_each_decay() -> None:
    chosen = settings(epochs=9, schedule="plateau", decay_patience=1)
    rates = [stages.learning_rate(after([1.0, 2.0, 2.0, 2.0, 2.0][:n], chosen), chosen, 10) for n in range(6)]
    assert rates == [8.0, 8.0, 8.0, 2.0, 2.0, 0.5]


def test_the_last_epoch_there_may_be() -> None:
    chosen = settings(finetune_epochs=2)
    assert [stages.last_epoch(after([1.0] * n, chosen), chosen) for n in range(5)] == [5] * 5
    assert stages.last_epoch(after([1.0] * 4, chosen), settings(epochs=9, finetune_epochs=4)) == 7


@pytest.mark.parametrize("optimizer", ["adam", "nadam"])
def test_averaged_sgd_is_sgd(optimizer: str) -> None:
    settings(optimizer=optimizer).check()
    settings(finetune_epochs=2, averaging="always").check()
    with pytest.raises(UserError, match=rf"training.finetune_epochs.* need training.optimizer sgd, not {optimizer}"):
        settings(optimizer=optimizer, finetune_epochs=1).check()
    with pytest.raises(UserError, match=rf"training.averaging.* needs training.optimizer sgd, not {optimizer}"):
        settings(optimizer=optimizer, averaging="always").check()


def test_adversarial_training_and_noise_of_a_stage() -> None:
    trained = settings(finetune_epochs=2)
    chosen = with_settings(ModelConfig(), {"head.adversarial": 0.005, "embedding.noise": 0.15})
    tuned = with_settings(chosen, {"head.finetune_adversarial": 0.028, "embedding.finetune_noise": 0.0})
    for taken, before, later in (
        (chosen, (0.005, 0.15), (0.005, 0.15)),
        (tuned, (0.005, 0.15), (0.028, 0.0)),
        (ModelConfig(), (0.0, 0.0), (0.0, 0.0)),
    ):
        found = []
        for progress in (after([1.0] * 2, trained), after([1.0] * 3, trained)):
            found.append((stages.adversarial(progress, taken), stages.embedding_noise(progress, taken)))
        assert found == [before, later]


def rates(chosen: TrainingConfig, segments: int = 4) -> list[float]:
    """The learning rate of every step, in epochs of so many segments."""
    values, progress = [], Progress()
    while not stages.finished(progress, chosen):
        for progress.segment in range(segments):
            values.append(stages.learning_rate(progress, chosen, segments))
            progress.step += 1
        stages.end_epoch(progress, chosen, 1.0, False)
        if stages.finetuning_due(progress, chosen):
            stages.begin_finetuning(progress)
    return values


def test_a_cosine_falls_to_zero_at_the_end_of_the_stage_before_fine_tuning() -> None:
    values = rates(settings(schedule="cosine", finetune_epochs=1, finetune_learning_rate=3.0))
    assert values[:12] == pytest.approx([4 * (1 + math.cos(math.pi * step / 12)) for step in range(12)])
    assert values[12:] == [3.0] * 4


def test_a_line_begins_after_its_share_of_the_epochs_and_ends_at_zero() -> None:
    values = rates(settings(schedule="linear", decay_start=0.25, finetune_epochs=1, finetune_learning_rate=3.0))
    assert values[:12] == pytest.approx([8.0 * min(1.0, (12 - step) / 9) for step in range(12)])
    assert values[12:] == [3.0] * 4
    assert rates(settings(schedule="linear", decay_start=1.0)) == [8.0] * 12
    chosen = settings(schedule="linear", decay_start=0.25, steps=12)
    assert [stages.learning_rate(Progress(step=n), chosen, 4) for n in range(12)] == pytest.approx(values[:12])
    assert [stages.is_repeatable(Progress(step=n), chosen, 12) for n in (3, 4)] == [True, False]


def test_a_cosine_over_steps_is_that_over_as_many_epochs() -> None:
    by_epochs = rates(settings(schedule="cosine"))
    chosen = settings(schedule="cosine", steps=12)
    assert [stages.learning_rate(Progress(step=n), chosen, 4) for n in range(12)] == pytest.approx(by_epochs)


def test_a_warm_up_rises_to_the_rate() -> None:
    assert rates(settings(warmup_steps=5))[:7] == pytest.approx([1.6, 3.2, 4.8, 6.4, 8.0, 8.0, 8.0])
    decayed = rates(settings(warmup_steps=4, schedule="step", decay_epochs=(1,)))
    assert decayed[:6] == pytest.approx([2.0, 4.0, 6.0, 8.0, 2.0, 2.0])


def test_epochs_stop_early_where_validation_does_not_improve() -> None:
    chosen = settings(epochs=9, early_stopping=2)
    progress = after([3.0, 2.0, 2.5], chosen)
    assert not stages.finished(progress, chosen)
    stages.end_epoch(progress, chosen, 2.0, False)  # no better than the best
    assert stages.finished(progress, chosen)
    assert not stages.finished(progress, settings(epochs=9, early_stopping=3))
    tuned = settings(epochs=9, early_stopping=2, finetune_epochs=4)
    assert stages.finetuning_due(progress, tuned) and not stages.finished(progress, tuned)
    assert after([3.0, 2.0, 2.5, 2.5, 1.9, 1.9], tuned).history == [1.9, 1.9]
