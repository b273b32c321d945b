"""Train a model into a run folder: `backstory train` as a function."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from backstory.config import RunConfig, to_dict
from backstory.config.strict import conforming
from backstory.data import Dataset, check_synthetic, prepare
from backstory.data.overlap import check_splits_differ
from backstory.data.tokenizers.pieces import Pieces, trained_kind
from backstory.data.tokenizers.vocabulary import Vocabulary
from backstory.jobs.ranks import Ranks, joined
from backstory.jobs.workers import MOST_WORKERS, hosted
from backstory.models import build_model, choose_device, choose_precision, device_name
from backstory.models.devices import keep_freed_memory, restored_threads
from backstory.results.common import ProvenanceRecord
from backstory.results.result_file import Result, result_or_none, write_result
from backstory.results.training_record import EpochRecord, TrainingFigures
from backstory.runs.run import best_checkpoint, corpus_places
from backstory.runs.run_folder import Mode, RunFolder, check_folder, open_folder
from backstory.storage.atomic import write_atomically
from backstory.storage.checkpoint import DamagedCheckpoint, newest_checkpoint
from backstory.storage.lock import locked
from backstory.storage.manifest import BEST
from backstory.storage.provenance import now
from backstory.storage.run_files import CHECKPOINTS, RESULT, run_name
from backstory.training.announcement import announce_training
from backstory.training.callbacks import Callbacks
from backstory.training.events import TRACKERS, Events, MetricsLog, check_trackers, mend_log
from backstory.training.loop import Trainer
from backstory.training.memory_estimate import Text, check_memory
from backstory.training.process_count import check_batch, processes
from backstory.training.progress_display import Display
from backstory.training.resuming import INIT_FROM, first_provenance, initialise_from, resume
from backstory.training.threads import MOST_THREADS, set_threads
from backstory.training.training_figures import best_hashes, collect_training_figures, scored_unit
from backstory.training.validation_reading import unigram_nats
from backstory.training.word_vectors import initialise_from_counts
from backstory.utils.arguments import checked
from backstory.utils.clock import CLOCK
from backstory.utils.errors import AGAIN, NoDisk, NoMemory, UserError, check_utf8, refused
from backstory.utils.process import Stopped, StopRequest
from backstory.utils.small_file import resolved
from backstory.utils.terminal import make_console, say, shown_progress

WORKER = "backstory.training.training_worker"
"""The module of the other processes."""
_TRAINS = threading.RLock()
"""Held by the thread that trains; a callback may train another model in the same thread."""


@checked(threads=(1, MOST_THREADS), workers=(1, MOST_WORKERS))
def train(
    config: RunConfig,
    out: Path | str,
    *,
    mode: Mode = "new",
    data_dir: Path | None = None,
    accept: frozenset[str] = frozenset(),
    track: Sequence[str] = (),
    init_from: Path | None = None,
    allow_equal_splits: bool = False,
    threads: int | None = None,
    workers: int | None = None,
    callbacks: Sequence[Callable[[EpochRecord], object] | object] = (),
    console: Console | None = None,
) -> Result[TrainingFigures] | None:
    """Train a model into the folder `out` and return its result.

    `mode` says what to do with a folder that is not empty; `accept` names what may differ on resuming (`config`, `corpus`,
    `metrics`); `track` names trackers beside metrics.jsonl; `init_from` is a run whose best weights a new one begins with. A
    corpus whose validation and test are the same text is trained on only with `allow_equal_splits`. `threads` is the number
    of threads inside the operations on a CPU; None times some steps and takes the fastest. `workers` is the number of
    processes that share the rows of a batch, started here; None means one, or as many as the resumed run had. `callbacks` are
    functions that receive an `EpochRecord` after each epoch, or objects with `on_epoch(epoch)` or `on_step(step)`; if one
    fails, the training is saved and ends with a UserError that names it. Under `torchrun` every rank calls this; all but the
    first write nothing and return None. Raises UserError before anything is written (also when another training holds the
    folder), when the disk fails later and when a worker ends before its time, NonFiniteError when the loss breaks down,
    Stopped after a signal.
    """
    config, out = conforming(config, "settings"), Path(out)
    _check_arguments(config, out, mode, data_dir, track, init_from)
    Callbacks(callbacks)  # before anything is written
    console = console or make_console(stderr=True)
    others = {name: path and str(path) for name, path in (("data_dir", data_dir), ("init_from", init_from))}
    others |= {"allow_equal_splits": allow_equal_splits}
    with _joined_ranks(config, out, mode, accept, workers, threads, others) as (ranks, in_place, threads):
        keep_freed_memory()
        if not ranks.first:
            callbacks, console = (), make_console(quiet=True)
        with shown_progress(console):
            dataset = prepare(config.text, data_dir, tokenizer=_saved_pieces(out, config) if mode == "resume" else None)
        check_splits_differ(dataset, allow_equal_splits)
        trainer = _build_trainer(config, dataset, out, data_dir, ranks, callbacks)
        initial_run = None if init_from is None else initialise_from(trainer, init_from)
        changed = resume(trainer, accept) if mode == "resume" else frozenset()
        # Accepted differences and initial weights are in the first checkpoint, so the next resume need not name them.
        save_first = bool(changed) or initial_run is not None
        with shown_progress(console):
            choice = None if trainer.progress.finished else set_threads(trainer, threads)
        first_vectors = _begins_with_counts(trainer, mode, init_from)
        if not ranks.first:
            _run_loop(trainer, Events(), console, save_first, first_vectors)
            return None

        finished = _finished_result(trainer.folder) if trainer.progress.finished and not changed else None
        if finished is not None:
            best_checkpoint(out)  # raises where its weights are damaged
        announce_training(console, trainer, mode, choice)
        # Otherwise a run killed before its provenance names the other run would be resumed without those weights.
        begun = None if initial_run is None else _provenance(trainer, changed, initial_run)
        with _explained_failures(RunFolder(out, in_place)):
            trainer.folder = open_folder(out, config, mode, in_place, begun and _as_json(begun))
        if finished is not None:
            return finished
        with _explained_failures(trainer.folder):
            origin = begun or _write_provenance(trainer, changed)
            log = _open_log(trainer, track, "metrics" in changed)
            _run_loop(trainer, log, console, save_first, first_vectors)
            seconds = round(trainer.progress.seconds, 1)
            origin = replace(origin, seconds=seconds, ended=now(), **best_hashes(trainer))
            return write_result(out, run_name(out), collect_training_figures(trainer), origin)


def check_training(
    config: RunConfig,
    out: Path,
    mode: Mode = "new",
    data_dir: Path | None = None,
    track: Sequence[str] = (),
    init_from: Path | None = None,
    allow_equal_splits: bool = False,
) -> Dataset:
    """Raise UserError as `train` would before its first step of a new run, and write nothing; return the text."""
    config = conforming(config, "settings")
    _check_arguments(config, out, mode, data_dir, track, init_from)
    dataset = prepare(config.text, data_dir)
    check_splits_differ(dataset, allow_equal_splits)
    trainer = _build_trainer(config, dataset, out, data_dir, Ranks(), ())
    if init_from is not None:
        initialise_from(trainer, init_from)
    return dataset


def _saved_pieces(folder: Path, config: RunConfig) -> Pieces | None:
    """Return the pieces that a run trained on its corpus and saved, because retrained ones might differ."""
    if trained_kind(config.text.tokenizer) is None:
        return None
    try:
        best = newest_checkpoint(folder / CHECKPOINTS, BEST, frozenset({"vocabulary"}))
        saved = None if best is None else Vocabulary.from_json(best.documents["vocabulary"]).tokenizer
    except (DamagedCheckpoint, UserError):
        return None
    return saved if isinstance(saved, Pieces) and saved.name == config.text.tokenizer else None


def _check_arguments(
    config: RunConfig, out: Path, mode: Mode, data_dir: Path | None, track: Sequence[str], init_from: Path | None
) -> None:
    """Raise UserError for arguments that no training can follow."""
    config.training.check()
    if mode != "resume":  # a run that began before this check existed goes on
        check_synthetic(config.text)
    check_trackers(track)
    for path in (config.text.corpus, *corpus_places(config.text, data_dir).values()):
        check_utf8(path)
    if init_from is not None and mode == "resume":
        raise UserError("a resumed run continues with its own weights; leave --init-from out")
    if init_from is not None and mode == "overwrite" and resolved(init_from) == resolved(out):
        raise UserError(f"{out} would be removed before anything that begins with it is saved; choose another --out")


def _build_trainer(
    config: RunConfig, dataset: Dataset, out: Path, data_dir: Path | None, ranks: Ranks, callbacks: Sequence[Any]
) -> Trainer:
    """Return the training before its first step, with the random numbers of its seed. Raises UserError if it cannot fit."""
    device = choose_device(config.training.device)
    precision = choose_precision(config.training.precision, device)
    text = Text(len(dataset.vocabulary), len(dataset.splits["train"].ids))
    check_memory(config, text, precision, device, ranks)
    torch.manual_seed(config.seed)
    model = build_model(config.model, text.types).to(device)
    if not ranks.first:  # the weights are the same on every rank, the dropout masks are not
        torch.manual_seed(int(np.random.SeedSequence([config.seed, ranks.rank]).generate_state(1)[0]))
    calls = Callbacks(callbacks, device)
    return Trainer(config, dataset, RunFolder(out), model, device, precision, data_dir, ranks, calls)


@contextmanager
def _only_thread() -> Iterator[None]:
    """Refuse to train while another thread does, because torch's random numbers belong to the process."""
    if not _TRAINS.acquire(blocking=False):
        raise UserError(
            "another thread of this process is training, and both would draw from the same random numbers; train one after "
            "the other, or each in a process of its own"
        )
    try:
        yield
    finally:
        _TRAINS.release()


@contextmanager
def _joined_ranks(
    config: RunConfig,
    out: Path,
    mode: Mode,
    accept: frozenset[str],
    workers: int | None,
    threads: int | None,
    others: dict[str, Any],
) -> Iterator[tuple[Ranks, Callable[[], bool] | None, int | None]]:
    """Start or join the other ranks for the block, and lock the run folder.

    Yields this rank, the check that the folder is still in its place, and the threads, None for a number still to be chosen.
    `others` are the arguments of `train` that are not named here, as JSON.
    """
    count, threads = processes(workers, threads, out, mode == "resume")
    check_batch(config.training.batch_size, count)
    arguments = {**others, "config": to_dict(config), "out": str(out), "mode": mode, "accept": sorted(accept)}
    with (
        _only_thread(),
        restored_threads(),
        hosted(count, threads or 1, WORKER, arguments | {"threads": threads}, lambda: RunFolder(out).remedy) as meeting,
        joined(meeting) as ranks,
        _locked_folder(out, config, mode, accept, ranks) as in_place,
    ):
        yield ranks, in_place, threads


@contextmanager
def _locked_folder(
    out: Path, config: RunConfig, mode: Mode, accept: frozenset[str], ranks: Ranks
) -> Iterator[Callable[[], bool] | None]:
    """Lock the run folder for the block, if this is the rank that writes; yield the check that it is still in its place."""
    if not ranks.first:
        yield None
        return
    check_folder(out, config, mode, accept)
    with locked(out, "training", "--out") as in_place:
        # Again, as another training may have run before the lock was taken.
        check_folder(out, config, mode, accept)
        yield in_place


@contextmanager
def _explained_failures(folder: RunFolder) -> Iterator[None]:
    """Turn an error of the system in the block into a UserError that says how to go on."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        folder.check_in_place()
        remedy = _how_to_go_on(folder)
        refusal = refused(
            error, folder.path, remedy if remedy == AGAIN else f"{remedy}: what was saved before is whole"
        )
        if not isinstance(refusal, NoDisk | NoMemory):
            refusal = UserError(f"{refusal}; see to it, and {remedy}")
        raise refusal from None


def _how_to_go_on(folder: RunFolder) -> str:
    """Return the remedy of a training that was stopped; one that is resumed takes no weights of another run."""
    if not folder.config.is_file():  # it is no run yet
        return AGAIN
    begun = first_provenance(folder).get(INIT_FROM)
    return f"go on with the same command {'and --resume' if begun is None else 'with --resume in place of --init-from'}"


def _begins_with_counts(trainer: Trainer, mode: Mode, init_from: Path | None) -> bool:
    """Return True if the embedding must still be made from counts: at the start of a run without `init_from`."""
    of_another = init_from is not None or (mode == "resume" and INIT_FROM in first_provenance(trainer.folder))
    return trainer.config.model.embedding.initialisation == "ppmi" and trainer.progress.step == 0 and not of_another


def _initialise_embedding(trainer: Trainer, console: Console) -> None:
    """Begin with word vectors from the training split; the time that takes is part of the training's."""
    began, ids = CLOCK.seconds(), trainer.dataset.splits["train"].ids
    say(console, f"making word vectors from {len(ids):,} tokens ...")
    initialise_from_counts(trainer.model.embedding, ids, trainer.config.seed)
    trainer.progress.preparation_seconds = CLOCK.seconds() - began
    trainer.progress.seconds += trainer.progress.preparation_seconds


def _run_loop(trainer: Trainer, log: Events, console: Console, save_first: bool, first_vectors: bool) -> None:
    """Train to the end; with `first_vectors`, make the embedding from counts first. Raises Stopped after a signal."""
    stop = StopRequest(lambda: say(console, "stopping after this step, to save it ..."))
    sizes, minutes = trainer.expected_tokens(), trainer.config.training.minutes
    frequencies = unigram_nats(trainer.dataset) if trainer.ranks.first else None
    display = Display(console, *sizes, scored_unit(trainer), minutes, trainer.epoch_tokens(), frequencies)
    try:
        with CLOCK.listening():
            if first_vectors:
                _initialise_embedding(trainer, console)
            with stop.listening(), display.shown():
                if save_first:
                    trainer.save(log)
                trainer.train(log, display, stop)
    finally:
        log.close()
    if trainer.callbacks.error is not None:
        raise trainer.callbacks.error
    if stop.signal is not None and not trainer.progress.finished:
        raise Stopped(f"{trainer.folder.path} is stopped and saved; {_how_to_go_on(trainer.folder)}", stop.signal)


def _finished_result(folder: RunFolder) -> Result[TrainingFigures] | None:
    """Return the result of a finished run; None if it is missing or damaged, and has to be written again."""
    result = result_or_none(folder.path / RESULT)
    return result if result is not None and isinstance(result.figures, TrainingFigures) else None


def _write_provenance(trainer: Trainer, changed: frozenset[str]) -> ProvenanceRecord:
    """Write run.json and return its content."""
    origin = _provenance(trainer, changed)
    write_atomically(trainer.folder.provenance, _as_json(origin))
    return origin


def _as_json(origin: ProvenanceRecord) -> str:
    return json.dumps(origin.to_dict(), indent=1) + "\n"


def _provenance(
    trainer: Trainer, changed: frozenset[str], initial_run: dict[str, str] | None = None
) -> ProvenanceRecord:
    """Return the content of run.json: of an unchanged run that is resumed, with its first command and time."""
    precision = trainer.precision
    origin = ProvenanceRecord.begun(
        to_dict(trainer.config),
        device_name(trainer.device),
        precision.name,
        precision.reason,
        trainer.dataset.describe(),
    )
    first = first_provenance(trainer.folder)
    origin = replace(origin, ranks=trainer.ranks.world, init_from=initial_run or first.get(INIT_FROM))
    if trainer.progress.step and changed <= {"metrics"}:
        origin = replace(origin, **first)
    return origin


def _open_log(trainer: Trainer, track: Sequence[str], damaged: bool) -> Events:
    """Open the run's trackers and its log, cut back to what the checkpoint knew; repair a damaged one."""
    folder, progress = trainer.folder, trainer.progress
    if progress.step:
        trainer.drop_other_best()
    trackers = [TRACKERS[name](folder.path, progress.step) for name in track]
    if damaged:
        progress.log_bytes = mend_log(folder.metrics, progress.step, progress.epoch - 1)
    return Events(MetricsLog(folder.metrics, progress.log_bytes), trackers)
