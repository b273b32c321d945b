"""`backstory examine RUN [RUN ...] --experiment NAME`: measure how a model uses its context."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from backstory.cli.command_line import RUN, JsonOutput, announce, parse, text_source
from backstory.config.examination_options import ExamineOptions
from backstory.config.strict import between
from backstory.jobs.child import threads
from backstory.jobs.workers import MOST_WORKERS, hosted, started_ranks
from backstory.utils.errors import UserError, pasted
from backstory.utils.free_memory import available_memory
from backstory.utils.process import cpu_cores
from backstory.utils.small_file import is_pipe
from backstory.utils.terminal import progress_bar, terminal_width

if TYPE_CHECKING:
    from backstory.context import ExaminationResult
    from backstory.jobs.ranks import Ranks
    from backstory.results import Result

WORKER = "backstory.cli.examination_worker"
"""The module of the other processes."""
GRAPHICS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Where Linux has a GPU that torch may use; to ask torch itself takes seconds."""
FOR_TORCH = 0.5
"""GiB that a process takes beside a batch of contexts."""


@dataclass(frozen=True, kw_only=True)
class ExamineArguments(JsonOutput, ExamineOptions):
    """Score the same tokens under changed contexts and report what the changes cost.

    Several runs are examined as one set, for models that differ in their seed only. The same command resumes a stopped
    examination.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...", help=f"{RUN} Or several.")]
    text: str | None = None
    """A text file of your own to read, or - for standard input, in place of a split."""
    workers: int | None = between(None, 1, MOST_WORKERS)
    """Processes that share the targets (else for a run on a CPU one per core, on Linux and without OMP_NUM_THREADS)."""


def main(arguments: Sequence[str]) -> int:
    options = parse(ExamineArguments, arguments, "examine")
    if not options.runs:
        raise UserError("name the run's folder: `backstory examine RUN`")

    if absent := next((str(run) for run in options.runs if not run.exists()), None):
        from backstory.cli.completion import registered

        if absent in registered("experiments"):
            raise UserError(f"there is no run folder {absent}; an experiment is given as `--experiment {absent}`")
    if text := next((run for run in options.runs[1:] if run.is_file()), None):
        raise UserError(f"{text} is a file, and `examine` takes runs: give it as --text {pasted(text)}")
    if read_once(options.text) and (options.workers or 1) > 1:
        what = "standard input" if options.text == "-" else "a pipe"
        raise UserError(f"--text {options.text} and --workers cannot be combined, as {what} is read once; give a file")
    names, outside = ", ".join(map(str, options.runs)), any(str(run).startswith("hf:") for run in options.runs)
    unsaved = "; the result is only printed, and a stopped examination starts again (--out FOLDER saves both)"
    announce(
        f"examining {options.experiment} of {names}" + unsaved * (outside and options.out is None),
        *options.runs,
        readers=options.reader,
        splits=(options.split,),
        experiment=options.experiment,
    )
    with shared(arguments, worker_count(options)) as ranks, progress_bar(f"examining {options.experiment}") as bar:
        examination = examined(options, ranks, bar if ranks.first else None)
    if ranks.first:
        options.show(examination, lambda: described(examination))
    return 0


def read_once(text: str | None) -> bool:
    """Return True for standard input and for a pipe, which one process alone can read."""
    return text is not None and (text == "-" or is_pipe(Path(text)))


def worker_count(options: ExamineArguments) -> int:
    """Return the number of processes that share the targets. Raises UserError where torchrun has started another number."""
    started = started_ranks(options.workers)
    if started > 1 or options.workers is not None:
        return options.workers or started
    on_cpu = options.device == "cpu" or (options.device == "auto" and not any(map(os.path.exists, GRAPHICS)))
    on_cpu = on_cpu and sys.platform.startswith("linux")  # elsewhere they were not tried
    shareable = all(run.is_dir() for run in options.runs) and not read_once(options.text)
    if not shareable or not on_cpu or "OMP_NUM_THREADS" in os.environ:
        return 1
    free = available_memory()
    fitting = cpu_cores() if free is None else int(free / 2**30 / (options.memory + FOR_TORCH))
    return max(1, min(cpu_cores(), fitting))


@contextmanager
def shared(arguments: Sequence[str], workers: int) -> Iterator["Ranks"]:
    """Share the examination of a command line, made in the block, among so many processes.

    Each of several processes has one thread, or OMP_NUM_THREADS. Yields the rank of this one. Raises UserError when another
    ends before its time.
    """
    command = {"arguments": list(arguments)}
    with hosted(workers, threads(), WORKER, command, lambda: "give the same command again") as meeting:
        import torch

        from backstory.jobs.ranks import joined
        from backstory.models.devices import restored_threads

        with restored_threads(), joined(meeting) as ranks:
            if workers > 1:
                torch.set_num_threads(threads())
            yield ranks


def examined(options: ExamineArguments, ranks: "Ranks", progress: Any = None) -> "ExaminationResult":
    """Make the examination of a command line, as one of the processes that share it."""
    from backstory.context import examine_run, examine_runs

    text = None if options.text is None else text_source(options.text)
    if len(options.runs) == 1:
        return examine_run(options.runs[0], options, text=text, ranks=ranks, progress=progress)
    return examine_runs(options.runs, options, text=text, ranks=ranks, progress=progress)


def described(examination: "ExaminationResult") -> str:
    """Return an examination as lines of text: its table, the findings, and how to keep it if it was not written."""
    lines = [str(examination.table(terminal_width())), findings(examination)]
    if examination.path is None:
        several = len(examination.figures.models or ()) > 1
        written = "the result of the set was not written" if several else "nothing was written"
        lines.append(f"{written}: --out FOLDER keeps it, for `backstory report FOLDER`")
    return "\n".join(lines)


def findings(result: "Result[Any]") -> str:
    """Return the findings in sentences, with the published ones."""
    from backstory.papers.paper import published_examinations
    from backstory.reports.sections.context_section import examination_sentences

    lines = examination_sentences(result, published_examinations())
    return "\n".join(f"  {line}" for line in lines)
