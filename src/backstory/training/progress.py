"""Progress of a training, and the decisions after a validation: schedule, averaging trigger, fine-tuning, end.

The end of a stage follows from the epochs done and the current settings, and is never stored: settings that were accepted
on resuming may have more epochs or fewer. Where the settings give a length in minutes or steps, the stages keep their shares of
it, and their ends and the step schedule follow from the steps done.
"""

import math
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from backstory.config import ModelConfig, TrainingConfig
from backstory.config.errors import shown
from backstory.storage.documents import conforms
from backstory.training.optimizers import non_monotonic

PLANNED_AFTER = 0.25
"""Share of `training.minutes` after which the steps of the whole training are fixed."""


@dataclass
class Progress:
    """Position of a run, and every plain number that it needs to continue."""

    finetuning: bool = False
    epoch: int = 1
    """The epoch being trained, counted from 1 through fine-tuning."""
    segment: int = 0
    """Segments of the epoch done."""
    step: int = 0
    """Steps of the optimizer done."""
    rate_factor: float = 1.0
    """Product of the schedule's decays of the learning rate."""
    best_nats: float | None = None
    best_epoch: int = 0
    """Validation and epoch of the weights that are kept: the best, or the last ones (`training.keep`)."""
    waited: int = 0
    """Epochs since validation improved or the rate decayed."""
    history: list[float] = field(default_factory=list)
    """Validation nats after each epoch of this stage (the averaging trigger's memory)."""
    epoch_sums: dict[str, float] = field(default_factory=dict)
    epoch_tokens: int = 0
    epoch_seconds: float = 0.0
    window_sums: dict[str, float] = field(default_factory=dict)
    window_tokens: int = 0
    window_seconds: float = 0.0
    """Since the start of the epoch, and since the last line of the log: the objective's figures summed over tokens, by name."""
    seconds: float = 0.0
    """Time spent on training and validation so far."""
    validation_seconds: float = 0.0
    """Time spent on validation alone."""
    preparation_seconds: float = 0.0
    """Time spent before the first step, on word vectors from counts."""
    planned_steps: int | None = None
    """Steps of the whole training, once they are planned to fit into `training.minutes`."""
    planned_minutes: float | None = None
    """The minutes that they were planned for."""
    averaged: int | None = None
    """Steps in the average of the weights; None while there is none."""
    log_bytes: int = 0
    """Length of metrics.jsonl at the save."""
    finished: bool = False

    @classmethod
    def read(cls, document: Any) -> "Progress":
        """Parse saved progress. Raises ValueError for anything that no run of this version can have saved."""
        hints = get_type_hints(cls)
        if isinstance(document, dict):  # earlier versions did not plan, or did not time all parts
            times = {"validation_seconds": 0.0, "preparation_seconds": 0.0}
            document = {**times, "planned_steps": None, "planned_minutes": None, **document}
        if not isinstance(document, dict) or document.keys() != hints.keys():
            raise ValueError("the saved progress is not of this version")
        for name, hint in hints.items():
            if not conforms(document[name], hint):
                raise ValueError(f"the saved {name} is {shown(document[name])}")
        progress = cls(**document)
        progress._check()
        return progress

    def _check(self) -> None:
        """Raise ValueError for numbers that cannot be those of one run."""
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, int | float)}
        lists = {
            "history": self.history,
            "epoch_sums": self.epoch_sums.values(),
            "window_sums": self.window_sums.values(),
        }
        wrong = [n for n, value in numbers.items() if not (0 if type(value) is int else -(2**53)) <= value < 2**53]
        wrong += [name for name, values in lists.items() if any(abs(value) >= 2**53 for value in values)]
        validated = self.epoch - 1  # epochs; the history of fine-tuning has only its own
        possible = {
            "epoch": self.epoch >= 1,
            "segment": self.segment <= self.step,
            "rate_factor": 0 <= self.rate_factor <= 1,
            "best_nats": (self.best_nats is None) == (validated == 0),
            "best_epoch": (self.best_epoch >= 1) == (validated > 0) and self.best_epoch <= validated,
            "waited": self.waited <= validated,
            "history": len(self.history) < validated if self.finetuning else len(self.history) == validated,
            "averaged": self.averaged is not None or not self.finetuning,
            "epoch_tokens": not self.segment or (self.epoch_tokens > 0 and self.epoch_seconds > 0),
            "window_tokens": self.window_tokens <= self.epoch_tokens,
            "window_sums": self.window_sums.keys() <= self.epoch_sums.keys(),
            "seconds": min(self.seconds, self.epoch_seconds, self.window_seconds) >= 0,
        }
        if wrong := wrong + [name for name, holds in possible.items() if not holds]:
            raise ValueError(f"the saved {wrong[0]} is {shown(getattr(self, wrong[0]))}")

    def take(self, figures: dict[str, float], tokens: int, seconds: float) -> None:
        """Add a step: its figures (means per token), its tokens and the time it took."""
        self.segment, self.step, self.seconds = self.segment + 1, self.step + 1, self.seconds + seconds
        self.epoch_tokens, self.epoch_seconds = self.epoch_tokens + tokens, self.epoch_seconds + seconds
        self.window_tokens, self.window_seconds = self.window_tokens + tokens, self.window_seconds + seconds
        for sums in (self.epoch_sums, self.window_sums):
            for name, value in figures.items():
                sums[name] = sums.get(name, 0.0) + value * tokens

    def begin_epoch(self) -> None:
        """Start the sums of an epoch."""
        self.epoch_sums, self.epoch_tokens, self.epoch_seconds = {}, 0, 0.0
        self.begin_window()

    def begin_window(self) -> None:
        """Start the sums of the next line of the log."""
        self.window_sums, self.window_tokens, self.window_seconds = {}, 0, 0.0


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
