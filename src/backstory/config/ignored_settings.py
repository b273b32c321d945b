"""Settings of a run that have no effect beside its other settings, and the warning where a user sets one all the same."""

import warnings
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from backstory.config.model_parts import AuxiliarySoftmaxConfig, SpanBufferConfig
from backstory.config.schema import ModelConfig, RunConfig, TrainingConfig

OFF = (None, 0, "none", ())
"""Values that turn something off: where it has no effect, it is off as requested."""
_CUT = ("auto", "words", "regex", "characters", "marked-characters")
"""Tokenizers whose vocabulary is built from the training text, and `auto`, which may be one."""
_OF_FINETUNING = (
    "training.finetune_learning_rate",
    "model.embedding.finetune_noise",
    "model.head.finetune_adversarial",
)


def ignored_settings(config: RunConfig) -> dict[str, str]:
    """Return the settings, by dotted name, that change neither text, model nor training, with the reason and the remedy.

    The reason completes the sentence `training.decay_patience has no effect with ...`. A core names its own by a method of its
    settings, `ignored_settings(output)`.
    """
    model, training = config.model, config.training
    core = getattr(model.core, "ignored_settings", lambda output: {})  # the settings of a plugin need none
    parts = {"model.core": core(model.core_output), "training": _of_training(training)}
    if isinstance(model.buffer, SpanBufferConfig | AuxiliarySoftmaxConfig):
        parts["model.buffer"] = _of_buffer(model.buffer)
    ignored = {f"{part}.{name}": reason for part, reasons in parts.items() for name, reason in reasons.items()}
    if config.text.tokenizer not in _CUT and config.text.minimum_count > 1:
        reason = (
            f"with text.tokenizer {config.text.tokenizer}, which has a vocabulary of its own; choose words or regex"
        )
        ignored["text.minimum_count"] = reason
    if model.initial is not None:
        ignored |= _of_initial_weights(model)
    if not model.head.sampled:
        ignored["model.head.frequent"] = "without a sampled softmax; set model.head.sampled"
    if not training.finetune_epochs:
        ignored |= dict.fromkeys(_OF_FINETUNING, "without fine-tuning; set training.finetune_epochs")
    return ignored


def warn_ignored(config: RunConfig, names: Mapping[str, str]) -> None:
    """Warn of the settings that a user set and that have no effect; `names` are what the user calls each of those set."""
    for name, reason in ignored_settings(config).items():
        if name in names and reduce(getattr, name.split("."), config) not in OFF:
            warnings.warn(f"{names[name]} has no effect {reason}", stacklevel=3)


def dotted_names(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting in nested dictionaries, whose keys may be dotted too."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from dotted_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _of_initial_weights(model: ModelConfig) -> dict[str, str]:
    names = ["model.core.initialisation"] if hasattr(model.core, "initialisation") else []
    if model.embedding.initialisation == "random":  # vectors from counts have the deviation of U(-initial, initial)
        names.append("model.embedding.initial")
    if getattr(model.buffer, "attention", None) == "bilinear":
        names.append("model.buffer.theta")
    return dict.fromkeys(names, "with model.initial, which initialises all weights; set that to none")


def _of_training(settings: TrainingConfig) -> dict[str, str]:
    ignored, schedule = {}, settings.schedule
    steps_down = schedule == "step" and bool(settings.decay_epochs)
    if schedule != "plateau" and not steps_down:
        remedy = "set training.decay_epochs" if schedule == "step" else "choose plateau or step"
        ignored["decay_factor"] = f"with training.schedule {schedule}; {remedy}"
    of_one = (("decay_patience", "plateau"), ("decay_epochs", "step"), ("decay_start", "linear"))
    for name, its_schedule in of_one:
        if schedule != its_schedule:
            ignored[name] = f"with training.schedule {schedule}; choose {its_schedule}"
    if settings.has_length and not settings.finetune_epochs and not steps_down:
        length = "minutes" if settings.steps is None else "steps"
        ignored["epochs"] = f"with training.{length}, which gives the length; set that to none"
    if settings.optimizer != "sgd":
        ignored["averaging"] = f"with training.optimizer {settings.optimizer}; choose sgd"
    averages = settings.averaging == "triggered" and settings.optimizer == "sgd"
    if not averages and (settings.has_length or not settings.finetune_epochs):
        ignored["trigger"] = "without training.averaging triggered (of sgd) or a fine-tuning of epochs; set one"
    if not settings.segment_deviation and settings.minimum_segment >= settings.segment:
        ignored["short_probability"] = "with segments of fixed length; lower training.minimum_segment"
    if settings.batch_size == 1:
        ignored["accumulate"] = "with one row; raise training.batch_size"
    return ignored


def _of_buffer(buffer: SpanBufferConfig | AuxiliarySoftmaxConfig) -> dict[str, str]:
    ignored, gate = {}, buffer.gate
    if isinstance(buffer, SpanBufferConfig):
        if buffer.vectors == "words":
            ignored["span"] = "with model.buffer.vectors words; choose vectors of spans"
        if buffer.attention == "bilinear":
            ignored["attention_size"] = "with model.buffer.attention bilinear; choose another"
    if not gate.rate:
        ignored["gate.after"] = "with model.buffer.gate.rate 0; raise that"
    if not gate.reward.weight:
        of_ratio, why = ("power", "ceiling", "baseline", "slope"), "with model.buffer.gate.reward.weight 0"
        ignored["gate.reward.floor"] = f"{why}; raise that"
        ignored |= {f"gate.reward.{name}": f"on training {why} (on figures alone); raise that" for name in of_ratio}
    return ignored
