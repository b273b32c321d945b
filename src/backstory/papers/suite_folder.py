"""The folder of a suite's reproduction, and the commands of each run in it: train, prepare, read, examine."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.config import RunConfig, to_yaml
from backstory.config.renamed import current_provenance
from backstory.config.strict import from_file
from backstory.papers.plan import SuiteRun
from backstory.papers.reader_commands import preparation
from backstory.papers.suite import PlannedExamination, PlannedReading, Suite
from backstory.readers.registry import parse_stack, stack_name
from backstory.results import Result, result_or_none
from backstory.results.run_results import is_stale
from backstory.runs.run import CONFIG
from backstory.runs.run_folder import RunFolder
from backstory.storage.atomic import TEMPORARY, sweep_temporaries, within, write_atomically
from backstory.storage.documents import parse
from backstory.storage.lock import LOCK
from backstory.storage.provenance import check_place
from backstory.storage.run_files import EARLIER_SUITE, RESULT, SUITE
from backstory.training.resuming import INIT_FROM
from backstory.utils.errors import UserError, as_argument
from backstory.utils.small_file import read_small

AGAIN = "--again"
"""Flag with which an examination replaces one that was made with other options."""


@dataclass(frozen=True)
class SuiteCommand:
    """One command of a run."""

    state: str
    """State of the run meanwhile: running, preparing, reading, examining."""
    arguments: tuple[str, ...]
    kind: str
    """Kind of its result."""
    out: Path
    """Folder of its result."""
    flags: tuple[str, ...] = ()
    """Flags that its result depends on; those of a training are in its settings file, which `SuiteFolder.check` compares."""
    output: Path | None = None
    """For a command without a result, the file that shows that it is done."""
    reading: PlannedReading | None = None
    """The reading of the suite that it makes."""
    examination: PlannedExamination | None = None
    """The examination of the suite that it makes."""

    def result(self) -> Result[Any] | None:
        """Return its result; None if that is missing, damaged, or of a command with other flags or of other weights."""
        if self.output is not None:
            return None
        result = result_or_none(self.out / RESULT)
        if result is None or result.kind != self.kind:
            return None
        try:
            # The recorded command, from after `backstory VERB RUN` up to `--out FOLDER`.
            flags = shlex.split(str(result.provenance.command))[3:-2]
        except ValueError:
            return None
        if self.flags and [flag for flag in flags if flag != AGAIN] != [*self.flags]:
            return None
        return result if result.kind == "training" or not is_stale(result, self.out.parent) else None

    def done(self) -> bool:
        """Return True if its result is there."""
        return self.result() is not None if self.output is None else self.output.is_file()


@dataclass(frozen=True)
class SuiteFolder:
    """Paths of a reproduction."""

    path: Path

    def run(self, run: SuiteRun) -> Path:
        return within(self.path, "runs", run.name)

    def recipe(self, run: SuiteRun) -> Path:
        return within(self.path, "recipes", f"{run.system}.yaml")

    def log(self, run: SuiteRun) -> Path:
        """Return the file with the output of a run's commands."""
        return within(self.path, "logs", f"{run.name}.log")

    def seeds(self) -> list[tuple[str, int]]:
        """Return the runs that were begun here, as (system, seed)."""
        names = sorted(path.parent.name for path in self.path.glob(f"runs/*/{CONFIG}"))
        pairs = (name.rpartition("-seed")[::2] for name in names)
        return [(system, int(seed)) for system, seed in pairs if seed.isdecimal()]

    def commands(self, run: SuiteRun) -> list[SuiteCommand]:
        """Return the commands of a run: train, prepare, read, examine. A training that was begun is resumed."""
        folder = self.run(run)
        train = ("train", as_argument(self.recipe(run)), "--seed", str(run.seed), "--out", as_argument(folder))
        commands = [SuiteCommand("running", (*train, *self._start_flags(run)), "training", folder)]
        for text in run.prepare:
            step = preparation(text)
            arguments = ("reader", step.action, as_argument(folder), *step.arguments)
            commands.append(SuiteCommand("preparing", arguments, "", folder, output=folder / step.output))
        commands += [_evaluate(folder, reading) for reading in run.readings]
        commands += [_examine(folder, examination) for examination in run.examinations]
        return commands

    def _start_flags(self, run: SuiteRun) -> list[str]:
        """Return how its training starts: anew, with another run's weights, or resumed."""
        folder = self.run(run)
        init = ["--init-from", as_argument(self.path / "runs" / run.init_from)] if run.init_from else []
        if not (folder / CONFIG).is_file():
            return init
        # A training killed before its first checkpoint holds nothing yet from the run it starts from.
        resumable = not init or RunFolder(folder).resumable
        return ["--resume"] if resumable else ["--overwrite", *init]

    def finished_commands(self, run: SuiteRun) -> list[tuple[SuiteCommand, Result[Any]]]:
        """Return the commands that have a result, with it; training first. Other files in the run's folder are ignored."""
        return [(command, result) for command in self.commands(run) if (result := command.result())]

    def results(self, run: SuiteRun) -> list[Result[Any]]:
        """Return the results so far, training first."""
        return [result for _, result in self.finished_commands(run)]

    def finished(self, run: SuiteRun) -> bool:
        """Return True if all results of a run are there."""
        return all(command.done() for command in self.commands(run))

    def check(self, runs: Sequence[SuiteRun], dry_run: bool = False) -> None:
        """Raise UserError unless the runs can begin or go on here, or be listed in a dry run; nothing is written."""
        check_place(self.path, "reproduction", dry_run)
        others = [p for p in self.path.glob("*") if p.name != LOCK and not p.name.startswith(TEMPORARY)]
        if others and not any((self.path / name).is_file() for name in (SUITE, EARLIER_SUITE)):
            raise UserError(f"{self.path} holds something other than a reproduction; choose another folder with --out")
        for run in runs:
            saved = self.run(run) / CONFIG
            if saved.is_file() and from_file(RunConfig, saved, self.run(run)) != run.config:
                raise UserError(
                    f"{self.run(run)} was trained with other settings than the suite now has for it; "
                    "remove that folder to train it again, or choose another with --out"
                )
            if saved.is_file() and (first := self._initial_run(run)) != run.init_from:
                raise UserError(
                    f"{self.run(run)} started from {first or 'weights of its own'}, but the suite now starts it from "
                    f"{run.init_from or 'weights of its own'}; remove that folder to train it again, or "
                    "choose another with --out"
                )

    def _initial_run(self, run: SuiteRun) -> str | None:
        """Return the run that it started from, as its training recorded; as long as nothing is recorded, the planned one."""
        path = RunFolder(self.run(run)).provenance
        try:
            recorded = current_provenance(parse(read_small(path, inside=path.parent)))
        except (OSError, ValueError):
            return run.init_from
        first = recorded.get(INIT_FROM) if isinstance(recorded, dict) else None
        return first.get("run") if isinstance(first, dict) else None

    def open(self, suite: Suite, runs: Sequence[SuiteRun]) -> None:
        """Create the folder, or continue in it, after `check`."""
        self.path.mkdir(parents=True, exist_ok=True)
        sweep_temporaries(self.path)
        write_atomically(self.path / SUITE, to_yaml(suite))  # first, as it makes this the folder of a reproduction
        for name in ("runs", "recipes", "logs"):
            folder = within(self.path, name)
            folder.mkdir(exist_ok=True)
            sweep_temporaries(folder)
        for run in {
            run.system: run for run in reversed(runs)
        }.values():  # with the first seed; commands name each run's own
            write_atomically(self.recipe(run), to_yaml(run.config))


def _evaluate(folder: Path, reading: PlannedReading) -> SuiteCommand:
    out, flags = within(folder, reading.folder_name()), reading.flags()
    arguments = ("evaluate", as_argument(folder), *flags, "--out", as_argument(out))
    return SuiteCommand("reading", arguments, "evaluation", out, flags, reading=reading)


def _examine(folder: Path, examination: PlannedExamination) -> SuiteCommand:
    reader = stack_name(parse_stack(examination.reader or "static"))
    out, flags = within(folder, examination.folder_name(examination.split, reader)), tuple(examination.flags())
    # An existing result that is not done has other options. The suite owns the folder, so it replaces it.
    again = (AGAIN,) if (out / RESULT).is_file() else ()
    arguments = ("examine", as_argument(folder), *flags, *again, "--out", as_argument(out))
    return SuiteCommand("examining", arguments, "examination", out, flags, examination=examination)
