"""The training loop: truncated backpropagation through time, validation after every epoch, checkpoints at step boundaries."""

import math
import signal
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config import RunConfig, to_dict
from backstory.data import Dataset
from backstory.jobs.ranks import Ranks
from backstory.models import ComposedModel, Precision, State, clone, to, unflatten
from backstory.results.training_record import EpochRecord
from backstory.runs.run import corpus_places, load_weights, weights
from backstory.runs.run_folder import RunFolder
from backstory.storage.checkpoint import DamagedCheckpoint
from backstory.training import checkpointing, stages
from backstory.training.batches import EpochBatches
from backstory.training.callbacks import Callbacks
from backstory.training.events import Events
from backstory.training.gradients import LOSS, NORM, Eager, Gradient, build_gradient
from backstory.training.objectives import build_objective
from backstory.training.optimizers import WeightAverage, build_optimizer, parameter_groups
from backstory.training.progress import Progress
from backstory.training.progress_display import Display
from backstory.training.validation_reading import read_validation
from backstory.utils.clock import CLOCK
from backstory.utils.errors import NonFiniteError, UserError
from backstory.utils.process import StopRequest
from backstory.utils.scores import perplexity
from backstory.utils.terminal import say

WINDOW = 20
"""Steps that one line of metrics.jsonl sums up."""


@dataclass
class Trainer:
    """A training in memory; `train` continues it to its end, a stop, or an error."""

    config: RunConfig
    dataset: Dataset
    folder: RunFolder
    model: ComposedModel
    device: torch.device
    precision: Precision
    data_dir: Path | None = None
    """Folder of the corpora; readers of the run look there first."""
    ranks: Ranks = field(default_factory=Ranks)
    """This process among those that train together."""
    callbacks: Callbacks = field(default_factory=Callbacks)
    threads: int | None = field(default=None, init=False)
    """Threads that the resumed checkpoint was trained with; None for a training that starts."""

    def __post_init__(self) -> None:
        settings = self.config.training
        self.parameters: list[nn.Parameter] = list(self.model.parameters())
        self.optimizer = build_optimizer(parameter_groups(self.model), settings)
        self.average = WeightAverage(self.parameters) if stages.averages_always(settings) else None
        self.progress = Progress()
        self._apply_stage()
        self.batches = self._load_batches()
        self.state = self._start()
        self.saved_at = time.monotonic()

    def train(self, log: Events, display: Display, stop: StopRequest) -> None:
        """Train to the end, or until `stop` is requested or a callback fails; a checkpoint stands when it returns.

        Raises NonFiniteError.
        """
        if self.progress.finished:
            return
        model, stage = self.ranks.parallel(self.model), None
        while not self.progress.finished and not self._agreed(stop)[0]:
            self.batches = self._load_batches()
            if self.progress.finetuning != stage:  # the graphs recorded on a GPU are those of one stage
                self.gradient, stage = self._build_gradient(model), self.progress.finetuning
            for first, last in () if self._epoch_is_over() else self.batches.bounds[self.progress.segment :]:
                self._train_segment(first, last, log, display)
                stopping, due = self._agreed(stop, self._checkpoint_is_due())
                if stopping or self._epoch_is_over():
                    break
                if due:
                    self.save(log)
            if self._epoch_is_over():
                self._end_of_epoch(log, display)
            self.save(log)

    def expected_tokens(self) -> tuple[int, int]:
        """Return the tokens of the whole training, if fine-tuning does not end early, and those trained on so far."""
        progress, settings, segments = self.progress, self.config.training, len(self.batches.bounds)
        epoch = self.epoch_tokens()
        if settings.has_length:
            steps = stages.total_steps(progress, settings) or (self._fitting_steps() if progress.step else segments)
            return epoch * steps // segments, epoch * progress.step // segments
        total = epoch * stages.last_epoch(progress, settings)
        return total, min(total, (progress.epoch - 1) * epoch + (progress.epoch_tokens if progress.segment else 0))

    @property
    def is_unplanned(self) -> bool:
        """True if the steps that fit into `training.minutes` are still to be fixed."""
        return stages.is_unplanned(self.progress, self.config.training)

    def expected_steps(self) -> int:
        """Return about how many steps are left."""
        total, done = self.expected_tokens()
        return (total - done) * len(self.batches.bounds) // self.epoch_tokens()

    def _fitting_steps(self) -> int:
        """Return the steps that fit into `training.minutes` at the speed so far."""
        validation_share = len(self.dataset.splits["valid"].ids) / self.epoch_tokens()
        return stages.fitting_steps(self.progress, self.config.training, len(self.batches.bounds), validation_share)

    def epoch_tokens(self) -> int:
        """Return the tokens of an epoch, those of all ranks."""
        return self.config.training.batch_size * (self.batches.rows.shape[1] - 1)

    def _plan(self, display: Display) -> None:
        """Fix the number of steps that fit into `training.minutes` when a quarter of them has passed."""
        progress, settings = self.progress, self.config.training
        if self.ranks.of_first(stages.plan_is_due(progress, settings)):
            progress.planned_steps = int(self.ranks.of_first(self._fitting_steps()))
            progress.planned_minutes = settings.minutes
            display.set_total(self.expected_tokens()[0])
            repeats = stages.is_repeatable(progress, settings, progress.planned_steps)
            flags = f"--training.minutes none --training.steps {progress.planned_steps}"
            hint = f" ({flags} repeats this training)" if repeats else ""
            say(display.console, f"{progress.planned_steps:,} steps fit into {settings.minutes:g} min{hint}")
            self.saved_at = -math.inf  # a checkpoint is due, as a resumed training would plan another number

    def _epoch_is_over(self) -> bool:
        """Return True at the end of the text, or of a stage that ends before it."""
        # Beyond the end: an accepted corpus may be shorter than before.
        at_end = self.progress.segment >= len(self.batches.bounds)
        return at_end or stages.stage_is_over(self.progress, self.config.training)

    # Steps.

    def _train_segment(self, first: int, last: int, log: Events, display: Display) -> None:
        """Take a step on input positions `first` to `last` (exclusive); at the end of a window, log it."""
        settings, progress = self.config.training, self.progress
        if progress.segment == 0:
            self.state = self._start()
            progress.begin_epoch()
        if self.is_unplanned:  # the learning rate may follow the time, and is the same on all ranks
            progress.seconds = self.ranks.of_first(progress.seconds)
        began = CLOCK.seconds()
        rate = self._learning_rate() * (last - first) / settings.segment
        figures = self._step(*self.batches.segment(first, last, self.device), rate)
        tokens = settings.batch_size * (last - first)
        progress.take(figures, tokens, CLOCK.seconds() - began)
        self.callbacks.step(self.folder.path, progress, figures, rate, tokens)
        display.advance(stages.position(progress, settings), tokens)
        if self.is_unplanned:
            self._plan(display)
        if progress.segment % WINDOW == 0 or self._epoch_is_over():
            self._end_of_window(rate, log, display)

    def _learning_rate(self) -> float:
        return stages.learning_rate(self.progress, self.config.training, len(self.batches.bounds))

    def _step(self, text: Tensor, answer_mask: Tensor | None, rate: float) -> dict[str, float]:
        """Update the weights; return the objective's figures. Raises NonFiniteError before the weights are touched."""
        figures, self.state = self.gradient(text, self.state, answer_mask)
        # Fetched together, because on a GPU each separate fetch waits for the device. The norm is of mean gradients.
        values = self.ranks.mean(torch.stack(list(figures.values()))).tolist()
        if not all(map(math.isfinite, values)):
            listed = ", ".join(f"{name} {value}" for name, value in zip(figures, values, strict=True))
            raise self._breakdown(f"step {self.progress.step + 1}: {listed}; stopped before the update")
        for group in self.optimizer.param_groups:
            # A part of the model may have its own learning rate, and begin to learn later.
            group["lr"] = rate * group.get("scale", 1.0) * (self.progress.epoch > group.get("after", 0))
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        return {name: value for name, value in zip(figures, values, strict=True) if name not in (LOSS, NORM)}

    def _end_of_window(self, rate: float, log: Events, display: Display) -> None:
        progress = self.progress
        figures, speed = progress.window_means(), progress.window_tokens / progress.window_seconds
        values = {"step": progress.step, "epoch": progress.epoch, **figures, "tokens": progress.window_tokens}
        log.write("steps", **values, learning_rate=rate, tokens_per_second=round(speed, 1))
        display.window(progress.window_nats(), speed)
        if self.is_unplanned:
            display.set_total(self.expected_tokens()[0])
        progress.begin_window()

    def _agreed(self, stop: StopRequest, due: bool = False) -> tuple[bool, bool]:
        """Return whether any rank must stop, and whether any is due for a checkpoint; all ranks then do the same."""
        failed = 0 if self.callbacks.error is None else signal.SIGTERM
        number, due_anywhere = self.ranks.largest(stop.signal or failed, due)
        if number and stop.signal is None:  # never set back: one may have come meanwhile, and counts the next time
            stop.signal = int(number)
        return bool(number), bool(due_anywhere)

    def _load_batches(self) -> EpochBatches:
        """Return the batches of the present epoch."""
        share = self.ranks.share(self.config.training.batch_size)
        return EpochBatches.load(self.config, self.dataset, self.progress.epoch, share)

    def _start(self) -> State:
        """Return the state before the first token of this rank's rows."""
        return self.model.start(len(self.batches.rows))

    def _build_gradient(self, model: nn.Module) -> Gradient:
        """Return what computes the gradients of a stage; `model` averages them over the ranks if there are several."""
        eager = Eager(model, self.parameters, self.objective, self.precision, self.config.training.clip)
        gradient = build_gradient(eager, self.device, self.config)
        if self.ranks.world > 1:
            # DistributedDataParallel rearranges its gradient buckets after the first step. Take that step as a warm-up, so
            # that a resumed run adds up in the order of one that was never interrupted.
            self._try(gradient, 1)
        return gradient

    def _try(self, gradient: Gradient, length: int) -> None:
        """Compute the gradient of the first tokens without an update and without effect on random numbers."""
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            text, answer_mask = self.batches.segment(0, min(length, self.batches.rows.shape[1] - 1), self.device)
            gradient(text, self._start(), answer_mask)

    def trial_step(self) -> None:
        """Compute the gradient of a segment of mean length, to be timed; the training is as it was before."""
        self._try(self._build_gradient(self.model), self.config.training.segment)

    def _breakdown(self, problem: str) -> NonFiniteError:
        """Return the error for numbers that are not finite, with its remedy.

        A checkpoint of the same weights is removed if an earlier whole one exists, because resuming it would fail at
        once.
        """
        remedy = "Start again with --overwrite and a smaller --training.learning-rate"
        if self.ranks.first and checkpointing.drop_last(self.folder, self.progress.step):
            remedy = (
                "The last good checkpoint is whole: go on with --resume, --accept config, "
                "a smaller --training.learning-rate"
            )
        return NonFiniteError(f"{problem}. {remedy}")

    # The end of an epoch.

    def _end_of_epoch(self, log: Events, display: Display) -> None:
        """Validate, log the epoch, and go on to the next one, to fine-tuning, or to the end."""
        progress, settings = self.progress, self.config.training
        averaging = self.average is not None and self.average.count > 0
        began = CLOCK.seconds()
        nats, metrics, best = self._validate()
        seconds = CLOCK.seconds() - began
        progress.seconds += seconds
        progress.validation_seconds += seconds
        figures = progress.epoch_means()
        epoch = EpochRecord(
            epoch=progress.epoch,
            step=progress.step,
            train_nats=figures.pop("nats"),
            valid_nats=nats,
            valid_perplexity=perplexity(nats),
            learning_rate=self._learning_rate(),
            averaging=averaging,
            finetuning=progress.finetuning,
            seconds=round(progress.seconds, 1),
            tokens_per_second=round(progress.epoch_tokens / progress.epoch_seconds, 1),
            best=best,
            **metrics,
            means=figures,
        )
        log.write("epoch", **epoch.to_dict())
        display.epoch(epoch)
        self.callbacks.epoch(self.folder.path, epoch)
        stages.end_epoch(progress, settings, nats, best)
        if self.average is None and stages.averaging_due(progress, settings):
            self.average = WeightAverage(self.parameters)
        self._advance_stage()
        display.set_total(self.expected_tokens()[0])  # early stopping shortens the training

    def _validate(self) -> tuple[float, dict[str, Any], bool]:
        """Return the mean nats of the validation split, the metrics that apply, and whether it is the best so far.

        It is read with the averaged weights if there are any; they are saved if they are the best, or if the last are kept.
        """
        progress = self.progress
        with self.average.applied() if self.average is not None else nullcontext():
            nats, metrics = self.read_validation()
            if math.isnan(nats):
                raise self._breakdown(f"epoch {progress.epoch}: the validation loss is nan")
            best = stages.is_best(progress, self.config.training, nats)
            if best or self.config.training.keep == "last":
                progress.best_nats, progress.best_epoch = nats, progress.epoch
                if self.ranks.first:
                    self._save_best()
        return nats, metrics, best

    def read_validation(self) -> tuple[float, dict[str, Any]]:
        """Return the mean nats of the validation split by the weights as they are, and the metrics that apply."""
        return read_validation(self.model, self.dataset, self.config, self.precision, self.ranks)

    # Stages: training, then fine-tuning.

    def _apply_stage(self) -> None:
        """Give the objective and the model the settings of the stage."""
        adversarial = stages.adversarial(self.progress, self.config.model)
        self.objective = build_objective(self.config, adversarial, self.model.core.auxiliary_weight)
        self.model.embedding.noise = stages.embedding_noise(self.progress, self.config.model)

    def _advance_stage(self) -> None:
        """Move on to fine-tuning, or to the end, when due, but not before a validation.

        Fewer steps than were done before the first one may have been accepted on resuming.
        """
        if self.progress.best_nats is None:
            return
        if stages.finetuning_due(self.progress, self.config.training):
            self._begin_finetuning()
        self.progress.finished = stages.finished(self.progress, self.config.training)

    def _begin_finetuning(self) -> None:
        """Continue with averaged SGD from the best weights, from the first step on (Merity et al. 2018, section 4)."""
        self.ranks.wait()  # until the first has written them
        remedy = f"put them back in {self.folder.checkpoints}, or {checkpointing.START_AGAIN}"
        problem = f"fine-tuning has no weights to begin from: {remedy}"
        try:
            load_weights(self.model, checkpointing.read_best(self.folder, self.progress.best_epoch).tensors["weights"])
        except DamagedCheckpoint as error:
            raise error.as_user_error(problem) from None
        except ValueError as error:
            raise UserError(f"{error}; {problem}") from None
        self.optimizer = build_optimizer(parameter_groups(self.model), self.config.training)
        self.average = WeightAverage(self.parameters)
        stages.begin_finetuning(self.progress)
        self._apply_stage()

    # Checkpoints.

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self.saved_at > 60 * self.config.training.save_minutes

    def save(self, log: Events) -> None:
        """Write the checkpoint of this step; then remove all but the last two, and all best weights but those it names.

        Every rank takes part, the first writes. Raises NonFiniteError rather than save weights that no learning rate could
        go on from.
        """
        if not torch.stack([p.isfinite().all() for p in self.parameters]).all():
            raise self._breakdown(f"step {self.progress.step}: the update left weights that are not finite")
        self.saved_at = time.monotonic()
        rank_tensors = self.ranks.gather(checkpointing.pack_rank(self.state, self.device))
        if not self.ranks.first:
            return
        self.progress.log_bytes = log.position()
        self.progress.averaged = None if self.average is None else self.average.count
        settings, corpus = to_dict(self.config), self.dataset.fingerprint
        saved = checkpointing.SavedRun(self.progress, settings, corpus, self.ranks.world, torch.get_num_threads())
        tensors = checkpointing.pack(self.model, self.optimizer, self.average, rank_tensors)
        checkpointing.write_last(self.folder, tensors, saved)
        self.drop_other_best()
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Write the weights as they are now (the average, while it is applied), with what is needed to read with them."""
        places = corpus_places(self.config.text, self.data_dir)
        model = {"config": to_dict(self.config), "corpus": self.dataset.describe(), "places": places}
        documents = {"model": model, "vocabulary": self.dataset.vocabulary.to_json()}
        checkpointing.write_best(self.folder, self.progress.epoch, weights(self.model), documents)

    def drop_other_best(self) -> None:
        """Keep only the best weights that the saved progress names."""
        if self.progress.best_epoch:
            checkpointing.keep_best(self.folder, self.progress.best_epoch)

    def restore(self, progress: Progress, tensors: dict[str, dict[str, Tensor]], same_settings: bool = True) -> None:
        """Restore a checkpoint, and go on to fine-tuning or the end if the settings (accepted ones) now say so.

        `same_settings`: it was saved with these settings. Raises ValueError if it does not fit this model.
        """
        checkpointing.check_files(tensors, progress.averaged is not None, self.ranks.world)
        if progress.segment and progress.epoch_sums.keys() != set(self.objective.figures):
            raise ValueError(f"it sums {', '.join(sorted(progress.epoch_sums))}")
        self.progress = progress
        load_weights(self.model, tensors["weights"])
        checkpointing.unpack_optimizer(self.optimizer, self.model, tensors["optimizer"], progress.step, same_settings)
        count = progress.averaged
        self.average = None if count is None else checkpointing.unpack_average(self.model, tensors["average"], count)
        if not same_settings and not progress.finetuning:
            self._average_as_accepted()
        suffix = checkpointing.rank_suffix(self.ranks.rank)
        self.state = to(clone(unflatten(self._start(), tensors[f"state{suffix}"])), self.device)
        checkpointing.unpack_random(tensors[f"random{suffix}"], self.device)
        self._apply_stage()
        self._advance_stage()

    def _average_as_accepted(self) -> None:
        """Begin or drop the average of the weights, where settings that were accepted on resuming say so."""
        settings = self.config.training
        if settings.averaging == "none":
            self.average = None
        elif self.average is None and stages.averages_always(settings):
            self.average = WeightAverage(self.parameters)
