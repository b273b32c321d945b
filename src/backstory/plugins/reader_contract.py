"""The contract of a reader as functions, on a small model: it scores before it learns, and leaves nothing behind."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, RunConfig, SoftmaxConfig
from backstory.data import build as build_vocabulary
from backstory.data import tokenizer
from backstory.evaluation import Audit, AuditReport, read
from backstory.evaluation.reading_loop import Reading
from backstory.models import (
    ComposedModel,
    build_model,
)
from backstory.plugins.model_contract import FULL_PRECISION, TYPES, require
from backstory.readers import Reader, ReaderKind, StaticReader
from backstory.readers.base import block_count
from backstory.readers.kind import BuildContext
from backstory.runs.run import Run


def small_model() -> ComposedModel:
    """Return a small LSTM with random weights that are large enough for its predictions to differ."""
    torch.manual_seed(0)
    core = LSTMConfig(layers=2, hidden=8, weight_drop=0.0)
    model = build_model(ModelConfig(EmbeddingConfig(size=8), core, head=SoftmaxConfig()), TYPES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def example_ids(count: int, types: int = TYPES) -> np.ndarray:
    """Return token ids (count,) below `types`, the same each time."""
    return np.random.default_rng(5).integers(types, size=count).astype(np.int32)


def audits(reader: Reader, tokens: int, rows: int) -> Iterator[tuple[Reading, AuditReport]]:
    """Yield three audited readings of a text."""
    ids = example_ids(tokens, reader.model.vocabulary_size)
    for seed in range(3):
        audit = Audit(block_count(len(ids), rows, 15), 4, seed)
        yield read(reader, ids, 0, batch_size=rows, block=15, observer=audit), audit.report


def passes_the_audit(reader: Reader) -> None:
    plain = read(reader, example_ids(120, reader.model.vocabulary_size), 0, block=15)
    for audited, report in audits(reader, 120, 1):
        require(report.passed, f"the audit fails: {'; '.join(report.failures)}")
        require(audited.nats == plain.nats, "scores change when the reader is audited; snapshot() must copy everything")


def keeps_rows_apart(reader: Reader) -> None:
    can, rows = reader.capabilities, 4
    if can.adapts_weights or not can.independent_rows:  # it does not claim so
        return
    for _, report in audits(reader, 240, rows):
        failures = "; ".join(report.failures)
        require(report.passed, f"with {rows} rows the audit fails: {failures}; or declare independent_rows=False")


def wraps_a_prediction(reader: Reader) -> None:
    if len(reader.stack()) == 1:
        return
    tokens = torch.from_numpy(example_ids(12, reader.model.vocabulary_size).astype(np.int64))[None]
    reader.start(1)
    parts = reader.predict(tokens).parts()
    require("p" in parts, "its prediction does not hold that of the reader inside it; parts() must return it as 'p'")


def forks(reader: Reader) -> None:
    tokens = torch.from_numpy(example_ids(12, reader.model.vocabulary_size).astype(np.int64))[None]
    reader.start(1)
    before = reader.predict(tokens).log_prob(tokens)
    reader.observe(tokens)
    after = reader.predict(tokens).log_prob(tokens)
    require(
        not torch.equal(before, after), "a second reading of the same block scores as the first; observe() must move on"
    )
    fork = reader.fork()
    fork.observe(tokens.flip(1))
    fork.predict(tokens)
    same = torch.equal(reader.predict(tokens).log_prob(tokens), after)
    require(same, "what a fork reads changes the reader it came from; snapshot() and restore() must copy")


def leaves_the_model_alone(reader: Reader) -> None:
    before = {name: p.detach().clone() for name, p in reader.model.named_parameters()}
    read(reader, example_ids(60, reader.model.vocabulary_size), 0)
    same = all(torch.equal(p, before[name]) for name, p in reader.model.named_parameters())
    require(same, "reading changes the weights of the loaded model; let a copy adapt")


def starts_again(reader: Reader) -> None:
    ids = example_ids(60, reader.model.vocabulary_size)
    require(read(reader, ids, 0).nats == read(reader, ids, 0).nats, "start() does not forget what was read before")


def reads_in_pieces(reader: Reader) -> None:
    can, ids = reader.capabilities, example_ids(60, reader.model.vocabulary_size)
    if not (can.block_invariant or can.collects_blocks):  # it does not claim so
        return
    apart = abs(read(reader, ids, 0).nats - read(reader, ids, 0, block=1).nats)
    require(apart < 1e-4, f"one token at a time scores differ by {apart:.2g} nats; declare block_invariant=False")


READER_CHECKS: Mapping[str, Callable[[Reader], None]] = {
    "the audit passes": passes_the_audit,
    "texts read side by side are independent": keeps_rows_apart,
    "it holds what it wraps": wraps_a_prediction,
    "a fork is independent": forks,
    "the model stays as it was": leaves_the_model_alone,
    "start forgets": starts_again,
    "one token at a time is the same": reads_in_pieces,
}


def reader_of(kind: ReaderKind) -> Reader:
    """Return a reader of the kind with its default settings over a small model, around a static one if it wraps another."""
    model, precision = small_model(), FULL_PRECISION
    vocabulary = build_vocabulary({str(i): TYPES - i for i in range(TYPES - 1)}, tokenizer("words"))
    run = Run(Path("run"), model, vocabulary, RunConfig(), {}, {})
    inner = StaticReader(model, precision) if kind.wraps else None
    return kind.build(BuildContext(run, precision, inner), kind.settings())
