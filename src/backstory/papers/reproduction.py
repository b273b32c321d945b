"""Reproduce a paper: run a suite at one scale, take over finished runs of earlier results, and write the result."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from backstory.config import TextConfig
from backstory.context.examination import check_length
from backstory.data import Dataset, prepare
from backstory.jobs.child import threads
from backstory.jobs.launchers import Launcher, LocalProcesses
from backstory.jobs.runner import DONE, FAILED, JobDisplay, run_jobs
from backstory.models import choose_device
from backstory.models.devices import choose_precision
from backstory.papers.plan import SuiteRun, fingerprints, runs_of, select, with_seeds
from backstory.papers.suite import HOURS, Scale, Suite, load
from backstory.papers.suite_folder import SuiteFolder
from backstory.papers.suite_jobs import COLUMNS, KnownRun, RunJob, SuiteJobs, minutes_to_go, run_jobs_of
from backstory.papers.suite_result import reproduction_figures, reproduction_provenance
from backstory.results import ReproductionFigures, Result, result_at
from backstory.results.common import ProvenanceRecord
from backstory.results.result_file import write_result
from backstory.results.suite_run_record import ReusableRun, RunRecord
from backstory.storage.lock import locked
from backstory.storage.provenance import now
from backstory.utils.errors import UserError, plural
from backstory.utils.formats import duration
from backstory.utils.process import Stopped, StopRequest
from backstory.utils.small_file import resolved
from backstory.utils.terminal import make_console, shown_progress

# --- run a suite ---


@dataclass(frozen=True)
class Reproduction:
    """A suite at one scale, and the folder it is run in."""

    name: str
    suite: Suite
    scale: Scale
    folder: SuiteFolder
    minutes: float | None
    """Minutes that each run is trained for; None for the epochs of the suite."""
    runs: list[SuiteRun]
    """All runs of the scale."""
    todo: list[SuiteRun]
    """The runs that were selected."""
    known: Mapping[str, KnownRun]
    """Finished runs of other results, by name."""
    known_lines: Sequence[str]
    """A line on each of those results."""
    selection: str
    """The flags of the command that selects these runs: ` --only awd-lstm --seeds 1`; empty for all."""

    @classmethod
    def plan(
        cls,
        name: str,
        scale: Scale,
        out: Path | None = None,
        only: Sequence[str] = (),
        known: Sequence[Path] = (),
        minutes: float | None = None,
        seeds: Sequence[int] = (),
        dry_run: bool = False,
    ) -> "Reproduction":
        """Read and check a suite, its folder, and earlier results of it; nothing is written. Raises UserError.

        With `minutes` each run is trained for that time, not for its epochs. With `seeds` only these are run, of the systems
        `only` or of all; the suite may lack them. Seeds that were begun in the folder stay. With `dry_run` the folder may be
        one that cannot be written to.
        """
        suite, stem = load(name), Path(name).stem
        source = name if name != stem else f"suite {name}"
        runs = runs_of(suite, scale, source, minutes)
        folder = SuiteFolder(_relative(out or Path("runs") / _result_name(stem, scale, minutes)))
        if further := [*folder.seeds(), *((run.system, seed) for run in select(runs, only, suite) for seed in seeds)]:
            suite = with_seeds(suite, scale, further)
            runs = runs_of(suite, scale, source, minutes)
        folder.check(runs, dry_run)
        todo = select(runs, only, suite, seeds)
        known_runs, lines = take_over(known, suite, stem, scale, runs, todo, folder)
        _check_init_from(todo, runs, folder, known_runs)
        selected = {"--only": only, "--seeds": seeds}
        selection = "".join(f" {flag} {' '.join(map(str, values))}" for flag, values in selected.items() if values)
        return cls(name, suite, scale, folder, minutes, runs, todo, known_runs, lines, selection)

    def jobs(self) -> list[RunJob]:
        """Return all runs of the scale as jobs, with their progress."""
        return run_jobs_of(self.folder, self.runs, self.known)

    def selected(self, jobs: Sequence[RunJob]) -> list[RunJob]:
        """Return the jobs of the selected runs."""
        return [job for job in jobs if job.run in self.todo]

    def budget(self, jobs: Sequence[RunJob], processes: int) -> str:
        """Return the number of selected runs and the time that is left, in one line."""
        selected = self.selected(jobs)
        done = sum(job.state == DONE for job in selected)
        each = "" if self.minutes is None else f" of {self.minutes:g} min"
        head = f"{self.suite.title}, {self.scale} scale: {len(selected)} {plural('run', len(selected))}{each}"
        if done == len(selected):
            return f"{head}, all finished"
        hours = sum(job.minutes_left for job in selected) / 60
        if any(job.state == DONE for job in jobs):
            basis = "by the finished ones"
        elif any(job.paced for job in jobs):
            basis = "by the pace so far"
        else:
            basis = self._stated() if self.minutes is None else "readings not counted"
        together = min(processes, len(selected) - done)
        time = duration(60 * minutes_to_go(selected, together))
        return (
            f"{head}, {done} finished; about {hours:,.{2 if hours < 100 else 0}f} {HOURS[self.scale]} to go, {basis}: "
            f"{time} with {together} {'process' if together == 1 else 'processes'}"
        )

    def _stated(self) -> str:
        """Return the source of the stated times; those of packaged suites were measured with bfloat16 products."""
        packaged = self.name == Path(self.name).stem
        if packaged and self.scale == "small" and choose_precision("auto", torch.device("cpu")).dtype == torch.float32:
            return "as the suite states for a processor with native bfloat16, which this one lacks"
        return "as the suite states"

    def undecided(self) -> list[str]:
        """Return a line on the claims that one seed will not decide; none if there are no such claims."""
        seeds, systems = Counter(run.system for run in self.runs), {run.system for run in self.todo}
        sides = [{claim.better.system, claim.than.system} for claim in self.suite.claims if not claim.confounded]
        tested = [side for side in sides if side <= systems]
        single = sum(min(seeds[system] for system in side) == 1 for side in tested)
        if not single:
            return []
        of = f"{single} of {len(tested)} claims" if len(tested) > 1 else "the claim"
        return [f"one seed cannot decide {of}; --seeds 1 2 3 adds seeds"]

    def run(
        self, launcher: Launcher, data_dir: Path | None = None, console: Console | None = None
    ) -> ReproductionFigures:
        """Say what it costs, run all selected runs, write result.json, and return its figures.

        Raises UserError before anything is written (a corpus or a device is missing, another process runs in the folder),
        and Stopped after a signal.
        """
        self._check_machine(data_dir, isinstance(launcher, LocalProcesses))
        started, console = now(), console or make_console(stderr=True)
        with locked(self.folder.path, "reproduction", "--out"):
            self.folder.open(self.suite, self.runs)
            jobs, stop, display = self.jobs(), StopRequest(), JobDisplay(console, COLUMNS)
            for line in (*self.known_lines, self.budget(jobs, launcher.slots), *self.undecided()):
                display.say(line)
            title = f"{self.name}, {self.scale} scale"
            queue = SuiteJobs(self.selected(jobs), display, title, launcher, self.suite.metric)
            with stop.listening(), display.shown():
                try:
                    run_jobs(queue, launcher, stop)
                finally:
                    queue.show()
            if stop.signal is not None:
                raise Stopped(
                    f"{self.folder.path} is stopped and its runs are saved; run the same command again to resume",
                    stop.signal,
                )
            name = Path(self.name).stem
            figures = reproduction_figures(self.suite, name, self.scale, jobs, threads())
            command = f"backstory reproduce {name if name == self.name else Path(self.name).name} --scale {self.scale}"
            command += ("" if self.minutes is None else f" --minutes {self.minutes:g}") + self.selection
            origin = reproduction_provenance(self.suite, jobs, figures, command, started)
            named = _result_name(name, self.scale, self.minutes)
            write_result(self.folder.path, named, figures, origin)
            return figures

    def _check_machine(self, data_dir: Path | None, local: bool) -> None:
        """Raise UserError for a missing corpus, or device if it runs here. The corpora are then ready for every process."""
        waiting = [run for run in self.todo if run.name not in self.known and not self.folder.finished(run)]
        for device in {run.config.training.device for run in waiting if local}:
            choose_device(device)
        with shown_progress():
            datasets = {text: prepare(text, data_dir) for text in {run.config.text for run in waiting}}
        self._check_texts(datasets)
        for run in waiting:
            for examination in run.examinations:
                split = datasets[run.config.text].splits[examination.split]
                try:
                    check_length(len(split.ids), examination.longest_context)
                except UserError as error:
                    problem = str(error).replace("--maximum-context", "maximum_context")
                    raise UserError(f"system {run.system}, its examination: {problem}") from None

    def _check_texts(self, datasets: Mapping[TextConfig, Dataset]) -> None:
        """Raise UserError if a known run read another text than the runs here, or than another known one."""
        read = {text: dataset.fingerprint for text, dataset in datasets.items()}
        if self.known:
            finished = [run for run in self.runs if self.folder.finished(run)]
            read |= {run.config.text: self.folder.results(run)[0].corpus.fingerprint or "" for run in finished}
        for name, known in self.known.items():
            config = next(run.config for run in self.runs if run.name == name)
            # A result of several corpora does not say which of them a run read.
            text = known.provenance.corpus.fingerprint if known.provenance.corpus else None
            if text and read.setdefault(config.text, text) != text:
                raise UserError(
                    f"{name} of {known.path} read another {config.text.corpus} than the other runs; "
                    "leave that file out of --known"
                )


def _result_name(suite: str, scale: Scale, minutes: float | None) -> str:
    return f"{suite}-{scale}" if minutes is None else f"{suite}-{scale}-{minutes:g}min"


def failures(figures: ReproductionFigures) -> list[str]:
    """Return a line for each run that failed."""
    return [f"{run.run}: {run.problem}" for run in figures.runs if run.state == FAILED]


def _check_init_from(
    todo: Iterable[SuiteRun], runs: Iterable[SuiteRun], folder: SuiteFolder, known: Collection[str]
) -> None:
    """Raise UserError unless the run that each run starts from is selected too, or finished here, where its weights are."""
    selected = {run.name for run in todo}
    left_out = {run.name: run for run in runs if run.name not in selected and not folder.finished(run)}
    for run in todo:
        done = run.name in known or folder.finished(run)
        if (first := left_out.get(run.init_from or "")) and not done:
            raise UserError(
                f"system {run.system} starts from the weights of {first.system}, and its run {first.name} is not finished "
                f"here; add {first.system} to --only"
            )


def _relative(path: Path) -> Path:
    """Return the path relative to the current folder if it lies in it: recorded commands name no machine's folders."""
    try:
        return resolved(path).relative_to(Path.cwd())
    except ValueError:
        return path


# --- runs of earlier results ---

UNPLANNED = "outside the suite"
FINISHED = "finished here, too"
TWICE = "in a file before it"
OLDER = "made by an older version, which recorded no settings"
OTHER = "with other settings"
LACKING = "without a reading or an examination that the suite asks for"
WEIGHTS = "to be run here, since others begin with their weights"


def take_over(
    paths: Sequence[Path],
    suite: Suite,
    name: str,
    scale: Scale,
    runs: Sequence[SuiteRun],
    todo: Iterable[SuiteRun],
    folder: SuiteFolder,
) -> tuple[dict[str, KnownRun], list[str]]:
    """Return the finished runs in result files that need not be run here, by name, and a line on each file.

    If several files have a run, the first counts. Raises UserError for a file that cannot be read or is no result of this
    suite at this scale.
    """
    files = [(path, _open(path, suite, name, scale)) for path in paths]
    settings, planned = fingerprints(runs), {run.name: run for run in runs}
    known: dict[str, KnownRun] = {}
    rejected: dict[tuple[int, str], str] = {}
    for index, (path, result) in enumerate(files):
        for record in _finished(result):
            run = planned.get(record.run)
            if reason := _reason_against(record, run, settings, folder, known):
                rejected[index, record.run] = reason
            else:
                known[record.run] = KnownRun(replace(record, known=path.name), _origin(record, result), path)
    needed = _needed_weights(todo, planned, folder, known)
    lines = []
    for index, (path, result) in enumerate(files):
        names = [record.run for record in _finished(result)]
        reasons = Counter(rejected.get((index, name), WEIGHTS if name in needed else "") for name in names)
        taken = reasons.pop("", 0)
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        lines.append(f"{path}: {taken} of {len(names)} finished runs taken over{why and f'; not {why}'}")
    return {name: run for name, run in known.items() if name not in needed}, lines


def _open(path: Path, suite: Suite, name: str, scale: Scale) -> Result[ReproductionFigures]:
    result = result_at(path)
    figures = result.figures
    if not isinstance(figures, ReproductionFigures):
        raise UserError(f"{path} is of kind {result.kind}; --known takes the result.json of a reproduction")
    compared = {
        "suite": (figures.suite, name),
        "scale": (figures.scale, scale),
        "metric": (figures.metric, suite.metric),
    }
    for what, (theirs, ours) in compared.items():
        if theirs != ours:
            raise UserError(f"{path} is of {what} {theirs}, and this is {what} {ours}; leave it out of --known")
    return result


def _finished(result: Result[ReproductionFigures]) -> list[RunRecord]:
    return [record for record in result.figures.runs if record.state == DONE]


def _reason_against(
    record: RunRecord, run: SuiteRun | None, settings: Mapping[str, str], folder: SuiteFolder, known: Collection[str]
) -> str | None:
    """Return why a finished run of a result is not taken over; None if it is."""
    if run is None:
        return UNPLANNED
    if folder.finished(run):
        return FINISHED
    if run.name in known:
        return TWICE
    if not isinstance(record, ReusableRun):
        return OLDER
    if record.settings != settings[run.name]:
        return OTHER
    readings = [reading.place for reading in record.readings]
    examined = [(e.experiment, e.split, e.targets, e.maximum_context, e.options or {}) for e in record.examinations]
    complete = all(reading.reading() in readings for reading in run.readings) and all(
        (e.experiment, e.split, e.targets, e.longest_context, e.further()) in examined for e in run.examinations
    )
    return None if complete else LACKING


def _origin(record: RunRecord, result: Result[ReproductionFigures]) -> ProvenanceRecord:
    """Return the provenance of a known run's training, as far as the result has it."""
    return ProvenanceRecord(
        device=record.device,
        precision=record.precision,
        precision_reason=result.provenance.precision_reason,
        corpus=result.corpus,
    )


def _needed_weights(
    todo: Iterable[SuiteRun], planned: Mapping[str, SuiteRun], folder: SuiteFolder, known: Collection[str]
) -> set[str]:
    """Return all runs that these runs start from, directly or not, because a result has figures but no weights."""
    waiting = [run for run in todo if run.name not in known and not folder.finished(run)]
    needed: set[str] = set()
    while waiting:
        first = planned.get(waiting.pop().init_from or "")
        if first and first.name not in needed and not folder.finished(first):
            needed.add(first.name)
            waiting.append(first)
    return needed
