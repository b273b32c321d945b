"""From settings to a trained run folder: the whole of `backstory train`, callable from Python."""

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from backstory.config import RunConfig, TextConfig, UserError, plural, to_dict
from backstory.config.arguments import checked
from backstory.config.errors import NoDisk, NoMemory, check_utf8, refused
from backstory.config.process import Stopped, StopRequest
from backstory.config.renamed import current_provenance
from backstory.config.scores import advice, perplexity
from backstory.config.small_file import read_lines, read_small
from backstory.config.strict import conforming
from backstory.config.terminal import make_console, say
from backstory.data import Dataset, check_synthetic, prepare, unknown_share
from backstory.data.overlap import check_splits_differ, overlaps
from backstory.models import build_model, choose_device, choose_precision, count_parameters, device_name
from backstory.models.devices import keep_freed_memory
from backstory.results.result_file import write_result
from backstory.runs.run import (
    check_tensors,
    corpus_places,
    load_run,
    load_weights,
    tensors_hash,
    weights,
)
from backstory.runs.run_folder import Mode, RunFolder, check_folder, open_folder, trained_with
from backstory.storage.atomic import write_atomically
from backstory.storage.checkpoint import Checkpoint, DamagedCheckpoint, newest_checkpoint
from backstory.storage.documents import conforms, parse
from backstory.storage.lock import locked
from backstory.storage.manifest import BEST, WEIGHTS_FILE
from backstory.storage.provenance import RESULT, now, provenance
from backstory.training.distributed import Ranks, check_batch, joined
from backstory.training.events import TRACKERS, Events, MetricsLog, check_log, check_trackers, mend_log, read_events
from backstory.training.loop import Trainer
from backstory.training.memory_estimate import Text, check_memory
from backstory.training.progress import Progress, check_settings, last_epoch
from backstory.training.progress_display import Display

BEGUN = "init_from"
"""Of a run's provenance: the run whose weights it began with."""


@checked()
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
    console: Console | None = None,
) -> dict[str, Any]:
    """Train a model into the folder `out` and return the content of its result.json.

    `mode` says what to do with a folder that is not empty; `accept` names what may differ on resuming (`config`, `corpus`,
    `metrics`);
    `track` names trackers beside metrics.jsonl; `init_from` is a run whose best weights a new one begins with. A corpus whose
    validation and test are the same text is trained on only with `allow_equal_splits`. Under `torchrun`
    every rank calls this; all but the first write nothing and return an empty dictionary. Raises UserError before anything is
    written (also when another training holds the folder) and when the disk fails later, NonFiniteError when the loss breaks
    down, Stopped after a signal.
    """
    config = conforming(config, "settings")
    check_settings(config.training)
    if mode != "resume":  # what was begun without this check goes on
        check_synthetic(config.text)
    check_trackers(track)
    for place in (config.text.corpus, *corpus_places(config.text, data_dir).values()):
        check_utf8(place)
    if init_from is not None and mode == "resume":
        raise UserError("a resumed run goes on with weights of its own; leave --init-from out")
    out, console = Path(out), console or make_console(stderr=True)
    if init_from is not None and mode == "overwrite" and Path(init_from).resolve() == out.resolve():
        raise UserError(f"{out} would be removed before anything that begins with it is saved; choose another --out")
    with joined() as ranks:
        check_batch(config.training.batch_size, ranks)
        if not ranks.first:
            return _train_along(config, out, ranks, mode, data_dir, accept, init_from, allow_equal_splits)
        check_folder(out, config, mode, accept)
        with locked(out, "training", "--out") as stands:
            # Again, as another training may have come and gone before the lock was taken.
            check_folder(out, config, mode, accept)
            trainer = _build(config, out, data_dir, ranks, allow_equal_splits)
            begun = None if init_from is None else begin_with(trainer, init_from)
            changed = _restore(trainer, accept) if mode == "resume" else frozenset()
            _say_what_starts(console, trainer, mode)
            folder = trainer.folder = open_folder(out, config, mode, stands)
            try:
                return _run(trainer, folder, console, track, changed, begun)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise _interrupted(folder, error) from None


def _interrupted(folder: RunFolder, error: OSError) -> UserError:
    """What is told when the system fails a training that had begun. Raises it where the folder is gone."""
    folder.check_in_place()
    resume = "go on with the same command and --resume"
    told = refused(error, folder.path, f"{resume}: what was saved before is whole")
    return told if isinstance(told, NoDisk | NoMemory) else UserError(f"{told}; see to it, and {resume}")


def _train_along(
    config: RunConfig,
    out: Path,
    ranks: Ranks,
    mode: Mode,
    data_dir: Path | None,
    accept: frozenset[str],
    init_from: Path | None,
    allow_equal_splits: bool,
) -> dict[str, Any]:
    """What every rank but the first does: the same training, of which it writes and shows nothing."""
    trainer = _build(config, out, data_dir, ranks, allow_equal_splits)
    if init_from is not None:
        begin_with(trainer, init_from)
    changed = _restore(trainer, accept) if mode == "resume" else frozenset()
    _train(trainer, Events(), Display(make_console(quiet=True), 0, 0), bool(changed) or init_from is not None)
    return {}


def _build(config: RunConfig, out: Path, data_dir: Path | None, ranks: Ranks, allow_equal_splits: bool) -> Trainer:
    """A run at its beginning; nothing is written."""
    keep_freed_memory()
    dataset, device = prepare(config.text, data_dir), choose_device(config.training.device)
    check_splits_differ(dataset, allow_equal_splits)
    precision = choose_precision(config.training.precision, device)
    check_memory(config, Text(len(dataset.vocabulary), len(dataset.splits["train"].ids)), precision, device, ranks)
    torch.manual_seed(config.seed)
    model = build_model(config.model, len(dataset.vocabulary)).to(device)
    if not ranks.first:  # the weights are alike, the masks are not
        torch.manual_seed(int(np.random.SeedSequence([config.seed, ranks.rank]).generate_state(1)[0]))
    return Trainer(config, dataset, RunFolder(out), model, device, precision, data_dir, ranks)


def begin_with(trainer: Trainer, folder: Path) -> dict[str, str]:
    """Put the best weights of another run into the parts that the model shares with it, and say which they were.

    What the model has beyond them, such as a buffer, keeps its random weights. Raises UserError where the other model is no
    part of this one.
    """
    run = load_run(folder)
    if run.vocabulary.to_json() != trainer.dataset.vocabulary.to_json():
        raise UserError(f"{folder} has another vocabulary than this corpus gives; begin with a run on the same text")
    own, theirs = dict(trainer.model.named_parameters()), weights(run.model)
    try:
        check_tensors(theirs, {name: own[name] for name in theirs if name in own}, "weights")
    except ValueError as error:
        raise UserError(f"{folder} is no part of this model: {error}; give the same sizes and parts") from None
    load_weights(trainer.model, {name: p.detach() for name, p in own.items()} | theirs)
    return {"run": folder.resolve().name, "weights": run.weights_hash}


def _run(
    trainer: Trainer,
    folder: RunFolder,
    console: Console,
    track: Sequence[str],
    changed: frozenset[str],
    begun: dict[str, str] | None,
) -> dict[str, Any]:
    """Train from where the run stands; `changed` says what of it is not as its checkpoint knew it.

    `begun` tells of the run whose weights it begins with.
    """
    dataset, precision, device = trainer.dataset, trainer.precision, trainer.device
    if trainer.progress.finished and not changed and (result := _written(folder)):
        return result  # it tells of the training that was done; this command did nothing
    origin = provenance(
        to_dict(trainer.config), device_name(device), precision.name, precision.reason, dataset.describe()
    )
    first = _begun(folder)
    if begun is not None or BEGUN in first:
        origin[BEGUN] = begun or first[BEGUN]
    if trainer.progress.step and changed <= {"metrics"}:
        origin |= first
    write_atomically(folder.provenance, json.dumps(origin, indent=1) + "\n")
    if trainer.progress.step:
        trainer.drop_other_best()
    trackers = [TRACKERS[name](folder.path, trainer.progress.step) for name in track]
    if "metrics" in changed:
        progress = trainer.progress
        progress.log_bytes = mend_log(folder.metrics, progress.step, progress.epoch - 1)
    log = MetricsLog(folder.metrics, trainer.progress.log_bytes)
    display = Display(console, *_expected_tokens(trainer), _unit(trainer))
    _train(trainer, Events(log, trackers), display, bool(changed) or begun is not None)
    origin["seconds"] = round(trainer.progress.seconds, 1)
    origin |= {"ended": now(), **_identity(trainer)}
    return write_result(folder.path, "training", folder.path.name, _figures(trainer, folder), origin)


def _identity(trainer: Trainer) -> dict[str, str]:
    """The hashes of the best weights, as what is read with them tells them; empty where they are damaged."""
    name = f"{BEST}-{trainer.progress.best_epoch}"
    try:
        best = newest_checkpoint(trainer.folder.checkpoints, BEST, frozenset({"weights"}), name)
    except DamagedCheckpoint:
        best = None
    if best is None or best.tensors["weights"].keys() != weights(trainer.model).keys():
        return {}
    ordered = {key: best.tensors["weights"][key] for key in weights(trainer.model)}
    return {"weights": tensors_hash(ordered), "weights_file": best.hashes[WEIGHTS_FILE]}


def _train(trainer: Trainer, log: Events, display: Display, save: bool) -> None:
    """Train to the end, `save` first: what was accepted, or begun with, need not be given again. Raises Stopped."""
    stop = StopRequest(lambda: say(display.console, "stopping after this step, to save it ..."))
    try:
        with stop.listening(), display.shown():
            if save:
                trainer.save(log)
            trainer.train(log, display, stop)
    finally:
        log.close()
    if stop.signal is not None and not trainer.progress.finished:
        raise Stopped(
            f"{trainer.folder.path} is stopped and saved; go on with the same command and --resume", stop.signal
        )


def _written(folder: RunFolder) -> dict[str, Any] | None:
    """The result of a finished run; None where it is missing or damaged, and is to be written again."""
    try:
        result = parse(read_small(folder.path / RESULT, inside=folder.path))
    except (OSError, ValueError):
        return None
    return result if conforms(result, dict[str, Any]) and conforms(result.get("figures"), dict[str, Any]) else None


def _begun(folder: RunFolder) -> dict[str, Any]:
    """The command, the time and the run, if any, that it was begun with: a resumed one is made again by that command."""
    try:
        first = current_provenance(parse(read_small(folder.provenance, inside=folder.path)))
        told = {key: first[key] for key in ("command", "started")}
        return told | {BEGUN: first[BEGUN]} if BEGUN in first else told
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _restore(trainer: Trainer, accept: frozenset[str]) -> frozenset[str]:
    """Go back to the newest whole checkpoint, if the run was not stopped before its first. Raises UserError.

    Returns what has changed since and was accepted: config, corpus, metrics.
    """
    path = trainer.folder.path
    try:
        checkpoint = newest_checkpoint(trainer.folder.checkpoints, "last")
    except DamagedCheckpoint as error:
        raise UserError(f"{error}; no other can be gone on from: start again with --overwrite") from None
    if checkpoint is None:
        _check_beginning(trainer.folder)
        return frozenset()
    progress, config, corpus, ranks = _known(checkpoint)
    if ranks != trainer.ranks.world:
        raise UserError(
            f"{path} was trained by {ranks} {plural('rank', ranks)}, not {trainer.ranks.world}; go on with "
            + (
                f"torchrun --nproc-per-node {ranks} -m backstory train"
                if ranks > 1
                else "backstory train, without torchrun"
            )
        )
    if "corpus" not in accept and corpus != trainer.dataset.fingerprint:
        raise UserError(
            f"{path} was trained on other text than this corpus now holds; give the same corpus, or --accept corpus to go on"
        )
    kept = trained_with(config, trainer.folder, trainer.config)
    if "config" not in accept and not kept:
        raise UserError(
            f"{trainer.folder.config} is not what {checkpoint.path.name} was trained with; "
            "put it back as it was, or --accept config to go on with these settings"
        )
    told = check_log(trainer.folder.metrics, progress.log_bytes, progress.epoch - 1, "metrics" in accept)
    try:
        trainer.restore(progress, checkpoint.tensors, kept)
    except ValueError as error:  # settings or a corpus that were accepted, or a checkpoint that lies
        raise UserError(f"{path} does not fit these settings and this corpus ({error}); start another run") from None
    found = {"config": kept, "corpus": corpus == trainer.dataset.fingerprint, "metrics": told}
    return frozenset(name for name, same in found.items() if not same)


def _check_beginning(folder: RunFolder) -> None:
    """Raise UserError where a run without a checkpoint had got further than its first epoch: it has lost some."""
    # Counted in the raw text: the last line may have been torn.
    lines = read_lines(folder.metrics, folder.path) if folder.metrics.exists() else ()
    epochs = sum(line.startswith(b'{"event": "epoch"') for line in lines)
    if BEGUN in _begun(folder):
        raise UserError(f"{folder.path} was stopped before it had begun; start again with --overwrite and --init-from")
    if epochs > 1 or (folder.path / RESULT).is_file():
        raise UserError(
            f"{folder.path} was trained, but {folder.checkpoints} has nothing left to go on from; "
            "put it back, or start again with --overwrite"
        )


def _known(checkpoint: Checkpoint) -> tuple[Progress, dict[str, Any] | str, str, int]:
    """What a checkpoint says of its run: progress, the settings (once: their hash), fingerprint of the corpus, ranks.

    Raises UserError.
    """
    saved, again = checkpoint.documents.get("progress"), "start again with --overwrite"
    if (
        checkpoint.documents.keys() != {"progress"}
        or not isinstance(saved, dict)
        or saved.keys() != {"progress", "config", "corpus", "ranks"}
    ):
        raise UserError(f"{checkpoint.path} was saved by another version of backstory; go on with that one, or {again}")
    hints = {"config": dict[str, Any] | str, "corpus": str, "ranks": int}
    if not all(conforms(saved[name], hint) for name, hint in hints.items()):
        raise UserError(f"{checkpoint.path} is damaged: it does not say what it was trained on and with; {again}")
    try:
        return Progress.read(saved["progress"]), saved["config"], saved["corpus"], saved["ranks"]
    except ValueError as error:
        raise UserError(
            f"{checkpoint.path} was saved by another version of backstory, or is damaged ({error}); "
            f"go on with that version, or {again}"
        ) from None


def _say_what_starts(console: Console, trainer: Trainer, mode: Mode) -> None:
    progress, split, path = trainer.progress, trainer.dataset.splits["train"], trainer.folder.path
    say(
        console,
        f"{count_parameters(trainer.model):,} parameters, {len(split.ids):,} tokens of {trainer.dataset.corpus}, "
        f"{len(trainer.dataset.vocabulary):,} types; {device_name(trainer.device)}; "
        f"{trainer.precision.name}: {trainer.precision.reason}",
    )
    if warning := _unknown_warning(trainer.dataset, trainer.config.text):
        say(console, warning)
    for overlap in overlaps(trainer.dataset) or []:
        if warning := overlap.warning(trainer.dataset.vocabulary.tokenizer.unit):
            say(console, warning)
    if trainer.device.type == "cpu" and torch.get_num_threads() > 1 and _busy():
        say(
            console,
            "other programs keep this machine busy; with OMP_NUM_THREADS=1 training may be several times faster",
        )
    if progress.finished:
        say(console, f"{path} is finished already, after step {progress.step:,}; there is nothing left to train")
    elif progress.step:
        where = f"after step {progress.step:,}, in epoch {progress.epoch}, segment {progress.segment}"
        say(console, f"resuming {path} {where}")
    elif mode == "resume":
        say(console, f"resuming {path} at its beginning, as it holds no whole checkpoint")


def _unknown_warning(dataset: Dataset, text: TextConfig) -> str | None:
    """Return what is said where too many validation tokens are outside the vocabulary."""
    vocabulary = dataset.vocabulary
    share, unit = unknown_share(vocabulary, dataset.splits["valid"]), vocabulary.tokenizer.unit
    helps = advice(share.cause, unit, text.minimum_count, text.maximum_size)
    return share.warning(f"the validation {plural(unit)}", helps)


def _busy() -> bool:
    """Whether others leave less than half of the processors, where the system says so."""
    cores = os.cpu_count() or 1
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > cores / 2


def _expected_tokens(trainer: Trainer) -> tuple[int, int]:
    """Tokens that training reads in all, if fine-tuning does not end early, and those it has read."""
    progress, epoch = trainer.progress, trainer.rows.shape[0] * (trainer.rows.shape[1] - 1)
    total = epoch * last_epoch(progress, trainer.config.training)
    inside = progress.epoch_tokens if progress.segment else 0
    return total, min(total, (progress.epoch - 1) * epoch + inside)


def _unit(trainer: Trainer) -> str:
    """What a score is told per: a token of the text, or one that is asked where the others count for nothing."""
    unit = trainer.dataset.vocabulary.tokenizer.unit
    return f"answer {unit}" if trainer.config.training.answer_loss_only else unit


def _speed(progress: Progress) -> float:
    """Tokens per second of the last epoch."""
    return round(progress.epoch_tokens / progress.epoch_seconds, 1)


def _figures(trainer: Trainer, folder: RunFolder) -> dict[str, Any]:
    """The figures of a training result, as docs/results.md describes them."""
    curve = read_events(folder.metrics, "epoch")
    for epoch in curve:
        del epoch["event"]
    progress, dataset = trainer.progress, trainer.dataset
    ids = {name: split.ids for name, split in dataset.splits.items()}
    if trainer.config.training.answer_loss_only:
        ids = {name: of_split[dataset.answer_mask(of_split)] for name, of_split in ids.items()}
    assert progress.best_nats is not None
    overlap = overlaps(dataset)
    return {
        "parameters": count_parameters(trainer.model),
        "epochs": progress.epoch - 1,  # of which a log that was mended tells fewer
        "best_epoch": progress.best_epoch,
        "valid_nats": progress.best_nats,
        "valid_perplexity": perplexity(progress.best_nats),
        "unit": _unit(trainer),
        "tokens": {name: len(of_split) for name, of_split in ids.items()},
        "unknown": {name: unknown_share(dataset.vocabulary, s).figures() for name, s in dataset.splits.items()},
        "overlap": None if overlap is None else [one.figures() for one in overlap],
        "tokens_per_second": statistics.median([e["tokens_per_second"] for e in curve] or [_speed(progress)]),
        "curve": curve,
    }
