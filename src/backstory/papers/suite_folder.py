"""The folder of a reproduction: where each run lies, the commands that make it, and what of it is done already."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backstory.config import RunConfig, UserError, to_yaml
from backstory.config.errors import as_argument
from backstory.config.renamed import current_provenance
from backstory.config.small_file import read_small
from backstory.config.strict import from_file
from backstory.papers.plan import Run
from backstory.papers.preparations import preparation
from backstory.papers.suite import Reading, Suite
from backstory.readers.registry import parse_stack, stack_name
from backstory.reports import Result, result_or_none
from backstory.reports.staleness import is_stale
from backstory.runs.run import CONFIG
from backstory.runs.run_folder import RunFolder
from backstory.storage.atomic import TEMPORARY, sweep_temporaries, within, write_atomically
from backstory.storage.documents import parse
from backstory.storage.lock import LOCK
from backstory.storage.provenance import RESULT, check_place
from backstory.training.fit import BEGUN

AGAIN = "--again"
"""The flag with which an examination takes the place of one that was made with other options."""
SUITE = "suite.yaml"
EARLIER_SUITE = "grid.yaml"
"""The suite as it is run; it makes a folder that of a reproduction."""


@dataclass(frozen=True)
class Command:
    """One command of a run."""

    state: str
    """What the run is doing meanwhile: running, preparing, reading, examining."""
    arguments: tuple[str, ...]
    kind: str
    """Of its result."""
    out: Path
    """SuiteFolder of its result."""
    settings: tuple[str, ...] = ()
    """The flags its result depends on; a training's are in its settings file, which `SuiteFolder.check` compares."""

    made: Path | None = None
    """A file that is there when it is done, of a command that writes no result."""
    reading: Reading | None = None
    """What the suite asks for, where it is that."""

    def result(self) -> Result | None:
        """What it wrote; None where that is missing, damaged, or of a command with other settings or of other weights."""
        if self.made is not None:
            return None
        found = result_or_none(self.out / RESULT)
        if found is None:
            return None
        try:
            # The command as recorded, from after `backstory VERB RUN` up to `--out FOLDER`.
            made = shlex.split(str(found.provenance.get("command")))[3:-2]
        except ValueError:
            return None
        made = [part for part in made if part != AGAIN]
        if found.kind != self.kind or (self.settings and made != [*self.settings]):
            return None
        return found if found.kind == "training" or not is_stale(found, self.out.parent) else None

    def done(self) -> bool:
        """Whether its result is there."""
        return self.result() is not None if self.made is None else self.made.is_file()


@dataclass(frozen=True)
class SuiteFolder:
    """Paths of a reproduction."""

    path: Path

    def run(self, run: Run) -> Path:
        return within(self.path, "runs", run.name)

    def recipe(self, run: Run) -> Path:
        return within(self.path, "recipes", f"{run.system}.yaml")

    def log(self, run: Run) -> Path:
        """What the commands of a run printed."""
        return within(self.path, "logs", f"{run.name}.log")

    def commands(self, run: Run) -> list[Command]:
        """Train, then what prepares the readings, the readings, then the examinations. A training that was begun is resumed."""
        place = self.run(run)
        named = as_argument(place)
        train = ["train", as_argument(self.recipe(run)), "--seed", str(run.seed), "--out", named, *self._mode(run)]
        commands = [Command("running", tuple(train), "training", place)]
        for text in run.prepare:
            found = preparation(text)
            arguments = ("reader", found.action, named, *found.arguments)
            commands.append(Command("preparing", arguments, "", place, made=place / found.made))
        for reading in run.readings:
            out, flags = within(place, reading.folder_name()), reading.flags()
            arguments = ("evaluate", named, *flags, "--out", as_argument(out))
            commands.append(Command("reading", arguments, "evaluation", out, flags, reading=reading))
        for e in run.examinations:
            out = within(place, e.folder_name(e.split, stack_name(parse_stack(e.reader or "static"))))
            flags = tuple(e.flags())
            # What is there and is not done was asked for otherwise: the folder is the suite's, which asks for this now.
            again = (AGAIN,) if (out / RESULT).is_file() else ()
            arguments = ("examine", named, *flags, *again, "--out", as_argument(out))
            commands.append(Command("examining", arguments, "examination", out, flags))
        return commands

    def _mode(self, run: Run) -> list[str]:
        """How its training starts: anew, with another run's weights, or from where it was."""
        place = self.run(run)
        begin = ["--init-from", as_argument(self.path / "runs" / run.init_from)] if run.init_from else []
        if not (place / CONFIG).is_file():
            return begin
        # One that was killed before its first checkpoint holds nothing of the run it begins with.
        saved = not begin or RunFolder(place).resumable
        return ["--resume"] if saved else ["--overwrite", *begin]

    def made(self, run: Run) -> list[tuple[Command, Result]]:
        """The commands that have a result, and what they wrote: training first.

        Whatever else lies in its folder is no part of it.
        """
        return [(command, result) for command in self.commands(run) if (result := command.result())]

    def results(self, run: Run) -> list[Result]:
        """What its commands wrote so far, training first."""
        return [result for _, result in self.made(run)]

    def finished(self, run: Run) -> bool:
        """Whether all its results are there."""
        return all(command.done() for command in self.commands(run))

    def check(self, runs: Sequence[Run]) -> None:
        """Raise UserError unless the runs can begin or go on here; nothing is written."""
        check_place(self.path, "reproduction")
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
            if saved.is_file() and (begun := self._begun(run)) != run.init_from:
                raise UserError(
                    f"{self.run(run)} began with {begun or 'weights of its own'}, and the suite now has it begin with "
                    f"{run.init_from or 'weights of its own'}; remove that folder to train it again, or "
                    "choose another with --out"
                )

    def _begun(self, run: Run) -> str | None:
        """The run that it began with, as its training recorded; what it is to begin with, where that is not told yet."""
        path = RunFolder(self.run(run)).provenance
        try:
            found = current_provenance(parse(read_small(path, inside=path.parent)))
        except (OSError, ValueError):
            return run.init_from
        begun = found.get(BEGUN) if isinstance(found, dict) else None
        return begun.get("run") if isinstance(begun, dict) else None

    def open(self, suite: Suite, runs: Sequence[Run]) -> None:
        """Make the folder, or take it, after `check`."""
        self.path.mkdir(parents=True, exist_ok=True)
        sweep_temporaries(self.path)
        write_atomically(self.path / SUITE, to_yaml(suite))  # first, as without it the rest is no reproduction's
        for place in (within(self.path, name) for name in ("runs", "recipes", "logs")):
            place.mkdir(exist_ok=True)
            sweep_temporaries(place)
        for run in {
            run.system: run for run in reversed(runs)
        }.values():  # the seed is its first; each run is given its own
            write_atomically(self.recipe(run), to_yaml(run.config))
