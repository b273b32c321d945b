"""The training loop: truncated backpropagation through time, validation after every epoch, checkpoints at step boundaries."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backstory.config import NonFiniteError, RunConfig, to_dict
from backstory.models import ComposedModel, Precision, clone, detach, to, unflatten
from backstory.models.loading import corpus_places, load_weights, weights
from backstory.reading import StaticReader, read
from backstory.storage.checkpoint import drop_checkpoint, newest_checkpoint, rotate_checkpoints, write_checkpoint
from backstory.text import Dataset
from backstory.text.streams import piece, rotations, rows, segment_bounds
from backstory.training import stages
from backstory.training.checkpointing import Progress, pack, unpack_optimizer, unpack_random
from backstory.training.display import Display
from backstory.training.metrics import MetricsLog
from backstory.training.objectives import Likelihood
from backstory.training.optimizers import WeightAverage, build_optimizer
from backstory.training.run_folder import RunFolder, config_hash
from backstory.training.stopping import StopRequest

WINDOW = 20
"""Steps that one line of metrics.jsonl sums up."""


@dataclass
class Trainer:
    """A run in memory; `train` takes it from wherever it stands to its end, a stop, or an error."""

    config: RunConfig
    dataset: Dataset
    folder: RunFolder
    model: ComposedModel
    device: torch.device
    precision: Precision
    data_dir: Path | None = None
    """Where the corpus was found; readers of the run look there first."""

    def __post_init__(self) -> None:
        settings = self.config.training
        self.objective = Likelihood(settings.activation_l2, settings.temporal_l2)
        self.optimizer = build_optimizer(self.model.parameters(), settings)
        self.parameters: list[nn.Parameter] = list(self.model.parameters())
        self.average: WeightAverage | None = None
        self.progress = Progress()
        self.state = self.model.start(settings.batch_size)
        self.rows = rows(self.dataset.splits["train"].ids, settings.batch_size)
        self.saved_at = time.monotonic()
        if settings.averaging == "always" and settings.optimizer == "sgd":
            self.average = WeightAverage(self.parameters)

    # Where it stands, and back to it.

    def restore(self, progress: Progress, tensors: dict[str, dict[str, Tensor]]) -> None:
        """Go back to a checkpoint, and on to fine-tuning or the end if the settings (accepted ones) now say so.

        Raises ValueError when it is not one of this model.
        """
        self.progress = progress
        load_weights(self.model, tensors["weights"])
        unpack_optimizer(self.optimizer, self.model, tensors["optimizer"])
        self.average = None
        if self.progress.averaged is not None:
            self.average = WeightAverage(self.parameters)
            self.average.count = self.progress.averaged
            names = [name for name, _ in self.model.named_parameters()]
            self.average.means = [tensors["average"][name].to(self.device) for name in names]
        self.state = to(
            clone(unflatten(self.model.start(self.config.training.batch_size), tensors["state"])), self.device
        )
        unpack_random(tensors["random"])
        self._enter_stage()

    def save(self, log: MetricsLog) -> None:
        """Write the checkpoint of this step; then drop all but the last two, and all but the best weights that it knows of.

        Raises NonFiniteError rather than save weights that no rate of learning could go on from.
        """
        if not torch.stack([p.isfinite().all() for p in self.parameters]).all():
            raise self._broken_down(f"step {self.progress.step}: the update left weights that are not finite")
        self.progress.log_bytes = log.position()
        self.progress.averaged = None if self.average is None else self.average.count
        documents = {
            "progress": {
                "progress": vars(self.progress),
                "config": config_hash(self.config),
                "corpus": self.dataset.fingerprint,
            }
        }
        tensors = pack(self.model, self.optimizer, self.average, self.state)
        saved = write_checkpoint(self.folder.checkpoints, f"last-{self.progress.step}", tensors, documents)
        rotate_checkpoints(saved, keep=2)
        self.drop_other_best()
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Write the weights as they are now (the average, while it is applied), with what is needed to read with them."""
        places = corpus_places(self.config.text, self.data_dir)
        described = {"config": to_dict(self.config), "corpus": self.dataset.describe(), "places": places}
        documents = {"model": described, "vocabulary": self.dataset.vocabulary.to_json()}
        # The best one before stays until a checkpoint knows of this one: a run that is resumed from before may miss it.
        write_checkpoint(
            self.folder.checkpoints, f"best-{self.progress.epoch}", {"weights": weights(self.model)}, documents
        )

    def drop_other_best(self) -> None:
        """Keep only the best weights that the saved progress names."""
        if self.progress.best_epoch:
            rotate_checkpoints(self.folder.checkpoints / f"best-{self.progress.best_epoch}", keep=1)

    # The epochs.

    def train(self, log: MetricsLog, display: Display, stop: StopRequest) -> None:
        """Train to the end, or until `stop` is requested; a checkpoint stands when it returns. Raises NonFiniteError."""
        while not self.progress.finished and not stop.requested:
            starts, bounds = self._plan()
            for first, last in bounds[self.progress.segment :]:
                self._segment(starts, first, last, len(bounds), log, display)
                if stop.requested:
                    break
                if time.monotonic() - self.saved_at > 60 * self.config.training.save_minutes:
                    self.save(log)
            if self.progress.segment >= len(bounds):  # beyond, where an accepted corpus is shorter than the one before
                self._end_of_epoch(log, display)
            self.save(log)

    def _plan(self) -> tuple[np.ndarray | None, list[tuple[int, int]]]:
        """Where the epoch's rows begin (if shuffled) and its segments; of seed and epoch alone, so resuming repeats it."""
        settings, generator = self.config.training, np.random.default_rng([self.config.seed, self.progress.epoch])
        bounds = segment_bounds(
            self.rows.shape[1],
            settings.segment,
            settings.segment_deviation,
            settings.minimum_segment,
            settings.short_probability,
            generator,
        )
        return (rotations(self.rows, generator) if settings.partial_shuffle else None), bounds

    def _segment(
        self, starts: np.ndarray | None, first: int, last: int, segments: int, log: MetricsLog, display: Display
    ) -> None:
        settings, progress = self.config.training, self.progress
        if progress.segment == 0:
            self.state = self.model.start(settings.batch_size)
            progress.begin_epoch()
        began = time.perf_counter()
        text = torch.from_numpy(piece(self.rows, first, last + 1, starts)).to(self.device)
        rate = self._rate() * (last - first) / settings.segment
        figures = self._step(text[:, :-1], text[:, 1:], rate)
        progress.take(figures, text[:, 1:].numel(), time.perf_counter() - began)
        if progress.segment % WINDOW == 0 or progress.segment == segments:
            self._end_of_window(rate, log, display)

    def _rate(self) -> float:
        """The learning rate of a segment of mean length, as stage and schedule have it."""
        return stages.learning_rate(self.progress, self.config.training)

    def _step(self, inputs: Tensor, targets: Tensor, rate: float) -> dict[str, float]:
        """One update; returns the objective's figures. Raises NonFiniteError before the weights are touched."""
        settings = self.config.training
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        with self.precision.context(self.device):
            prediction, self.state = self.model(inputs, detach(self.state))
            loss, figures = self.objective(prediction, targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.parameters, settings.clip or math.inf, foreach=True)
        # All in one: on a GPU every number that is fetched by itself waits for the device.
        values = torch.stack([loss.detach(), norm, *figures.values()]).tolist()
        if not all(map(math.isfinite, values)):
            named = zip(("loss", "norm of the gradient", *figures), values, strict=True)
            told = ", ".join(f"{name} {value}" for name, value in named)
            raise self._broken_down(f"step {self.progress.step + 1}: {told}; stopped before the update")
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("scale", 1.0)  # a part of the model may have a rate of its own
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return dict(zip(figures, values[2:], strict=True))

    def _broken_down(self, problem: str) -> NonFiniteError:
        """The error that tells of it and of what to do.

        A checkpoint of these very weights goes, if there is a whole one before it: it would break down at once, again.
        """
        remedy = "Start again with --overwrite and a smaller --training.learning-rate"
        if drop_checkpoint(self.folder.checkpoints / f"last-{self.progress.step}"):
            remedy = (
                "The last good checkpoint is whole: go on with --resume, --accept config, "
                "a smaller --training.learning-rate"
            )
        return NonFiniteError(f"{problem}. {remedy}")

    def _end_of_window(self, rate: float, log: MetricsLog, display: Display) -> None:
        progress = self.progress
        figures, tokens = _means(progress.window_sums, progress.window_tokens), progress.window_tokens
        speed = tokens / progress.window_seconds
        values = {"step": progress.step, "epoch": progress.epoch, **figures, "tokens": tokens}
        log.write("steps", **values, learning_rate=rate, tokens_per_second=round(speed, 1))
        last = stages.last_epoch(progress, self.config.training)
        display.step(f"epoch {progress.epoch}/{last}", tokens, figures["nats"], speed)
        progress.begin_window()

    def _end_of_epoch(self, log: MetricsLog, display: Display) -> None:
        progress, settings = self.progress, self.config.training
        averaging = self.average is not None and self.average.count > 0
        began = time.perf_counter()
        nats, best = self._validate()
        progress.seconds += time.perf_counter() - began
        figures = _means(progress.epoch_sums, progress.epoch_tokens)
        values: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train_nats": figures.pop("nats"),
            "valid_nats": nats,
            "valid_perplexity": math.exp(min(nats, 700)),
            "learning_rate": self._rate(),
            "averaging": averaging,
            "finetuning": progress.finetuning,
            "seconds": round(progress.seconds, 1),
            "tokens_per_second": round(progress.epoch_tokens / progress.epoch_seconds, 1),
            "best": best,
            **figures,
        }
        log.write("epoch", **values)
        display.epoch(values)
        stages.end_epoch(progress, settings, nats, best)
        if self.average is None and stages.averaging_due(progress, settings):
            self.average = WeightAverage(self.parameters)
        self._enter_stage()

    def _validate(self) -> tuple[float, bool]:
        """Mean nats on the validation split, with the averaged weights if there are any; saves them if they are the best."""
        words, progress = self.dataset.vocabulary, self.progress
        with self.average.applied() if self.average is not None else nullcontext():
            reader = StaticReader(self.model, self.precision)
            ids = self.dataset.splits["valid"].ids
            try:
                nats = read(reader, ids, words.start, rows=self.config.training.validation_rows).nats
            except NonFiniteError:  # told with the epoch and what to do
                raise self._broken_down(f"epoch {progress.epoch}: the validation loss is nan") from None
            best = progress.best_nats is None or nats < progress.best_nats
            if best:
                progress.best_nats, progress.best_epoch = nats, progress.epoch
                self._save_best()
        return nats, best

    def _enter_stage(self) -> None:
        """Go on to fine-tuning, or to the end, where it is due."""
        if stages.finetuning_due(self.progress, self.config.training):
            self._begin_finetuning()
        self.progress.finished = stages.finished(self.progress, self.config.training)

    def _begin_finetuning(self) -> None:
        """Averaged SGD from the best weights, from its first step on (Merity et al. 2018, section 4)."""
        best = newest_checkpoint(self.folder.checkpoints, "best", frozenset({"weights"}))
        if best is not None:
            load_weights(self.model, best.tensors["weights"])
        self.optimizer = build_optimizer(self.parameters, self.config.training)
        self.average = WeightAverage(self.parameters)
        stages.begin_finetuning(self.progress)


def _means(sums: dict[str, float], tokens: int) -> dict[str, float]:
    return {name: total / tokens for name, total in sums.items()}
