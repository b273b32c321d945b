"""The start of a training: the newest whole checkpoint of its own, or the best weights of another run."""

from pathlib import Path
from typing import Any

from backstory.config.renamed import current_provenance
from backstory.data import Vocabulary
from backstory.data.tokenizers.pieces import Pieces, trained_kind
from backstory.data.tokenizers.vocabulary import is_fixed
from backstory.runs.run import Run, check_tensors, load_run, load_weights, weights
from backstory.runs.run_folder import RunFolder, trained_with
from backstory.storage.checkpoint import DamagedCheckpoint, newest_checkpoint
from backstory.storage.documents import conforms, parse
from backstory.storage.manifest import LAST
from backstory.storage.run_files import RESULT
from backstory.training.checkpointing import START_AGAIN, SavedRun
from backstory.training.events import check_log
from backstory.training.loop import Trainer
from backstory.utils.errors import FolderConflict, UserError, pasted, plural
from backstory.utils.process import launched
from backstory.utils.small_file import read_lines, read_small

INIT_FROM = "init_from"
"""Key of a run's provenance: the run whose weights it was initialised from."""
_KEPT = {"command": str | None, "started": str | None, INIT_FROM: dict[str, str] | None}
"""Types of the part of a run's provenance that stays when it is resumed; every result of the training repeats it."""


def initialise_from(trainer: Trainer, folder: Path) -> dict[str, str]:
    """Load the best weights of another run into the parts that the model shares with it; return that run's name and hash.

    Parts that the other model lacks, such as a buffer, keep their random weights. Raises UserError if the other model is no
    part of this one.
    """
    run = load_run(folder)
    if not run.vocabulary.gives_the_ids_of(trainer.dataset.vocabulary):
        raise UserError(
            f"{folder} has another vocabulary than this corpus gives; {_same_vocabulary(run, trainer.dataset.vocabulary)}"
        )
    own, loaded = weights(trainer.model), weights(run.model)
    try:
        check_tensors(loaded, {name: own[name] for name in loaded if name in own}, "weights")
    except ValueError as error:
        raise UserError(f"{folder} does not fit this model: {error}; give the same sizes and parts") from None
    load_weights(trainer.model, own | loaded)
    return {"run": folder.resolve().name, "weights": run.weights_hash}


def _same_vocabulary(run: Run, own: Vocabulary) -> str:
    """Return how a training on this corpus gets the vocabulary of another run."""
    tokenizer = run.vocabulary.tokenizer
    trained = trained_kind(tokenizer.name) if isinstance(tokenizer, Pieces) else None
    if trained is not None and not run.vocabulary.lowercase:  # `data tokenizer` trains on the text as it is
        kind, size = trained
        command = f"backstory data tokenizer {pasted(run.config.text.corpus)} --kind {kind} --size {size}"
        return f"write its tokenizer with `{command}`, and give --text.tokenizer tokenizer.json"
    if tokenizer.name != own.tokenizer.name and trained is None and is_fixed(tokenizer):
        return f"use its tokenizer, --text.tokenizer {pasted(tokenizer.name)}"
    return (
        "begin with a run on the same corpus, or train both with --text.tokenizer bytes or one tokenizer.json "
        "(`backstory data tokenizer` makes one), which give every text the same vocabulary"
    )


def resume(trainer: Trainer, accept: frozenset[str]) -> frozenset[str]:
    """Restore the newest whole checkpoint; a run that was stopped before its first starts at its beginning.

    Returns what has changed since and was accepted (config, corpus, metrics). Raises UserError for what was not.
    """
    folder, path = trainer.folder, trainer.folder.path
    try:
        checkpoint = newest_checkpoint(folder.checkpoints, LAST)
    except DamagedCheckpoint as error:
        raise error.as_user_error(f"there is no other checkpoint to resume from: {START_AGAIN}") from None
    if checkpoint is None:
        _check_without_checkpoint(folder)
        return frozenset()
    saved = SavedRun.read(checkpoint)
    if saved.ranks != trainer.ranks.world:
        workers = f"{saved.ranks} {plural('worker', saved.ranks)}, not {trainer.ranks.world}"
        torchrun = (
            f"torchrun --nproc-per-node {saved.ranks}" if saved.ranks > 1 else "`backstory train`, without torchrun"
        )
        remedy = torchrun if launched().world > 1 else f"--workers {saved.ranks}"
        raise UserError(f"{path} was trained by {workers}; go on with {remedy}")
    same_corpus = saved.corpus == trainer.dataset.fingerprint
    if not same_corpus and "corpus" not in accept:
        raise FolderConflict(
            f"{path} was trained on other text than this corpus now holds",
            "give the same corpus, or --accept corpus to go on",
        )
    same_settings = trained_with(saved.config, folder, trainer.config)
    if not same_settings and "config" not in accept:
        raise FolderConflict(
            f"{folder.config} is not what {checkpoint.path.name} was trained with",
            "put it back as it was, or --accept config to go on with these settings",
        )
    progress, trainer.threads = saved.progress, saved.threads
    same_log = check_log(folder.metrics, progress.log_bytes, progress.epoch - 1, "metrics" in accept)
    try:
        trainer.restore(progress, checkpoint.tensors, same_settings)
    except ValueError as error:  # settings or a corpus that were accepted, or a checkpoint with false contents
        raise UserError(f"{path} does not fit these settings and this corpus ({error}); start another run") from None
    unchanged = {"config": same_settings, "corpus": same_corpus, "metrics": same_log}
    return frozenset(name for name, same in unchanged.items() if not same)


def first_provenance(folder: RunFolder) -> dict[str, Any]:
    """Return the command and time that began the run, and the run it was initialised from; empty if they are damaged or absent.

    A resumed run is repeated by its first command.
    """
    try:
        recorded = current_provenance(parse(read_small(folder.provenance, inside=folder.path)))
    except (OSError, ValueError):
        return {}
    first = {key: recorded[key] for key in _KEPT if key in recorded} if isinstance(recorded, dict) else {}
    whole = {"command", "started"} <= first.keys() and all(conforms(value, _KEPT[key]) for key, value in first.items())
    return first if whole else {}


def _check_without_checkpoint(folder: RunFolder) -> None:
    """Raise UserError if a run without a checkpoint had come further than its first epoch: its checkpoints are lost."""
    if INIT_FROM in first_provenance(folder):
        raise UserError(f"{folder.path} was stopped before its first checkpoint; {START_AGAIN} and --init-from")
    # Counted in the raw text, as the last line may be torn.
    lines = read_lines(folder.metrics, folder.path) if folder.metrics.exists() else ()
    epochs = sum(line.startswith(b'{"event": "epoch"') for line in lines)
    if epochs > 1 or (folder.path / RESULT).is_file():
        raise UserError(
            f"{folder.path} was trained, but {folder.checkpoints} has no checkpoint left to resume from; "
            f"put it back, or {START_AGAIN}"
        )
