"""Validation during training: the static score of the validation split, shared among the ranks, with the metrics that apply."""

import math
from typing import Any

import numpy as np

from backstory.config import RunConfig
from backstory.data import Dataset
from backstory.evaluation.metrics import AnswerAccuracy, GateStatistics, MetricSet, added
from backstory.evaluation.reading_loop import StreamReading
from backstory.jobs.ranks import Ranks
from backstory.models import ComposedModel, Precision
from backstory.readers import StaticReader
from backstory.utils.errors import NonFiniteError


def read_validation(
    model: ComposedModel, dataset: Dataset, config: RunConfig, precision: Precision, ranks: Ranks
) -> tuple[float, dict[str, Any]]:
    """Return the mean nats, of the answers alone if only they are trained on, and the metrics that apply.

    Every rank reads its share of the rows; the sums of all are added in the order of the ranks. The nats are nan if the
    weights broke down.
    """
    reader, ids = StaticReader(model, precision), dataset.splits["valid"].ids
    answers, metrics = dataset.answers("valid"), MetricSet([])
    accuracy = None if answers is None else AnswerAccuracy(answers, precision, reader.block)
    if model.gated is not None:
        metrics.add(GateStatistics(precision, model.gated.config.gate.reward))
    if accuracy is not None:
        metrics.add(accuracy)
    batch_size = min(config.training.validation_batch_size, len(ids))
    rows, sums = ranks.share(batch_size), {"nats": 0.0, "tokens": 0}
    if rows.start < rows.stop:  # there may be fewer rows than ranks
        stream = StreamReading(reader, ids, dataset.vocabulary.start, batch_size=batch_size, rows=rows)
        try:
            for block in stream.remaining():
                metrics.update(stream.score(block))
                stream.observe(block)
            sums = {"nats": stream.position.nats, "tokens": stream.position.tokens}
        except NonFiniteError:  # the training reports it with the epoch and the remedy
            sums["nats"] = math.nan
    total = added(ranks.exchange(sums | {"metrics": metrics.state_dict()}))
    if math.isnan(total["nats"]):
        return math.nan, {}
    metrics.load_state_dict(total["metrics"])
    answers_only = config.training.answer_loss_only
    nats = accuracy.nats() if answers_only and accuracy is not None else total["nats"] / total["tokens"]
    return nats, {metric.name: metric.result() for metric in metrics}


def unigram_nats(dataset: Dataset) -> float | None:
    """Return the mean nats of validation under word frequencies of training, each count plus one; None for a synthetic task.

    A model that is no better has learned nothing from the order of the words.
    """
    if dataset.answers("valid") is not None:
        return None
    counts = np.bincount(dataset.splits["train"].ids, minlength=len(dataset.vocabulary)) + 1.0
    return float(np.log(counts.sum()) - np.log(counts)[dataset.splits["valid"].ids].mean())
