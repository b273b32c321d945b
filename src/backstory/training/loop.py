"""The training loop: truncated backpropagation through time, validation after every epoch, checkpoints at step boundaries."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backstory.config import NonFiniteError, RunConfig, UserError, to_dict
from backstory.config.process import StopRequest
from backstory.config.scores import perplexity
from backstory.data import Dataset
from backstory.data.streams import piece, rotations, rows, segment_bounds
from backstory.evaluation.metrics import AnswerAccuracy, GateStatistics, MetricSet
from backstory.evaluation.reading_loop import StreamReading
from backstory.models import ComposedModel, Precision, State, clone, to, unflatten
from backstory.readers import StaticReader
from backstory.runs.run import corpus_places, load_weights, weights
from backstory.runs.run_folder import RunFolder
from backstory.storage.checkpoint import (
    DamagedCheckpoint,
    drop_checkpoint,
    newest_checkpoint,
    rotate_checkpoints,
    write_checkpoint,
)
from backstory.training import progress as stages
from backstory.training.checkpointing import (
    check_files,
    pack,
    pack_rank,
    rank_suffix,
    unpack_average,
    unpack_optimizer,
    unpack_random,
)
from backstory.training.distributed import Ranks
from backstory.training.events import Events
from backstory.training.gradients import LOSS, NORM, Eager, Gradient, Recorded
from backstory.training.objectives import ASKED, build_objective
from backstory.training.optimizers import WeightAverage, build_optimizer, parameter_groups
from backstory.training.progress import Progress
from backstory.training.progress_display import Display

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
    ranks: Ranks = field(default_factory=Ranks)
    """This process among those that train together."""

    def __post_init__(self) -> None:
        settings = self.config.training
        self.optimizer = build_optimizer(parameter_groups(self.model), settings)
        self.parameters: list[nn.Parameter] = list(self.model.parameters())
        self.average: WeightAverage | None = None
        self.progress = Progress()
        self._take_stage()
        self.share = self.ranks.share(settings.batch_size)
        self.rows, self.asked = self._rows()
        self.state = self._start()
        self.saved_at = time.monotonic()
        if settings.averaging == "always" and settings.optimizer == "sgd":
            self.average = WeightAverage(self.parameters)

    # Where it stands, and back to it.

    def restore(self, progress: Progress, tensors: dict[str, dict[str, Tensor]], settings_kept: bool = True) -> None:
        """Go back to a checkpoint, and on to fine-tuning or the end if the settings (accepted ones) now say so.

        `settings_kept` says that it was made with these settings. Raises ValueError when it is not one of this model.
        """
        check_files(tensors, progress.averaged is not None, self.ranks.world)
        if progress.segment and progress.epoch_sums.keys() != set(self.objective.figures):
            raise ValueError(f"it sums {', '.join(sorted(progress.epoch_sums))}")
        self.progress = progress
        load_weights(self.model, tensors["weights"])
        unpack_optimizer(self.optimizer, self.model, tensors["optimizer"], progress.step, settings_kept)
        self.average = None
        if progress.averaged is not None:
            self.average = WeightAverage(self.parameters)
            unpack_average(self.average, self.model, tensors["average"], progress.averaged)
        suffix = rank_suffix(self.ranks.rank)
        self.state = to(clone(unflatten(self._start(), tensors[f"state{suffix}"])), self.device)
        unpack_random(tensors[f"random{suffix}"], self.device)
        self._take_stage()
        self._enter_stage()

    def save(self, log: Events) -> None:
        """Write the checkpoint of this step; then drop all but the last two, and all but the best weights that it knows of.

        Every rank takes part, the first writes. Raises NonFiniteError rather than save weights that no rate of learning
        could go on from.
        """
        if not torch.stack([p.isfinite().all() for p in self.parameters]).all():
            raise self._broken_down(f"step {self.progress.step}: the update left weights that are not finite")
        self.saved_at = time.monotonic()
        of_ranks = self.ranks.gather(pack_rank(self.state, self.device))
        if not self.ranks.first:
            return
        self.progress.log_bytes = log.position()
        self.progress.averaged = None if self.average is None else self.average.count
        documents = {
            "progress": {
                "progress": vars(self.progress),
                "config": to_dict(self.config),
                "corpus": self.dataset.fingerprint,
                "ranks": self.ranks.world,
            }
        }
        tensors = pack(self.model, self.optimizer, self.average, of_ranks)
        self.folder.check_in_place()
        saved = write_checkpoint(self.folder.checkpoints, f"last-{self.progress.step}", tensors, documents)
        rotate_checkpoints(saved, keep=2)
        self.drop_other_best()
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Write the weights as they are now (the average, while it is applied), with what is needed to read with them."""
        places = corpus_places(self.config.text, self.data_dir)
        described = {"config": to_dict(self.config), "corpus": self.dataset.describe(), "places": places}
        documents = {"model": described, "vocabulary": self.dataset.vocabulary.to_json()}
        self.folder.check_in_place()
        # The best one before stays until a checkpoint knows of this one: a run that is resumed from before may miss it.
        write_checkpoint(
            self.folder.checkpoints, f"best-{self.progress.epoch}", {"weights": weights(self.model)}, documents
        )

    def drop_other_best(self) -> None:
        """Keep only the best weights that the saved progress names."""
        if self.progress.best_epoch:
            rotate_checkpoints(self.folder.checkpoints / f"best-{self.progress.best_epoch}", keep=1)

    # The epochs.

    def train(self, log: Events, display: Display, stop: StopRequest) -> None:
        """Train to the end, or until `stop` is requested; a checkpoint stands when it returns. Raises NonFiniteError."""
        if self.progress.finished:
            return
        model, finetuning = self.ranks.parallel(self.model), None
        while not self.progress.finished and not self._agreed(stop)[0]:
            self.rows, self.asked = self._rows()
            if self.progress.finetuning != finetuning:  # what is recorded on a GPU is of one stage
                self.gradient, finetuning = self._prepare(model), self.progress.finetuning
            starts, bounds = self._plan()
            for first, last in bounds[self.progress.segment :]:
                self._segment(starts, first, last, len(bounds), log, display)
                due = time.monotonic() - self.saved_at > 60 * self.config.training.save_minutes
                stopping, due = self._agreed(stop, due)
                if stopping:
                    break
                if due:
                    self.save(log)
            if self.progress.segment >= len(bounds):  # beyond, where an accepted corpus is shorter than the one before
                self._end_of_epoch(log, display)
            self.save(log)

    def _agreed(self, stop: StopRequest, due: bool = False) -> tuple[bool, bool]:
        """Whether any rank was asked to stop, and whether any finds a checkpoint due: all of them do the same."""
        signal, due_anywhere = self.ranks.largest(stop.signal or 0, due)
        if signal and stop.signal is None:  # never set back: one may have come meanwhile, and counts the next time
            stop.signal = int(signal)
        return bool(signal), bool(due_anywhere)

    def _start(self) -> State:
        """The state before the first token of this rank's rows."""
        return self.model.start(self.share.stop - self.share.start)

    def _take_stage(self) -> None:
        """Train for what the stage asks of objective and model."""
        self.objective = build_objective(self.config, stages.adversarial(self.progress, self.config.model))
        self.model.embedding.noise = stages.embedding_noise(self.progress, self.config.model)

    def _prepare(self, model: nn.Module) -> Gradient:
        """What computes the gradients of a stage, of a model that averages them over the ranks if there are any."""
        eager = Eager(model, self.parameters, self.objective, self.precision, self.config.training.clip)
        if self.ranks.world == 1:
            return Recorded(eager) if self.device.type == "cuda" else eager
        # What averages the gradients arranges them anew after its first step. That is a step for nothing, so that a
        # resumed run adds up in the order of one that ran through.
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            eager(self._text(None, 0, 1), self._start(), self._asked(None, 0, 1))
        return eager

    def _rows(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The epoch's text in rows (batch, length), as long in every epoch; of seed and epoch alone, so resuming repeats it.

        With them what is asked in them (batch, length), where only that is trained on.
        """
        ids, settings = self.dataset.epoch(self.progress.epoch), self.config.training
        asked = rows(self.dataset.answer_mask(ids), settings.batch_size) if settings.answer_loss_only else None
        return rows(ids, settings.batch_size), asked

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
        self, starts: np.ndarray | None, first: int, last: int, segments: int, log: Events, display: Display
    ) -> None:
        settings, progress = self.config.training, self.progress
        if progress.segment == 0:
            self.state = self._start()
            progress.begin_epoch()
        began = time.perf_counter()
        rate = self._rate() * (last - first) / settings.segment
        figures = self._step(self._text(starts, first, last), self._asked(starts, first, last), rate)
        progress.take(figures, settings.batch_size * (last - first), time.perf_counter() - began)
        if progress.segment % WINDOW == 0 or progress.segment == segments:
            self._end_of_window(rate, log, display)

    def _text(self, starts: np.ndarray | None, first: int, last: int) -> Tensor:
        """Inputs `first` to `last` (exclusive) of this rank's rows, and the target after them: (B, T + 1)."""
        return torch.from_numpy(self._cut(self.rows, starts, first, last + 1)).to(self.device)

    def _asked(self, starts: np.ndarray | None, first: int, last: int) -> Tensor | None:
        """Which of the targets of those inputs are asked, (B, T); None where all are trained on."""
        if self.asked is None:
            return None
        return torch.from_numpy(self._cut(self.asked, starts, first + 1, last + 1) > 0).to(self.device)

    def _cut(self, of_epoch: np.ndarray, starts: np.ndarray | None, first: int, last: int) -> np.ndarray:
        mine = None if starts is None else starts[self.share]
        return piece(of_epoch[self.share], first, last, mine)

    def _rate(self) -> float:
        """The learning rate of a segment of mean length, as stage and schedule have it."""
        return stages.learning_rate(self.progress, self.config.training)

    def _step(self, text: Tensor, asked: Tensor | None, rate: float) -> dict[str, float]:
        """One update; returns the objective's figures. Raises NonFiniteError before the weights are touched."""
        figures, self.state = self.gradient(text, self.state, asked)
        # All in one: on a GPU every number that is fetched by itself waits for the device. The norm is of mean gradients.
        values = self.ranks.mean(torch.stack(list(figures.values()))).tolist()
        if not all(map(math.isfinite, values)):
            told = ", ".join(f"{name} {value}" for name, value in zip(figures, values, strict=True))
            raise self._broken_down(f"step {self.progress.step + 1}: {told}; stopped before the update")
        for group in self.optimizer.param_groups:
            # A part of the model may have a rate of its own, and begin to learn later.
            group["lr"] = rate * group.get("scale", 1.0) * (self.progress.epoch > group.get("after", 0))
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return {name: value for name, value in zip(figures, values, strict=True) if name not in (LOSS, NORM)}

    def _broken_down(self, problem: str) -> NonFiniteError:
        """The error that tells of it and of what to do.

        A checkpoint of these very weights goes, if there is a whole one before it: it would break down at once, again.
        """
        remedy = "Start again with --overwrite and a smaller --training.learning-rate"
        if self.ranks.first and drop_checkpoint(self.folder.checkpoints / f"last-{self.progress.step}"):
            remedy = (
                "The last good checkpoint is whole: go on with --resume, --accept config, "
                "a smaller --training.learning-rate"
            )
        return NonFiniteError(f"{problem}. {remedy}")

    def _end_of_window(self, rate: float, log: Events, display: Display) -> None:
        progress = self.progress
        figures, tokens = _means(progress.window_sums, progress.window_tokens), progress.window_tokens
        speed = tokens / progress.window_seconds
        values = {"step": progress.step, "epoch": progress.epoch, **figures, "tokens": tokens}
        log.write("steps", **values, learning_rate=rate, tokens_per_second=round(speed, 1))
        last = stages.last_epoch(progress, self.config.training)
        display.step(f"epoch {progress.epoch}/{last}", tokens, figures["nats"], speed)
        progress.begin_window()

    def _end_of_epoch(self, log: Events, display: Display) -> None:
        progress, settings = self.progress, self.config.training
        averaging = self.average is not None and self.average.count > 0
        began = time.perf_counter()
        nats, found, best = self._validate()
        progress.seconds += time.perf_counter() - began
        figures = _means(progress.epoch_sums, progress.epoch_tokens)
        values: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train_nats": figures.pop("nats"),
            "valid_nats": nats,
            "valid_perplexity": perplexity(nats),
            "learning_rate": self._rate(),
            "averaging": averaging,
            "finetuning": progress.finetuning,
            "seconds": round(progress.seconds, 1),
            "tokens_per_second": round(progress.epoch_tokens / progress.epoch_seconds, 1),
            "best": best,
            **figures,
            **found,
        }
        log.write("epoch", **values)
        display.epoch(values)
        stages.end_epoch(progress, settings, nats, best)
        if self.average is None and stages.averaging_due(progress, settings):
            self.average = WeightAverage(self.parameters)
        self._enter_stage()

    def _validate(self) -> tuple[float, dict[str, Any], bool]:
        """Mean nats on the validation split, with the averaged weights if there are any; saves them if they are the best.

        With them, of a model with two predictions what its gate makes of them (`policy`), and of a synthetic task what is
        answered right (`answers`).
        """
        progress = self.progress
        with self.average.applied() if self.average is not None else nullcontext():
            nats, found = self._read_valid() if self.ranks.first else (math.nan, {})
            nats = self.ranks.of_first(nats)
            if math.isnan(nats):
                raise self._broken_down(f"epoch {progress.epoch}: the validation loss is nan")
            best = progress.best_nats is None or nats < progress.best_nats
            if best:
                progress.best_nats, progress.best_epoch = nats, progress.epoch
                if self.ranks.first:
                    self._save_best()
        return nats, found, best

    def _read_valid(self) -> tuple[float, dict[str, Any]]:
        """Return the mean nats of the validation split, nan if the weights broke down, and the metrics that apply.

        The nats are those of the answers where only these are trained on.
        """
        reader, ids = StaticReader(self.model, self.precision), self.dataset.splits["valid"].ids
        answers, metrics = self.dataset.answers("valid"), MetricSet([])
        accuracy = None if answers is None else AnswerAccuracy(answers, self.precision, reader.block)
        if self.model.gated is not None:
            metrics.add(GateStatistics(self.precision, self.model.gated.config.gate.reward))
        if accuracy is not None:
            metrics.add(accuracy)
        batch_size = self.config.training.validation_batch_size
        stream = StreamReading(reader, ids, self.dataset.vocabulary.start, batch_size=batch_size)
        try:
            for block in stream.remaining():
                metrics.update(stream.score(block))
                stream.observe(block)
        except NonFiniteError:  # told with the epoch and what to do
            return math.nan, {}
        nats = stream.result().nats if self.asked is None or accuracy is None else accuracy.nats()
        return nats, {metric.name: metric.result() for metric in metrics}

    def _enter_stage(self) -> None:
        """Go on to fine-tuning, or to the end, where it is due."""
        if stages.finetuning_due(self.progress, self.config.training):
            self._begin_finetuning()
        self.progress.finished = stages.finished(self.progress, self.config.training)

    def _begin_finetuning(self) -> None:
        """Averaged SGD from the best weights, from its first step on (Merity et al. 2018, section 4)."""
        self.ranks.wait()  # until the first has written them
        try:
            name = f"best-{self.progress.best_epoch}"  # a later one would be of a run that went back behind it
            best = newest_checkpoint(self.folder.checkpoints, "best", frozenset({"weights"}), name)
            if best is None:
                raise DamagedCheckpoint(f"{self.folder.checkpoints / name} is missing")
            load_weights(self.model, best.tensors["weights"])
        except (DamagedCheckpoint, ValueError) as error:
            raise UserError(
                f"{error}; fine-tuning has no weights to begin from: start again with --overwrite"
            ) from None
        self.optimizer = build_optimizer(parameter_groups(self.model), self.config.training)
        self.average = WeightAverage(self.parameters)
        stages.begin_finetuning(self.progress)
        self._take_stage()


def _means(sums: dict[str, float], tokens: int) -> dict[str, float]:
    """Means per token; where not all tokens are asked, per token that is, but for their share."""
    asked = sums.get(ASKED, tokens) or 1.0
    return {name: total / (tokens if name == ASKED else asked) for name, total in sums.items()}
