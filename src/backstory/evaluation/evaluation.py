"""Evaluate a trained run: read a split or a text once, audit the reader, and write the figures with their units."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backstory.config.options import EvalOptions, folder_name
from backstory.data.encoding import TextLines
from backstory.evaluation.audit import Audit, AuditReport, usual_places
from backstory.evaluation.evaluation_checkpoint import EvaluationCheckpoint
from backstory.evaluation.evaluation_figures import collect_figures, window
from backstory.evaluation.line_reading import ENDINGS, LineReading, counted_words, line_audit, written_lines
from backstory.evaluation.metrics import MetricSet
from backstory.evaluation.metrics.per_token import check_per_token, check_table
from backstory.evaluation.opening import EvalSetup, open_evaluation
from backstory.evaluation.proving import check_proof, written_proof
from backstory.evaluation.reading_loop import Position, Reading, read
from backstory.models.devices import device_name, restored_threads
from backstory.readers.base import Reader, StaticReader, block_count
from backstory.readers.reading_threads import choose_threads
from backstory.readers.registry import parse_stack, stack_name
from backstory.readers.saved_reading import reader_identity
from backstory.results.common import ProvenanceRecord
from backstory.results.evaluation_record import EvaluationFigures
from backstory.results.result_file import Result, result_or_none, write_result
from backstory.runs.run import Run, open_run
from backstory.storage.atomic import check_apart, within
from backstory.storage.provenance import check_place
from backstory.storage.run_files import RESULT
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, check_name
from backstory.utils.terminal import ProgressCallback


@checked()
@restored_threads()
@torch.no_grad()
def evaluate(
    model: Path | str | Run, options: EvalOptions | None = None, progress: ProgressCallback | None = None, **fields: Any
) -> Result[EvaluationFigures]:
    """Score a text with a reader, each token before anything is learned from it.

    `model` is a run's folder, `hf:NAME` or an open run; `fields` are those of EvalOptions and replace them, as in
    `evaluate("runs/x", split="valid", reader="cache")`. `progress` is called with the tokens read and all tokens.

    Returns the result (docs/results.md): its `figures` with their units and the audit, and its `provenance`. It is written to
    `options.out`, by default RUN/evaluate-SPLIT with whatever is not the default added to the name; for a text,
    a corpus that is named, or a model from elsewhere, only if `out` is given. Raises UserError, before anything is written.
    """
    options = EvalOptions.build(options, **fields)
    options.check()
    if options.per_token is not None:
        check_per_token(options.per_token, options.batch_size, options.overwrite)
    if options.per_line is not None:
        check_table(options.per_line, options.overwrite, ENDINGS)
    check_proof(options)
    check_apart((options.per_token, options.per_line, options.proof), options.text)
    setup = open_evaluation(model, options, other_corpus=True)
    if setup.lines is not None:
        return _evaluate_lines(setup, setup.lines, progress)
    overlap = setup.overlap(options.data_dir, options.allow_equal_splits)
    check_text(setup)
    destination = result_folder(setup)

    reader, start, batch_size = setup.reader, setup.dataset.vocabulary.start, options.batch_size
    before = setup.split.ids[:0] if options.after is None else setup.dataset.splits[options.after].ids
    adapted = setup.layers[0].name != "static"  # then the static reader reads the text too, for comparison
    metrics = MetricSet.for_evaluation(setup, options)
    audit = audit_of(reader, len(setup.split.ids), options)
    checkpoint = EvaluationCheckpoint(
        destination,
        lambda: evaluation_identity(setup, device_name(setup.run.device)),
        {metric.name: metric for metric in metrics} | {"audit": audit},
        save_every=0.0 if options.per_token is not None else options.save_every,
        resume=options.resume,
        progress=progress,
        total=len(before) + len(setup.split.ids) * (2 if adapted else 1),
    )
    with checkpoint:
        if not checkpoint.is_resumed:
            choose_threads(reader, setup.split.ids, batch_size, checkpoint.total)
        origin = setup.provenance()
        if options.after is not None:
            deque(checkpoint.read("after", reader, before, start, batch_size=batch_size), maxlen=0)
        reset = options.after is None
        with metrics:  # a table of tokens is put in place after the result
            for scored in checkpoint.read(
                "text", reader, setup.split.ids, start, batch_size=batch_size, audit=audit, reset=reset
            ):
                metrics.update(scored)
                del scored  # free its activations before the next block is predicted
            if adapted:
                static = StaticReader(setup.run.model, reader.precision)
                deque(checkpoint.read("static", static, setup.split.ids, start, batch_size=batch_size), maxlen=0)
            readings, facts = checkpoint.readings, checkpoint.facts.get("text")
            origin = replace(origin, seconds=round(readings["text"].seconds, 1))
            figures = collect_figures(setup, readings, metrics, audit.report, overlap, facts)
            return _write(setup, figures, origin, destination, progress)


def evaluate_corpora(
    model: Path | str | Run,
    corpora: Sequence[str],
    options: EvalOptions | None = None,
    progress: ProgressCallback | None = None,
    done: Callable[[Result[EvaluationFigures]], object] | None = None,
    **fields: Any,
) -> list[Result[EvaluationFigures]]:
    """Evaluate a model on each of several corpora, as `evaluate` does, and return the results in order.

    With `out`, each result goes into a subfolder named after its corpus. `done` is called with every result. Raises
    UserError before anything is read if a corpus is missing, or for options that apply to a single corpus.
    """
    options = EvalOptions.build(options, **fields)
    single = {"TEXT": options.text, "--per-token": options.per_token, "--proof": options.proof}
    for flag, value in (*single.items(), ("--resume", options.resume)):
        if value not in (None, False):
            raise UserError(f"{flag} goes with one corpus at most; leave it out, or name one corpus")
    if not corpora:
        raise UserError("no corpus is named; name one or more")
    folders = [folder_name(Path(corpus).name) for corpus in corpora]
    for name in folders:
        if folders.count(name) > 1:
            raise UserError(f"two corpora are called {name}; name each once, or give their files different names")
    run = open_run(model, options.load_options())
    for corpus in corpora:
        check_name(options.split, run.other_dataset(corpus, options.data_dir, options.field).splits, "split")
    results = []
    for corpus, name in zip(corpora, folders, strict=True):
        out = None if options.out is None else within(options.out, name)
        results.append(evaluate(run, replace(options, corpus=corpus, out=out), progress))
        if done is not None:
            done(results[-1])
    return results


def _evaluate_lines(setup: EvalSetup, lines: TextLines, progress: ProgressCallback | None) -> Result[EvaluationFigures]:
    """Score each line of a text by itself, from the model's start state."""
    setup = replace(setup, split=counted_words(setup.split, setup.dataset.vocabulary))
    options, split, vocabulary = setup.options, setup.split, setup.dataset.vocabulary
    # Overlap is measured on tokens, and with most tokenizers these lack the line ends of the training text.
    overlap = setup.overlap(options.data_dir, True) if vocabulary.tokenizer.name == "words" else None
    destination, batch_size = result_folder(setup), min(options.batch_size, len(split.documents))
    choose_threads(setup.reader, split.ids, batch_size)
    origin = setup.provenance()
    reading = LineReading(setup.reader, split, vocabulary.start, batch_size=batch_size)
    reading.observer = audit = line_audit(reading, options.audit_places, options.audit_seed)
    passes = {"text": reading}
    if setup.layers[0].name != "static":  # then the static reader reads the lines too, for comparison
        static = StaticReader(setup.run.model, setup.reader.precision)
        passes["static"] = LineReading(static, split, vocabulary.start, batch_size=batch_size)
    metrics, readings = MetricSet.for_evaluation(setup, options), dict[str, Reading]()
    with metrics:  # tables of tokens and of lines are put in place after the result
        for name, one in passes.items():
            earlier = sum(reading.tokens for reading in readings.values())
            for block in one.remaining():
                scored = one.score(block)
                if name == "text":
                    metrics.update(scored)
                del scored
                one.observe(block)
                if progress is not None:
                    progress(earlier + one.position.tokens, len(passes) * len(split.ids))
            readings[name] = one.result()
        origin = replace(origin, seconds=round(readings["text"].seconds, 1))
        figures = collect_figures(setup, readings, metrics, audit.report, overlap)
        counts = {"lines": len(split.documents), "empty_lines": lines.empty}
        figures = replace(figures, **counts, **window(setup, int(reading.lengths.max())))
        with nullcontext() if options.per_line is None else written_lines(options.per_line, split, lines, reading):
            return _write(setup, figures, origin, destination, progress)


def _write(
    setup: EvalSetup,
    figures: EvaluationFigures,
    origin: ProvenanceRecord,
    destination: Path | None,
    progress: ProgressCallback | None,
) -> Result[EvaluationFigures]:
    """Write the result and return it; the proof of the score, if one is asked for, is put in place after it.

    Raises ChangedRun if the run has other weights by now.
    """
    with ExitStack() as stack:
        if (path := setup.options.proof) is not None:
            proof = stack.enter_context(written_proof(setup, path, figures.nats_per_token, progress))
            figures = replace(figures, proof=proof)
        setup.run.check_unchanged(destination)
        return write_result(destination, setup.run.name, figures, origin)


@restored_threads()
def audit_reader(setup: EvalSetup, progress: ProgressCallback | None = None) -> tuple[Reading, AuditReport]:
    """Read the text once, audited, without any metric; return the score and the audit's report. Raises UserError."""
    if setup.lines is not None:
        raise UserError("an audit reads a text from end to end; leave --each-line out")
    check_text(setup)
    choose_threads(setup.reader, setup.split.ids, setup.options.batch_size)
    return audit_ids(setup.reader, setup.split.ids, setup.dataset.vocabulary.start, setup.options, progress)


def audit_ids(
    reader: Reader, ids: np.ndarray, start: int, options: EvalOptions, progress: ProgressCallback | None = None
) -> tuple[Reading, AuditReport]:
    """Read token ids (N,) once with any reader, audited, from the token `start`; return the score and the audit's report.

    Raises UserError for fewer ids than rows, and for ids that the model does not know.
    """
    check_batch(options.batch_size, len(ids))
    types = getattr(reader.model, "vocabulary_size", None)
    if types is not None and not 0 <= ids.min() <= ids.max() < types:
        raise UserError(
            f"the token ids are from {ids.min():,} to {ids.max():,}, and the model knows 0 to {types - 1:,}; encode the text "
            "with the model's own vocabulary"
        )
    audit = audit_of(reader, len(ids), options)

    def report(position: Position) -> None:
        if progress is not None:
            progress(position.tokens, len(ids))

    reading = read(reader, ids, start, batch_size=options.batch_size, observer=audit, passed=report)
    return reading, audit.report


def audit_of(reader: Reader, tokens: int, options: EvalOptions) -> Audit:
    """Return the audit for a reading of this many tokens."""
    blocks = block_count(tokens, options.batch_size, reader.block)
    return Audit(blocks, audited_places(reader, options), options.audit_seed)


def audited_places(reader: Reader, options: EvalOptions) -> int:
    """Return the number of audited blocks: that of the options, or else the default."""
    return options.audit_places or usual_places(reader.block, options.batch_size)


def check_text(setup: EvalSetup) -> None:
    """Raise UserError if the text is shorter than the batch, or may not be read after the split that is read first."""
    options = setup.options
    if options.after is not None:
        check_after(options.after, setup.split.name, setup.dataset.splits)
        check_batch(options.batch_size, len(setup.dataset.splits[options.after].ids), options.after)
    check_batch(options.batch_size, len(setup.split.ids))


def check_batch(batch_size: int, tokens: int, name: str = "the text") -> None:
    """Raise UserError if a text has fewer tokens than there are rows to read."""
    if batch_size > tokens:
        raise UserError(
            f"{name} has {tokens:,} tokens but --batch-size is {batch_size:,}; use --batch-size {tokens} or less"
        )


def check_after(after: str, split: str, splits: Iterable[str]) -> None:
    """Raise UserError unless `after`, one of the splits, may be read, and learned from, before the one that is scored."""
    check_name(after, splits, "split")
    if after == split:
        raise UserError(f"{after} would be scored with what was learned from it; name another split with --after")
    if after == "test":
        raise UserError(
            "nothing is learned from the test split before another is scored; use --after=train or --after=valid"
        )


def result_folder(setup: EvalSetup) -> Path | None:
    """Return the folder of the result; None if it is not written. Raises UserError if it cannot be."""
    options, folder = setup.options, setup.options.out
    if folder is None and options.text is None and options.corpus is None and setup.run.results is not None:
        overrides = (
            () if setup.run.as_trained else tuple("=".join(item) for item in options.inference_overrides().items())
        )
        resolved = EvalOptions.build(
            options,
            reader=stack_name(parse_stack(options.reader)),
            precision=setup.reader.precision.name,
            addressing=None,
            overrides=overrides,
        )
        folder = within(setup.run.results, resolved.folder_name())
    if folder is not None:
        check_place(folder, "evaluation")
        if options.out is not None and not options.overwrite:
            _check_renewed(setup, folder)
    elif options.resume:
        raise UserError(
            "nothing to resume: this evaluation was not saved (no --out). Run it again with --out FOLDER, without --resume"
        )
    return folder


def _check_renewed(setup: EvalSetup, folder: Path) -> None:
    """Raise UserError for a result in the folder of another run, text or reader, which this one would not renew."""
    held = result_or_none(folder / RESULT)
    if held is None:
        return
    old, new = (provenance.corpus and provenance.corpus.name for provenance in (held.provenance, setup.provenance()))
    known = held.name, old, held.figures.split, held.figures.reader
    if known != (setup.run.name, new, setup.split.name, stack_name(parse_stack(setup.options.reader))):
        what = f"{known[0]}, {known[2]} of {known[1]} with {known[3]}"
        raise UserError(
            f"{folder} holds the result of another evaluation ({what}), which would be lost; choose another folder with "
            "--out, or --overwrite"
        )


def evaluation_identity(setup: EvalSetup, device: str | None) -> dict[str, Any]:
    """Return everything that the figures depend on. A checkpoint with another identity is not resumed."""
    options = setup.options
    text = {
        "text": setup.dataset.fingerprint,
        "split": setup.split.name,
        "after": options.after,
        "batch_size": options.batch_size,
        "places": audited_places(setup.reader, options),
        "device": device,
        **options.further(),
    }
    if options.audit_seed is not None:
        text["audit seed"] = options.audit_seed
    return {**reader_identity(setup.run, setup.layers, setup.reader), **text}
