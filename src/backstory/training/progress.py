"""Progress of a training: its position and every plain number that it needs to continue, saved with each checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from backstory.storage.documents import conforms
from backstory.training.objectives import ANSWER_SHARE
from backstory.utils.errors import shown


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

    def epoch_means(self) -> dict[str, float]:
        """Return the objective's figures since the start of the epoch, by name."""
        return means(self.epoch_sums, self.epoch_tokens)

    def window_means(self) -> dict[str, float]:
        """Return the objective's figures since the last line of the log, by name."""
        return means(self.window_sums, self.window_tokens)

    def window_nats(self) -> float | None:
        """Return the mean nats since the last line of the log; None if only answers are trained on, and there was none."""
        return None if self.window_sums.get(ANSWER_SHARE) == 0 else self.window_means()["nats"]

    def begin_epoch(self) -> None:
        """Start the sums of an epoch."""
        self.epoch_sums, self.epoch_tokens, self.epoch_seconds = {}, 0, 0.0
        self.begin_window()

    def begin_window(self) -> None:
        """Start the sums of the next line of the log."""
        self.window_sums, self.window_tokens, self.window_seconds = {}, 0, 0.0


def means(sums: Mapping[str, float], tokens: int) -> dict[str, float]:
    """Return means per token; if only answers are trained on, per answer token, except for the share of answers."""
    counted = sums.get(ANSWER_SHARE, tokens) or 1.0
    return {name: total / (tokens if name == ANSWER_SHARE else counted) for name, total in sums.items()}
