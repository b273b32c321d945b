"""Stages of a training and the decisions after a validation: learning rate, averaging trigger, fine-tuning, end.

The end of a stage follows from the epochs done and the current settings, and is never stored: settings that were accepted
on resuming may have more epochs or fewer. Where the settings give a length in minutes or steps, the stages keep their shares of
it, and their ends and the step schedule follow from the steps done.
"""

import math

from backstory.config import ModelConfig, TrainingConfig
from backstory.training.optimizers import non_monotonic
from backstory.training.progress import Progress

PLANNED_AFTER = 0.25
"""Share of `training.minutes` after which the steps of the whole training are fixed."""


def learning_rate(progress: Progress, settings: TrainingConfig, segments: int) -> float:
    """Return the learning rate of a segment of mean length, in an epoch of so many segments."""
    rate = _of_stage(progress, settings.learning_rate, settings.finetune_learning_rate) * progress.rate_factor
    if progress.step < settings.warmup_steps:
        rate *= (progress.step + 1) / settings.warmup_steps
    if progress.finetuning:
        return rate
    if settings.schedule == "cosine":
        share = _share_of_stage(progress, settings, segments)
        return rate * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    if settings.schedule == "linear" and settings.decay_start < 1:
        share = _share_of_stage(progress, settings, segments)
        return rate * min(1.0, max(0.0, 1 - share) / (1 - settings.decay_start))
    if settings.schedule == "step" and total_steps(progress, settings) is not None:
        share = _share_of_stage(progress, settings, segments)
        return rate * settings.decay_factor ** sum(share >= epoch / settings.epochs for epoch in settings.decay_epochs)
    return rate


def _share_of_stage(progress: Progress, settings: TrainingConfig, segments: int) -> float:
    """Return the share of the stage before fine-tuning that is done; by the time while its steps are not planned."""
    total = total_steps(progress, settings)
    if total is not None:
        return progress.step / first_stage_steps(total, settings)
    if settings.minutes is not None:
        whole = 1 + settings.finetune_epochs / settings.epochs
        return progress.seconds / (60 * settings.minutes) * whole
    return (progress.epoch - 1 + progress.segment / segments) / settings.epochs


def adversarial(progress: Progress, model: ModelConfig) -> float:
    """Return the radius of adversarial training, relative to the target's output weights; 0 for none."""
    return _of_stage(progress, model.head.adversarial, model.head.finetune_adversarial)


def embedding_noise(progress: Progress, model: ModelConfig) -> float:
    """Return the standard deviation of the noise on the embedded words; 0 for none."""
    return _of_stage(progress, model.embedding.noise, model.embedding.finetune_noise)


def _of_stage(progress: Progress, before: float, tuned: float | None) -> float:
    return tuned if progress.finetuning and tuned is not None else before


def is_best(progress: Progress, settings: TrainingConfig, nats: float) -> bool:
    """Return True if a validation is the best so far; of its stage, if the last weights are kept and not the best."""
    if settings.keep == "last":
        return nats < min(progress.history, default=math.inf)
    return progress.best_nats is None or nats < progress.best_nats


def end_epoch(progress: Progress, settings: TrainingConfig, nats: float, best: bool) -> None:
    """Add a validation to the history, apply the schedule, and go to the next epoch."""
    progress.history.append(nats)
    progress.waited = 0 if best else progress.waited + 1
    plateau = settings.schedule == "plateau" and progress.waited > settings.decay_patience
    by_epoch = settings.schedule == "step" and not settings.has_length
    if plateau or (by_epoch and progress.epoch in settings.decay_epochs):
        progress.rate_factor *= settings.decay_factor
        progress.waited = 0
    progress.epoch, progress.segment = progress.epoch + 1, 0


def stalled(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if the newest validation is worse than the best of all but the last n before it."""
    history = progress.history
    return bool(history) and non_monotonic(history[:-1], history[-1], settings.trigger)


def averages_always(settings: TrainingConfig) -> bool:
    """Return True if the weights are averaged from the first step."""
    return settings.averaging == "always" and settings.optimizer == "sgd"


def averaging_due(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if the newest validation triggers averaging (NT-ASGD)."""
    return settings.averaging == "triggered" and settings.optimizer == "sgd" and stalled(progress, settings)


def finetuning_due(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if fine-tuning is next."""
    if progress.finetuning or not settings.finetune_epochs:
        return False
    over = stage_is_over(progress, settings) if settings.has_length else progress.epoch > settings.epochs
    return over or stopped_early(progress, settings)


def stopped_early(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if validation has not improved for `early_stopping` epochs of the stage before fine-tuning."""
    history = progress.history
    if settings.early_stopping is None or progress.finetuning or not history:
        return False
    return len(history) - 1 - history.index(min(history)) >= settings.early_stopping


def finished(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if nothing is left to train. The history of fine-tuning counts its epochs, as it began with them."""
    if stopped_early(progress, settings) and not settings.finetune_epochs:
        return True
    if settings.has_length:
        total = total_steps(progress, settings)
        return total is not None and progress.step >= total
    if progress.finetuning:
        return stalled(progress, settings) or len(progress.history) >= settings.finetune_epochs
    return progress.epoch > settings.epochs and not settings.finetune_epochs


def total_steps(progress: Progress, settings: TrainingConfig) -> int | None:
    """Return the steps of the whole training; None if its length is in epochs, or not planned yet.

    A plan for other minutes, before settings that were accepted on resuming, no longer counts.
    """
    if settings.minutes is None:
        return settings.steps
    return progress.planned_steps if progress.planned_minutes == settings.minutes else None


def first_stage_steps(total: int, settings: TrainingConfig) -> int:
    """Return the steps before fine-tuning: their share is that of the epochs."""
    return max(1, round(total * settings.epochs / (settings.epochs + settings.finetune_epochs)))


def is_repeatable(progress: Progress, settings: TrainingConfig, total: int) -> bool:
    """Return True if `training.steps` with the number of steps that is planned now gives the same training.

    It does not where the schedule should have changed before the plan was made, as a cosine does from the first step.
    """
    if settings.schedule == "cosine":
        return False
    first_stage = first_stage_steps(total, settings)
    decays = settings.decay_epochs if settings.schedule == "step" else ()
    changes = [first_stage * epoch / settings.epochs for epoch in decays] + [first_stage]
    if settings.schedule == "linear":
        changes.append(first_stage * settings.decay_start)
    return progress.step <= min(changes)


def stage_is_over(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if a stage whose length is in steps has taken them, at the end of an epoch or within it."""
    total = total_steps(progress, settings)
    if total is None:
        return False
    return progress.step >= (total if progress.finetuning else first_stage_steps(total, settings))


def is_unplanned(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if the steps that fit into `training.minutes` are still to be fixed."""
    return settings.minutes is not None and total_steps(progress, settings) is None


def plan_is_due(progress: Progress, settings: TrainingConfig) -> bool:
    """Return True if it is time to fix the number of steps that fit into `training.minutes`."""
    return settings.minutes is not None and progress.seconds >= PLANNED_AFTER * 60 * settings.minutes


def fitting_steps(progress: Progress, settings: TrainingConfig, steps_per_epoch: int, validation_share: float) -> int:
    """Return the steps of the whole training that fit into `training.minutes` at the speed so far, with their validations.

    `validation_share` is the validation split's size as a share of an epoch. Before the first validation it gives its time: a
    token is scored in about a third of the time it takes to train on.
    """
    assert settings.minutes is not None
    step = (progress.seconds - progress.validation_seconds - progress.preparation_seconds) / progress.step
    done = progress.epoch - 1
    validation = progress.validation_seconds / done if done else step * steps_per_epoch * validation_share / 3
    # A validation follows every whole epoch, and the end of each stage.
    left = 60 * settings.minutes - progress.seconds - validation * (2 if settings.finetune_epochs else 1)
    return progress.step + max(1, round(left / (step + validation / steps_per_epoch)))


def begin_finetuning(progress: Progress) -> None:
    """Enter fine-tuning, with its own history and schedule, at the start of an epoch."""
    progress.finetuning, progress.history, progress.segment = True, [], 0
    progress.rate_factor, progress.waited = 1.0, 0


def position(progress: Progress, settings: TrainingConfig) -> str:
    """Return the epoch, or the step if the length is not in epochs, with the last one if it is known."""
    if not settings.has_length:
        return f"epoch {progress.epoch}/{last_epoch(progress, settings)}"
    total = total_steps(progress, settings)
    return f"step {progress.step}" + (f"/{total}" if total is not None else "")


def last_epoch(progress: Progress, settings: TrainingConfig) -> int:
    """Return the last epoch there can be."""
    trained = progress.epoch - 1 - len(progress.history) if progress.finetuning else settings.epochs
    return trained + settings.finetune_epochs
