"""The figures of a finished training, from its log, its best validation and its text; and the hashes of its best weights."""

import statistics

from backstory.data import unknown_share
from backstory.data.overlap import overlaps
from backstory.models import count_parameters
from backstory.results.common import OverlapRecord, UnknownTokens
from backstory.results.training_record import EpochRecord, TrainingFigures, TrainingTokens
from backstory.runs.run import tensors_hash, weights
from backstory.storage.checkpoint import DamagedCheckpoint
from backstory.storage.manifest import WEIGHTS_FILE
from backstory.training.checkpointing import read_best
from backstory.training.events import read_events
from backstory.training.loop import Trainer
from backstory.utils.scores import perplexity


def best_hashes(trainer: Trainer) -> dict[str, str]:
    """Return the hashes of the best weights, as their readers compute them; empty if they are damaged."""
    try:
        best = read_best(trainer.folder, trainer.progress.best_epoch)
    except DamagedCheckpoint:
        return {}
    names = weights(trainer.model).keys()
    if best.tensors["weights"].keys() != names:
        return {}
    ordered = {name: best.tensors["weights"][name] for name in names}
    return {"weights": tensors_hash(ordered), "weights_file": best.hashes[WEIGHTS_FILE]}


def scored_unit(trainer: Trainer) -> str:
    """Return the unit of scores: a token of the text, or of an answer if only answers are trained on."""
    unit = trainer.dataset.vocabulary.tokenizer.unit
    return f"answer {unit}" if trainer.config.training.answer_loss_only else unit


def collect_training_figures(trainer: Trainer) -> TrainingFigures:
    """Return the figures of a training."""
    path = trainer.folder.metrics
    curve = [EpochRecord.read(event, str(path)) for event in read_events(path, "epoch")]
    progress, dataset = trainer.progress, trainer.dataset
    scored = {name: split.ids for name, split in dataset.splits.items()}
    if trainer.config.training.answer_loss_only:
        scored = {name: ids[dataset.answer_mask(ids)] for name, ids in scored.items()}
    assert progress.best_nats is not None
    speeds = [epoch.tokens_per_second for epoch in curve if epoch.tokens_per_second is not None]
    if not speeds:
        speeds = [round(progress.epoch_tokens / progress.epoch_seconds, 1)]
    shares = {name: unknown_share(dataset.vocabulary, split) for name, split in dataset.splits.items()}
    return TrainingFigures(
        parameters=count_parameters(trainer.model),
        epochs=progress.epoch - 1,  # a repaired log has lines on fewer
        best_epoch=progress.best_epoch,
        valid_nats=progress.best_nats,
        valid_perplexity=perplexity(progress.best_nats),
        unit=scored_unit(trainer),
        tokens=TrainingTokens.of({name: len(ids) for name, ids in scored.items()}),
        unknown={name: UnknownTokens.counted(share) for name, share in shares.items()},
        overlap=OverlapRecord.measured(overlaps(dataset)),
        tokens_per_second=statistics.median(speeds),
        curve=tuple(curve),
    )
