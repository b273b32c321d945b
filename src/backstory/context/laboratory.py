"""Examine trained runs, sets of runs that differ in their seed, and models in memory, and write the results."""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from backstory.config.examination_options import ExaminationSettings, ExamineOptions
from backstory.config.options import LoadOptions
from backstory.config.plugin_files import plugin_hashes
from backstory.context.effects import figures
from backstory.context.examination import ProcessGroup, SingleProcess, check_splits
from backstory.context.experiment_run import check_context, measure, reported_splits
from backstory.context.experiments import EXPERIMENTS, check_experiment
from backstory.context.losses import Losses, LossStore
from backstory.context.result import ExaminationResult, combine
from backstory.context.scorer import Scorer, refuse_adapting
from backstory.context.subject import Subject, array_hash, subject_in_memory, subject_of_run
from backstory.data import Dataset
from backstory.data.tags import check_tagger
from backstory.data.tokenizers.built_in import UNKNOWN
from backstory.evaluation.opening import open_evaluation
from backstory.models import LanguageModel
from backstory.models.devices import restored_threads
from backstory.readers import Reader
from backstory.readers.reading_threads import choose_threads
from backstory.readers.registry import READERS, parse_stack, stack_name
from backstory.results.common import UnknownTokens
from backstory.results.result_file import write_result
from backstory.runs.run import Run, open_run
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place
from backstory.utils.arguments import checked, with_article
from backstory.utils.clock import CLOCK
from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback

E = TypeVar("E", bound=ExaminationSettings)
FORMAT = 1
"""Raised when the rules of examinations change, so that losses made by older rules are not taken over."""
OF_RUNS = ("reader", "precision", "data_dir", "corpus", "allow_unknown", *LoadOptions.__dataclass_fields__)
"""Options for runs only; a model in memory comes with its reader and its text."""


@checked()
@restored_threads()
def examine_run(
    run: Path | str | Run,
    options: ExamineOptions | None = None,
    *,
    text: Path | BinaryIO | None = None,
    ranks: ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
) -> ExaminationResult:
    """Run an experiment on a trained run; docs/results.md describes the result.

    The reader reads the baseline, and every context from an empty state. `text` is a user's own text, instead of a split.
    The result is written to `options.out`, else to a folder in the run named by the options; that of a model from elsewhere
    (`hf:...`) only to `options.out`. Targets and contexts are words if the tokens are pieces of words (`fold`). Conditions that
    a stopped examination finished there are taken over, unless `options.again`. Raises UserError, also for a reader whose
    weights move, and unless `options.allow_unknown` for a text that is mostly outside the vocabulary.
    """
    options = check_examination(options or ExamineOptions())
    if options.experiment == "cache":
        options = replace(options, reader=_with_cache(options.reader))
    stack = parse_stack(options.reader or "static")
    setup, reader = open_evaluation(run, options, text=text), stack_name(stack)
    destination = options.out
    if destination is None and setup.run.results is not None:
        destination = within(setup.run.results, options.folder_name(setup.split.name, reader))
    ranks = ranks or SingleProcess()
    if destination is not None and ranks.rank == 0:
        check_place(destination, "examination")
    if ranks.world == 1:
        choose_threads(setup.reader, setup.split.ids, tokens=options.targets * options.context_length)
    subject = subject_of_run(setup, reader, options)
    return _examine(subject, destination, progress=progress, ranks=ranks, again=options.again)


@checked()
def examine_runs(
    runs: Sequence[Path | str],
    options: ExamineOptions | None = None,
    *,
    text: Path | BinaryIO | None = None,
    ranks: ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
) -> ExaminationResult:
    """Examine several runs that differ in their seed, each into its own folder, and put the results together.

    The set's own result is written to `options.out`, if given. Raises UserError.
    """
    options, first = options or ExamineOptions(), (ranks or SingleProcess()).rank == 0
    if len(runs) < 2:
        raise UserError("a set of models takes two runs at least; name them all")
    if options.out is not None and first:
        check_place(options.out, "examination")
    paths = [Path(run).resolve() for run in runs]
    if twice := next((run for i, run in enumerate(runs) if paths[i] in paths[:i]), None):
        raise UserError(f"{twice} is named twice; a set is of models that differ in their seed")
    # Examining takes long: refuse runs that do not compare before the first is examined.
    corpora = [open_run(run, replace(options.load_options(), device="cpu")).corpus["fingerprint"] for run in runs]
    if other := next((run for run, corpus in zip(runs, corpora, strict=True) if corpus != corpora[0]), None):
        raise UserError(f"{other} is of another corpus or tokenizer than {runs[0]}; compare models of one")
    results: list[ExaminationResult] = []

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(len(results) * total + done, len(runs) * total)

    again = _reopened(text)
    for run in runs:
        results.append(examine_run(run, replace(options, out=None), text=again(), ranks=ranks, progress=report))
    together = combine(results)
    if options.out is not None and first:
        return replace(together, path=together.save(options.out))
    return together


def _reopened(text: Path | BinaryIO | None) -> Callable[[], Path | BinaryIO | None]:
    """Return a function that gives the text anew for each run; an open file is read once."""
    if text is None or isinstance(text, Path):
        return lambda: text
    content, name = text.read(), getattr(text, "name", "text")

    def opened() -> BinaryIO:
        file = io.BytesIO(content)
        file.name = name  # the text's name in results
        return file

    return opened


@checked()
def examine_model(
    model: LanguageModel | Reader | Scorer,
    corpus: Dataset | np.ndarray,
    options: ExamineOptions | None = None,
    *,
    name: str = "model",
    ranks: ProcessGroup | None = None,
    progress: ProgressCallback | None = None,
) -> ExaminationResult:
    """Run an experiment on a model, a reader or anything with `score`, that is in memory.

    `corpus` is a prepared corpus, of which a split is read, or token ids (N,) alone, which have no tags and no frequencies. A
    scorer cannot read a text from end to end: the longest context is then its baseline. The result is written only to
    `options.out`. Raises UserError, also for a model of another vocabulary than the corpus.
    """
    options = check_examination(options or ExamineOptions())
    if unused := [option for option in OF_RUNS if getattr(options, option) != getattr(ExamineOptions(), option)]:
        raise UserError(f"{unused[0]} works with runs only; leave it out to examine a model in memory")
    if not isinstance(model, LanguageModel | Reader) and not hasattr(model, "score"):
        raise UserError(
            f"{with_article(type(model).__name__)} cannot be examined; give a model, a reader or something with `score`"
        )
    subject = subject_in_memory(model, corpus, options, name)
    if options.out is not None:
        check_place(options.out, "examination")
    again = options.again or not subject.identified
    return _examine(subject, options.out, progress=progress, ranks=ranks, again=again)


def _examine(
    subject: Subject,
    destination: Path | None,
    *,
    progress: ProgressCallback | None = None,
    ranks: ProcessGroup | None = None,
    again: bool = False,
) -> ExaminationResult:
    """Run an experiment on any model, and write its result and losses to the destination, if there is one.

    Conditions that an earlier examination finished there are taken over if all that they depend on is the same; `again` takes
    nothing over. Raises UserError.
    """
    began, ranks, settings = CLOCK.seconds(), ranks or SingleProcess(), subject.settings
    destination = destination if ranks.rank == 0 else None
    if ranks.rank == 0 and settings.word_score == "sum" and subject.text.folded is None:
        warnings.warn("word score sum has no effect: the targets are not words joined from pieces", stacklevel=2)
    store = LossStore(destination, _store_settings(subject, settings), again)
    losses = measure(settings.experiment, subject.examination, progress, by=settings.by, store=store, ranks=ranks)
    cut = _cut_contexts(subject, settings, losses)
    effects = figures([losses], reported_splits(settings.experiment, settings.by, losses), settings.seed)
    provenance = replace(
        subject.provenance,
        weights=subject.depends_on.get("weights"),
        ranks=ranks.world,
        seconds=round(CLOCK.seconds() - began, 1),
        taken_over=store.taken,
    )
    subject.check_unchanged(destination)
    store.finish(losses)
    if ranks.rank == 0 and cut:
        warnings.warn(_about_cut(subject, settings, losses, cut), stacklevel=2)
    record = effects.figures(_described(subject, settings, losses, cut))
    return ExaminationResult.of(write_result(destination, subject.name, record, provenance), [losses])


def _store_settings(subject: Subject, settings: ExaminationSettings) -> dict[str, Any]:
    """Return everything that the losses depend on; losses of equal settings are reused."""
    experiment, text = EXPERIMENTS[settings.experiment], subject.text
    key = {"format": FORMAT, **settings.losses_key(experiment.whole), **subject.depends_on}
    if experiment.tagged and text.tags is not None:
        key["tags"] = array_hash(text.tags)
    if text.folded is not None:
        key["word_score"] = text.folded.word_score
    if plugins := plugin_hashes():
        key["plugins"] = plugins
    return key


def _cut_contexts(subject: Subject, settings: ExaminationSettings, losses: Losses) -> int:
    """Return the number of targets whose contexts, in words of several pieces, are longer than the model's window."""
    words = subject.text.folded
    if words is None:
        return 0
    reach = settings.longest_context if EXPERIMENTS[settings.experiment].whole else settings.context_length
    return words.longer(*subject.examination.reached(losses.positions, reach), subject.window)


def _about_cut(subject: Subject, settings: ExaminationSettings, losses: Losses, cut: int) -> str:
    """Return a warning of contexts that were cut, with the longest context that fits for every target."""
    words = subject.text.folded
    fits = words.fitting(losses.positions, subject.window) if words and subject.window else 0
    kind = "maximum context" if EXPERIMENTS[settings.experiment].whole else "context"
    return (
        f"{subject.name} reads at most {subject.window:,} tokens; the contexts of {cut:,} of {len(losses.positions):,} targets "
        "are longer, and cut" + (f"; a {kind} of {fits:,} words fits for all of them" if fits else "")
    )


def _described(subject: Subject, settings: ExaminationSettings, losses: Losses, cut: int) -> dict[str, Any]:
    """Return the figures of the result that describe the settings, the text, and how it was read."""
    experiment, text, words = EXPERIMENTS[settings.experiment], subject.text, subject.text.folded
    unknown = None if subject.unknown_among is None else subject.unknown_among(losses.positions)
    return {
        **settings.recorded(experiment.whole),
        **subject.reading,
        "tagger": text.tagger,
        "unknown_tag_share": None if text.tags is None else float((text.tags == UNKNOWN).mean()),
        "pieces_per_word": None if words is None else words.tokens / len(words.ids),
        "word_score": None if words is None else words.word_score,
        "window": subject.window,
        "cut_contexts": cut,
        **vars(UnknownTokens.counted(unknown)),
        **({} if experiment.picture is None else {"picture": experiment.picture}),
    }


def check_examination(settings: E) -> E:
    """Return settings with every value checked, as far as that needs neither a model nor a text. Raises UserError."""
    settings = settings.checked()
    check_experiment(settings.experiment)
    check_splits(settings.by, settings.experiment)
    check_tagger(settings.tagger)
    kind = EXPERIMENTS[settings.experiment]
    if not kind.whole and settings.context is not None:
        check_context(settings.context, settings.longest_context)
    readers = _with_cache(settings.reader) if settings.experiment == "cache" else settings.reader
    for layer in parse_stack(readers or "static"):
        if READERS[layer.name].adapts_weights:
            refuse_adapting(layer.name)
    return settings


def _with_cache(readers: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readers with a cache around them, unless the outermost is one. Raises UserError for a cache inside others."""
    names = [layer.name for layer in parse_stack(readers or "static")]
    if "cache" not in names:
        return (*readers, "cache")
    if names[-1] != "cache":
        raise UserError(f"what is taken away is the outermost reader, and that is {names[-1]}; name the cache last")
    return readers
