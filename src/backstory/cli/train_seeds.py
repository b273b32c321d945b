"""`backstory train RECIPE --seeds 1 2`: a run for each seed, as many side by side as the cores allow."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backstory.cli.command_line import announce, print_json
from backstory.cli.train import SEEDS_RECIPE, trained_line
from backstory.config import to_yaml, validate
from backstory.config.plugin_files import plugin_flags
from backstory.jobs.child import threads
from backstory.jobs.launchers import LocalProcesses
from backstory.jobs.runner import DONE, FAILED, STOPPED, STYLES, WAITING, CommandExit, Job, JobDisplay, JobRow, run_jobs
from backstory.results.run_listing import is_run
from backstory.results.run_results import TrainingPace, read_pace
from backstory.storage.atomic import write_atomically
from backstory.storage.run_files import RESULT
from backstory.utils.errors import UserError, as_argument, check_utf8, pasted, plural
from backstory.utils.formats import MISSING, duration, validation, validation_cell
from backstory.utils.process import Stopped, StopRequest, cpu_cores, world
from backstory.utils.scores import IN_BITS
from backstory.utils.small_file import read_small_text
from backstory.utils.terminal import fitted, make_console, shown_progress

if TYPE_CHECKING:
    from backstory.cli.train import TrainArguments
    from backstory.config import RunConfig
    from backstory.results import Result, TrainingFigures
    from backstory.runs.run_folder import Mode

COLUMNS = ("run", "state", "validation", "time left")
RUNNING = "training"


@dataclass
class SeedJob(Job):
    """The training of one seed."""

    folder: Path
    config: "RunConfig"
    arguments: Sequence[str]
    """Those of its `backstory train`."""
    unit: str | None
    """The token of a text whose scores are shown in bits per token; None to show perplexities."""
    state: str = WAITING
    problem: str = ""
    pace: TrainingPace | None = None

    @property
    def name(self) -> str:
        return str(self.folder)

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.folder.name}.log"

    def next_command(self) -> Sequence[str] | None:
        if self.state != WAITING:
            return None
        self.state = RUNNING
        return self.arguments

    def watch(self) -> None:
        self.pace = read_pace(self.folder, self.config.training) or self.pace

    def command_ended(self, ending: CommandExit) -> None:
        self.state, self.problem = (FAILED, ending.reason) if ending.code else (DONE, "")

    def interrupted(self, ending: CommandExit | None) -> None:
        self.state = STOPPED

    @property
    def minutes_left(self) -> float | None:
        """Return the time that its training still takes at its pace so far; None if that is unknown."""
        minutes = 0.0 if self.pace is None else self.pace.minutes
        if self.config.training.minutes is not None:
            return max(0.0, self.config.training.minutes - minutes)
        return minutes * (1 / self.pace.share - 1) if self.pace is not None and self.pace.share else None

    def row(self) -> JobRow:
        valid = None if self.pace is None else self.pace.valid_perplexity
        state = f"{self.state}: {self.problem}" if self.problem else self.state
        if self.state == RUNNING:
            state = f"epoch {1 + (0 if self.pace is None else self.pace.epochs)}"
        left = self.minutes_left if self.state in (WAITING, RUNNING) else None
        line = "" if self.state == WAITING else f"{self.folder}: {state}"
        if line and valid is not None:
            line += f", {validation(valid, self.unit)}"
        cells = (
            str(self.folder),
            state,
            validation_cell(valid, self.unit),
            MISSING if left is None else duration(60 * left),
        )
        return JobRow(cells, STYLES.get(self.state), line)


class SeedJobs:
    """The queue of the trainings, for `run_jobs`."""

    def __init__(self, jobs: Sequence[SeedJob], display: JobDisplay, title: str) -> None:
        self._jobs, self._display, self._title = jobs, display, title

    def take(self) -> SeedJob | None:
        return next((job for job in self._jobs if job.state == WAITING), None)

    def finished(self) -> bool:
        return self.take() is None

    def show(self, running: Sequence[Job] = ()) -> None:
        done = sum(job.state == DONE for job in self._jobs)
        self._display.show(f"{self._title}: {done} of {len(self._jobs)} trained", [job.row() for job in self._jobs])


def train_seeds(recipe: str, args: "TrainArguments", out: Path, mode: "Mode", typed: Sequence[str]) -> int:
    """Train the seeds into `out`/seed1, `out`/seed2, ..., and print how to go on; return 1 if a training failed.

    `typed` are the settings that are given as flags. Raises UserError before anything is written, and Stopped after a signal.
    """
    _check(args, typed)
    if is_run(out):
        raise UserError(f"{out} is a run; choose another folder with --out")
    configs = {seed: replace(args.config, seed=seed) for seed in args.seeds}
    for config in configs.values():
        validate(config, "--seeds")
    recipe_file = out / SEEDS_RECIPE
    commands = {seed: _command(args, recipe_file, out, seed, config) for seed, config in configs.items()}
    if args.resume and not any("--resume" in command for command in commands.values()):
        raise UserError(f"{out} holds none of these runs; leave --resume out to start them")
    _check_recipe_file(recipe_file, args)
    slots = max(1, cpu_cores() // (args.threads or threads()))
    together = min(slots, len(configs))
    announce(f"training {recipe} with {len(configs)} {plural('seed', len(configs))} in {out}, {together} at a time")
    from backstory.training.fit import check_training

    first, init_from = args.seeds[0], None if args.resume else args.init_from
    with shown_progress():  # what one process would refuse, all would
        text = check_training(
            configs[first], out / f"seed{first}", mode, args.data_dir, args.track, init_from, args.allow_equal_splits
        )
    unit: str | None = text.vocabulary.tokenizer.unit
    if unit not in IN_BITS or args.config.training.answer_loss_only:
        unit = None  # perplexities are shown
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(recipe_file, to_yaml(args.config))
    jobs = [SeedJob(out / f"seed{seed}", configs[seed], commands[seed], unit) for seed in args.seeds]
    console, stop = make_console(stderr=True), StopRequest()
    display = JobDisplay(console, COLUMNS)
    queue = SeedJobs(jobs, display, recipe)
    with stop.listening(), display.shown():
        try:
            run_jobs(queue, LocalProcesses(slots, args.data_dir), stop)
        finally:
            queue.show()
    if stop.signal is not None:
        raise Stopped(f"{out} is stopped and its runs are saved; go on with the same command and --resume", stop.signal)
    return _finish(jobs, args.json)


def _check(args: "TrainArguments", typed: Sequence[str]) -> None:
    """Raise UserError for flags that do not go together, and for no seeds."""
    if not args.seeds:
        raise UserError("--seeds takes one or more seeds: --seeds 1 2")
    if "seed" in typed:
        raise UserError("--seed and --seeds cannot be combined; remove one")
    if twice := next((seed for seed in args.seeds if args.seeds.count(seed) > 1), None):
        raise UserError(f"--seeds has {twice} twice; remove one")
    if args.workers is not None or world() > 1:
        raise UserError("--seeds trains each seed in one process; remove --workers, and do not start it with torchrun")


def _command(args: "TrainArguments", recipe: Path, out: Path, seed: int, config: "RunConfig") -> list[str]:
    """Return the arguments that train a seed. Raises UserError if its folder does not allow it."""
    from backstory.runs.run_folder import RunFolder, check_folder

    folder = out / f"seed{seed}"
    check_utf8(folder)
    begun = RunFolder(folder).config.is_file()
    mode = "resume" if args.resume and begun else "overwrite" if args.overwrite and begun else "new"
    check_folder(folder, config, mode, frozenset(args.accept))
    flags: dict[str, Any] = {"--seed": seed, "--threads": args.threads or threads(), "--out": as_argument(folder)}
    if args.data_dir is not None:  # by the flag, so that the run knows where its corpus is
        flags["--data-dir"] = as_argument(args.data_dir)
    if args.init_from is not None and mode != "resume":  # which goes on with weights of its own
        flags["--init-from"] = as_argument(args.init_from)
    words = ["train", as_argument(recipe), *(str(word) for pair in flags.items() for word in pair)]
    for flag, values in (("--accept", args.accept if mode == "resume" else ()), ("--track", args.track)):
        words += [flag, *values] if values else []
    words += ["--allow-equal-splits"] if args.allow_equal_splits else []
    return words if mode == "new" else [*words, f"--{mode}"]


def _check_recipe_file(path: Path, args: "TrainArguments") -> None:
    """Raise UserError if the folder has runs of other settings beside those that would be trained."""
    if args.overwrite or "config" in args.accept or not path.is_file():
        return
    if read_small_text(path) != to_yaml(args.config):
        raise UserError(f"{path} has other settings than these; choose another folder with --out")


def _finish(jobs: Sequence[SeedJob], as_json: bool) -> int:
    """Print the results and the commands that come next; return the exit code."""
    from backstory.results import result_at

    trained: dict[Path, Result[TrainingFigures]] = {
        job.folder: result_at(job.folder / RESULT) for job in jobs if job.state == DONE
    }
    if as_json:
        print_json(list(trained.values()))
    else:
        for folder, result in trained.items():
            print(fitted(trained_line(folder, result.figures)))
        if len(trained) > 1:
            print(fitted(_next_commands(list(trained))))
    failed = [job for job in jobs if job.state == FAILED]
    for job in failed:
        print(f"backstory: failed: {job.folder}: {job.problem}", file=sys.stderr)
    return 1 if failed else 0


def _next_commands(runs: Sequence[Path]) -> str:
    first, *others = runs
    reader = pasted(f"ensemble:runs={';'.join(map(str, others))}")
    return (
        f"`backstory evaluate {pasted(first)} --reader {reader}{plugin_flags()}` reads the test split with the mean of their "
        f"predictions, `backstory report {pasted(first.parent)}` makes a page of all"
    )
