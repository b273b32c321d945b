"""Run experiments on trained runs and on models at hand, and write what was found."""

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from backstory.config import check_name
from backstory.context.examination import Alone, Ranks, check_length
from backstory.context.examine import chosen_splits, measure
from backstory.context.experiments import EXPERIMENTS, check_experiment
from backstory.context.figures import figures as figures_of
from backstory.context.losses import Progress
from backstory.context.result import Examined
from backstory.context.scorer import ReaderScorer, Scorer
from backstory.context.splits import check_splits
from backstory.context.subject import Options, Subject, Text, check_types, examination, hash_of
from backstory.models import LanguageModel, device_name
from backstory.models.allocator import keep_freed_memory
from backstory.models.loading import weights_hash
from backstory.reading import Reader, StaticReader
from backstory.reading.evaluation import file_name
from backstory.reading.kinds import parse_stack, stack_name
from backstory.reading.opening import Opened, Readers, open_run, open_text
from backstory.storage.provenance import check_place, provenance, write_result
from backstory.text import Dataset, prepare
from backstory.text.tags import Tagger
from backstory.text.tokenizers import UNKNOWN

FORMAT = 1
"""Raised when the rules of this room change, so that losses made by older rules are not taken over."""


def run_subject(
    subject: Subject,
    experiment: str,
    options: Options,
    destination: Path | None,
    *,
    progress: Callable[[int, int], None] | None = None,
    ranks: Ranks | None = None,
    again: bool = False,
) -> Examined:
    """Run an experiment on whatever model, and write its result and losses to the destination, if there is one.

    Conditions that an earlier run finished there are taken over, if all that they depend on is the same; `again` takes
    nothing over. Raises UserError.
    """
    check_experiment(experiment)
    began, kind = time.perf_counter(), EXPERIMENTS[experiment]
    place = destination if ranks is None or ranks.rank == 0 else None
    settings = {"format": FORMAT, "experiment": experiment, **_lasting(options, kind.whole), **subject.made_of}
    if kind.tagged and subject.on.tags is not None:
        settings["tags"] = hash_of(subject.on.tags)
    kept = Progress(place, settings, again)
    losses = measure(experiment, subject.on, progress, by=options.by, kept=kept, ranks=ranks)
    by = chosen_splits(experiment, options.by, losses)
    found = {
        "experiment": experiment,
        **subject.described,
        "seed": options.seed,
        "maximum_context": options.maximum_context,
        "context": None if kind.whole else options.context,
        "within_documents": options.within_documents,
        "near": options.near,
        "tagger": subject.tagger,
        "unknown_tag_share": None if subject.on.tags is None else float((subject.on.tags == UNKNOWN).mean()),
        **figures_of([losses], by, options.seed),
    }
    origin = {**subject.provenance, "seconds": round(time.perf_counter() - began, 1), "taken_over": kept.taken}
    kept.finish(losses)
    return Examined(write_result(place, "examination", subject.name, found, origin), (losses,))


def _lasting(options: Options, whole: bool) -> dict[str, Any]:
    """The options that losses depend on."""
    found = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in ("by", "tagger", "near")}
    return found | {"context": None if whole else options.context, "near": None if whole else options.near}


def examine_run(
    folder: Path | str,
    experiment: str,
    *,
    split: str = "valid",
    text: Path | None = None,
    reader: Readers = "static",
    targets: int = 2000,
    maximum_context: int = 1000,
    context: int = 300,
    near: int = 50,
    within_documents: bool = False,
    by: Sequence[str] | None = None,
    tagger: str | Tagger = "auto",
    seed: int = 0,
    precision: str = "auto",
    device: str = "auto",
    data_dir: Path | None = None,
    memory: int = 1 << 30,
    out: Path | str | None = None,
    again: bool = False,
    ranks: Ranks | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Examined:
    """Run an experiment on a trained run; the content of its result.json is `.result` (docs/results.md describes it).

    `reader` names one reader, or several that are stacked on each other (`parse_stack`); it reads the baseline, and every
    context with nothing read before it. `text` is a text of one's own, instead of a split. The result is written to `out`, else
    to RUN/examine-EXPERIMENT-SPLIT, with any reader but static added to the name, and contexts within documents. Baseline and
    conditions run in the same precision; `memory` is the budget of a batch of contexts, in bytes. Conditions that a stopped
    examination finished there are taken over, unless `again`. Raises UserError, also for a reader whose weights move.
    """
    check_experiment(experiment)
    check_splits(by or ())
    keep_freed_memory()
    options = Options(
        targets, maximum_context, context, near, within_documents, None if by is None else tuple(by), tagger, seed
    )
    if experiment == "cache":
        reader = _with_cache(reader)
    path, name = Path(folder), stack_name(parse_stack(reader))
    added = [*([] if name == "static" else [name]), *(["documents"] if within_documents else [])]
    how: dict[str, Any] = {"reader": reader, "precision": precision, "device": device}
    opened = open_run(folder, split, data_dir=data_dir, **how) if text is None else open_text(folder, text, **how)
    destination = Path(out or path / file_name("examine", experiment, opened.split.name, *added))
    if (ranks or Alone()).rank == 0:
        check_place(destination, "examination")
    subject = subject_of(opened, (path.name, name), experiment, options, memory, data_dir)
    return run_subject(subject, experiment, options, destination, progress=progress, ranks=ranks, again=again)


def _with_cache(reader: Readers) -> Readers:
    """The readers asked for, and the cache if it is not among them."""
    asked = [reader] if isinstance(reader, str) else list(reader)
    return reader if any(layer.name == "cache" for layer in parse_stack(reader)) else [*asked, "cache"]


def subject_of(
    opened: Opened, names: tuple[str, str], experiment: str, options: Options, memory: int, data_dir: Path | None = None
) -> Subject:
    """A run that is open for reading as what is examined. `names` are its own and that of the readers asked for.

    Raises UserError where the experiment cannot be made on it.
    """
    dataset, split = opened.dataset, opened.split
    training = None
    if experiment == "replace":  # which a text of one's own does not come with
        known = dataset if "train" in dataset.splits else prepare(*opened.run.text_source(data_dir))
        training = known.splits["train"].ids
    text = Text.of(dataset, split.name, experiment, options, data_dir)
    on = examination(text, opened.reader, ReaderScorer(opened.reader, memory), experiment, options, training)
    layers = [layer.as_dict() for layer in opened.layers]
    described = {"split": split.name, "reader": names[1], "readers": layers, "unit": text.unit}
    made_of = {**described, **_made_of(opened.reader), "text": dataset.fingerprint}
    return Subject(names[0], on, described, made_of, opened.provenance(), text.tagger)


def _made_of(reader: Reader) -> dict[str, Any]:
    """What the losses of a reader depend on beside the text."""
    return {
        "weights": weights_hash(reader.model),
        "precision": reader.precision.name,
        "device": next(reader.model.parameters()).device.type,
        "torch": torch.__version__,
    }


def examine_model(
    model: LanguageModel | Reader | Scorer,
    corpus: Dataset | np.ndarray,
    experiment: str = "truncate",
    *,
    split: str = "valid",
    name: str = "model",
    memory: int = 1 << 30,
    out: Path | str | None = None,
    again: bool = False,
    ranks: Ranks | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Examined:
    """Run an experiment on a model, a reader or anything with `score`, that is at hand; `options` are the fields of `Options`.

    `corpus` is a prepared one, of which a split is read, or token ids (N,) alone; these have no words, so that there are no
    tags and no frequencies. A scorer alone cannot read a text from end to end: the longest context stands for all there is.
    The result is written only where `out` says so. Raises UserError, also for a model of another vocabulary than the corpus.
    """
    check_experiment(experiment)
    check_splits(options.get("by") or ())
    chosen = Options(**{**options, "by": None if options.get("by") is None else tuple(options["by"])})
    reader = StaticReader(model) if isinstance(model, LanguageModel) else model if isinstance(model, Reader) else None
    scorer = cast(Scorer, model) if reader is None else ReaderScorer(reader, memory)
    training, corpus_is = None, {"name": "token ids"}
    if isinstance(corpus, Dataset):
        check_name(split, corpus.splits, "split")
        text, corpus_is = Text.of(corpus, split, experiment, chosen), corpus.describe()
        training = corpus.splits["train"].ids if "train" in corpus.splits else None
    else:
        ids = np.asarray(corpus)
        check_length(len(ids), chosen.maximum_context)
        text, split = Text(ids, int(ids[0])), "ids"
    if reader is not None:
        exact = isinstance(corpus, Dataset)
        types = len(corpus.vocabulary) if isinstance(corpus, Dataset) else int(text.ids.max()) + 1
        check_types(reader.model.vocabulary_size, types, exact)
    on = examination(text, reader, scorer, experiment, chosen, training)
    read_as = "static" if reader is None else reader.name
    described = {"split": split, "reader": read_as, "readers": [], "unit": text.unit}
    corpus_is = {"fingerprint": hash_of(np.asarray(text.ids, np.int64)), **corpus_is}
    made_of = {
        **described,
        **({"weights": name} if reader is None else _made_of(reader)),
        "text": corpus_is["fingerprint"],
    }
    precision = ("unknown", "the scorer's own") if reader is None else (reader.precision.name, reader.precision.reason)
    place = "unknown" if reader is None else device_name(next(reader.model.parameters()).device)
    destination = None if out is None else Path(out)
    if destination is not None:
        check_place(destination, "examination")
    origin = provenance({"seed": None}, place, *precision, corpus_is)
    subject = Subject(name, on, described, made_of, origin, text.tagger)
    return run_subject(subject, experiment, chosen, destination, progress=progress, ranks=ranks, again=again)
