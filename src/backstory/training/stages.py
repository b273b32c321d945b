"""What follows a validation: the schedule, the averaging trigger, fine-tuning and the end, of progress and settings alone.

Whether a stage is over is asked of the epochs done and the settings as they now are, never remembered: settings that were
accepted on resuming may ask for more epochs or fewer.
"""

from backstory.config import TrainingConfig, UserError
from backstory.training.checkpointing import Progress
from backstory.training.optimizers import non_monotonic


def check_settings(settings: TrainingConfig) -> None:
    """Raise UserError for an optimizer that cannot do what the stages need of it: averaged SGD is SGD."""
    if settings.optimizer == "sgd":
        return
    if settings.finetune_epochs:
        raise UserError(
            "training.finetune_epochs, epochs of averaged SGD, need training.optimizer sgd, "
            f"not {settings.optimizer}; set them to 0 or take sgd"
        )
    if settings.averaging == "always":
        raise UserError(
            f"training.averaging always, averaged SGD, needs training.optimizer sgd, not {settings.optimizer}; "
            "set it to none or take sgd"
        )


def learning_rate(progress: Progress, settings: TrainingConfig) -> float:
    """The learning rate of a segment of mean length."""
    return _of_stage(progress, settings.learning_rate, settings.finetune_learning_rate) * progress.rate_factor


def adversarial(progress: Progress, settings: TrainingConfig) -> float:
    """The radius of adversarial training, relative to the target's output weights; 0 for none."""
    return _of_stage(progress, settings.adversarial, settings.finetune_adversarial)


def embedding_noise(progress: Progress, settings: TrainingConfig) -> float:
    """The standard deviation of the noise on the embedded words; 0 for none."""
    return _of_stage(progress, settings.embedding_noise, settings.finetune_embedding_noise)


def _of_stage(progress: Progress, before: float, tuned: float | None) -> float:
    return tuned if progress.finetuning and tuned is not None else before


def end_epoch(progress: Progress, settings: TrainingConfig, nats: float, best: bool) -> None:
    """Take a validation into the history and the schedule, and go to the next epoch."""
    progress.history.append(nats)
    progress.waited = 0 if best else progress.waited + 1
    plateau = settings.schedule == "plateau" and progress.waited > settings.decay_patience
    if plateau or (settings.schedule == "step" and progress.epoch in settings.decay_epochs):
        progress.rate_factor *= settings.decay_factor
        progress.waited = 0
    progress.epoch, progress.segment = progress.epoch + 1, 0


def stalled(progress: Progress, settings: TrainingConfig) -> bool:
    """Whether the newest validation is worse than the best of all but the last n before it."""
    history = progress.history
    return bool(history) and non_monotonic(history[:-1], history[-1], settings.trigger)


def averaging_due(progress: Progress, settings: TrainingConfig) -> bool:
    """Whether the trigger of NT-ASGD asks for averaging after the newest validation."""
    return settings.averaging == "triggered" and settings.optimizer == "sgd" and stalled(progress, settings)


def finetuning_due(progress: Progress, settings: TrainingConfig) -> bool:
    """Whether the run moves on to fine-tuning where it stands."""
    return not progress.finetuning and progress.epoch > settings.epochs and settings.finetune_epochs > 0


def finished(progress: Progress, settings: TrainingConfig) -> bool:
    """Whether nothing is left to train. Epochs of fine-tuning are counted by the history, which began with them."""
    if progress.finetuning:
        return stalled(progress, settings) or len(progress.history) >= settings.finetune_epochs
    return progress.epoch > settings.epochs and not settings.finetune_epochs


def begin_finetuning(progress: Progress) -> None:
    """A history and a schedule of its own, from the start of an epoch on."""
    progress.finetuning, progress.history, progress.segment = True, [], 0
    progress.rate_factor, progress.waited = 1.0, 0


def last_epoch(progress: Progress, settings: TrainingConfig) -> int:
    """The last epoch that there may be."""
    trained = progress.epoch - 1 - len(progress.history) if progress.finetuning else settings.epochs
    return trained + settings.finetune_epochs
