"""Run a suite: check all of it, say what it costs, bring every run to its end, and write the result."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from backstory.config import TextConfig, UserError, plural
from backstory.config.signals import Stopped, StopRequest
from backstory.config.terminal import make_console
from backstory.context.examination import check_length
from backstory.data import Dataset, prepare
from backstory.jobs.child import threads
from backstory.jobs.display import JobDisplay
from backstory.jobs.runner import run_jobs
from backstory.models import choose_device
from backstory.papers import suite_result as outcome
from backstory.papers.known import take_over
from backstory.papers.plan import Run, chosen, runs_of
from backstory.papers.suite import Scale, Suite, load
from backstory.papers.suite_folder import SuiteFolder
from backstory.papers.suite_jobs import COLUMNS, DONE, FAILED, KnownRun, RunJob, SuiteJobs, minutes_to_go, run_jobs_of
from backstory.reports.formats import duration
from backstory.storage.lock import locked
from backstory.storage.provenance import now, write_result

HOURS: dict[Scale, str] = {"small": "core-hours", "full": "GPU-hours"}
"""What a suite states its costs in."""


@dataclass(frozen=True)
class Reproduction:
    """A suite at one scale, and the folder it is run in."""

    name: str
    suite: Suite
    scale: Scale
    folder: SuiteFolder
    runs: list[Run]
    """All of the scale."""
    todo: list[Run]
    """Those that were asked for."""
    known: Mapping[str, KnownRun]
    """Those that other results hold already, by name."""
    told: Sequence[str]
    """Which those are, a line on each of the results."""

    @classmethod
    def plan(
        cls, name: str, scale: Scale, out: Path | None = None, only: Iterable[str] = (), known: Sequence[Path] = ()
    ) -> "Reproduction":
        """Read and check a suite, its folder, and results of it that are known; nothing is written. Raises UserError."""
        suite, stem = load(name), Path(name).stem
        runs = runs_of(suite, scale, name if name != stem else f"suite {name}")
        folder = SuiteFolder(_relative(out or Path("runs") / f"{stem}-{scale}"))
        folder.check(runs)
        todo = chosen(runs, only, suite)
        taken, told = take_over(known, suite, stem, scale, runs, todo, folder)
        _check_beginnings(todo, runs, folder, taken)
        return cls(name, suite, scale, folder, runs, todo, taken, told)

    def jobs(self) -> list[RunJob]:
        """Return all runs of the scale as jobs, with their progress."""
        return run_jobs_of(self.folder, self.runs, self.known)

    def budget(self, found: list[RunJob], processes: int) -> str:
        """Number of runs and what is left to spend, in one line."""
        asked = self._asked(found)
        done = sum(s.state == DONE for s in asked)
        head = f"{self.suite.title}, {self.scale} scale: {len(asked)} {plural('run', len(asked))}"
        if done == len(asked):
            return f"{head}, all finished"
        unit = HOURS[self.scale]
        hours = sum(s.minutes_left for s in asked) / 60
        basis = "by the finished ones" if any(s.state == DONE for s in found) else "as the suite states"
        together = min(processes, len(asked) - done)
        time = duration(60 * minutes_to_go(asked, together))
        return (
            f"{head}, {done} finished; about {hours:.2f} {unit} to go, {basis}: "
            f"{time} with {together} {'process' if together == 1 else 'processes'}"
        )

    def run(self, processes: int, data_dir: Path | None = None, console: Console | None = None) -> dict[str, Any]:
        """Say what it costs, bring the runs to their ends, and return the content of result.json.

        Raises UserError before anything is written (a corpus or a device is missing, another process is at work there),
        Stopped after a signal.
        """
        self._check_machine(data_dir)
        started, console = now(), console or make_console(stderr=True)
        with locked(self.folder.path, "reproduction", "--out"):
            self.folder.open(self.suite, self.runs)
            found, stop, display = self.jobs(), StopRequest(), JobDisplay(console, COLUMNS)
            for line in (*self.told, self.budget(found, processes)):
                display.say(line)
            title = f"{self.name}, {self.scale} scale"
            queue = SuiteJobs(self._asked(found), display, title, processes, self.suite.metric)
            with stop.listening(), display.shown():
                try:
                    run_jobs(queue, processes, data_dir, stop)
                finally:
                    queue.show()
            if stop.signal is not None:
                raise Stopped(
                    f"{self.folder.path} is stopped and its runs are saved; the same command goes on with it",
                    stop.signal,
                )
            return self._write(found, started)

    def _asked(self, found: list[RunJob]) -> list[RunJob]:
        return [job for job in found if job.run in self.todo]

    def _check_machine(self, data_dir: Path | None) -> None:
        """Raise UserError for a corpus or a device that is not there; the corpora are then ready for every process."""
        waiting = [run for run in self.todo if run.name not in self.known and not self.folder.finished(run)]
        for device in {run.config.training.device for run in waiting}:
            choose_device(device)
        datasets = {text: prepare(text, data_dir) for text in {run.config.text for run in waiting}}
        self._check_texts(datasets)
        for run in waiting:
            for examination in run.examinations:
                split = datasets[run.config.text].splits[examination.split]
                try:
                    check_length(len(split.ids), examination.maximum_context)
                except UserError as error:
                    told = str(error).replace("--maximum-context", "maximum_context")
                    raise UserError(f"system {run.system}, its examination: {told}") from None

    def _check_texts(self, datasets: Mapping[TextConfig, Dataset]) -> None:
        """Raise UserError if a known run read another text than those made here, or than another known one."""
        read = {text: dataset.fingerprint for text, dataset in datasets.items()}
        if self.known:
            done = [run for run in self.runs if self.folder.finished(run)]
            read |= {run.config.text: self.folder.results(run)[0].corpus.get("fingerprint") for run in done}
        for name, known in self.known.items():
            config = next(run.config for run in self.runs if run.name == name)
            # A result of several corpora does not tell which of them a run read.
            text = known.provenance["corpus"].get("fingerprint")
            if text and read.setdefault(config.text, text) != text:
                raise UserError(
                    f"{name} of {known.record['known']} read another {config.text.corpus} than the other runs; "
                    "leave that file out of --known"
                )

    def _write(self, found: list[RunJob], started: str) -> dict[str, Any]:
        name = Path(self.name).stem
        figures = outcome.figures(self.suite, name, self.scale, self.folder, found, threads())
        command = f"backstory reproduce {name if name == self.name else Path(self.name).name} --scale {self.scale}"
        origin = outcome.provenance(self.suite, found, self.folder, command, started)
        origin["seconds"] = round(sum(run["seconds"] for run in figures["runs"]), 1)
        return write_result(self.folder.path, "reproduction", f"{name}-{self.scale}", figures, origin)


def failures(result: dict[str, Any]) -> list[str]:
    """A line for each run that failed."""
    return [f"{run['run']}: {run['problem']}" for run in result["figures"]["runs"] if run["state"] == FAILED]


def _check_beginnings(todo: Iterable[Run], runs: Iterable[Run], folder: SuiteFolder, known: Collection[str]) -> None:
    """Raise UserError unless what each run begins with is asked for, too, or finished here, where its weights are."""
    asked = {run.name for run in todo}
    left_out = {run.name: run for run in runs if run.name not in asked and not folder.finished(run)}
    for run in todo:
        done = run.name in known or folder.finished(run)
        if (first := left_out.get(run.init_from or "")) and not done:
            raise UserError(
                f"system {run.system} begins with system {first.system}, and {first.name} is not finished here; "
                f"ask for {first.system}, too"
            )


def _relative(path: Path) -> Path:
    """The path from the current folder on, if it lies in it: results record commands, and those name no machine's places."""
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
