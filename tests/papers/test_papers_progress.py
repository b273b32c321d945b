"""Time left and its display, and processes that end with their parent."""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from backstory.config import RunConfig, from_dict
from backstory.jobs.child import threads
from backstory.jobs.launchers import LocalProcesses
from backstory.jobs.runner import DONE, FAILED, WAITING, JobDisplay
from backstory.models.devices import Precision
from backstory.papers import reproduction
from backstory.papers.plan import SuiteRun
from backstory.papers.reproduction import Reproduction
from backstory.papers.suite import Metric
from backstory.papers.suite_folder import SuiteCommand, SuiteFolder
from backstory.papers.suite_jobs import COLUMNS, RunJob, SuiteJobs, estimate_minutes, expected_minutes, minutes_to_go


def run(system: str, seed: int, minutes: float) -> SuiteRun:
    return SuiteRun(system, seed, RunConfig(), minutes, (), ())


def job(run: SuiteRun, *arguments: Any, **options: Any) -> RunJob:
    return RunJob(run, SuiteFolder(Path("nowhere")), *arguments, **options)


RUNS = [run("a", 1, 10.0), run("a", 2, 10.0), run("b", 1, 40.0)]


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({}, [10.0, 10.0, 40.0]),
        ({"a-seed1": 5.0}, [5.0, 5.0, 20.0]),
        ({"a-seed1": 5.0, "a-seed2": 15.0}, [5.0, 15.0, 40.0]),
        ({"b-seed1": 20.0}, [5.0, 5.0, 20.0]),
    ],
)
def test_times_are_those_stated_until_some_are_measured(measured: dict[str, float], expected: list[float]) -> None:
    assert [expected_minutes(r, RUNS, measured) for r in RUNS] == expected


def test_a_run_that_is_begun_tells_of_the_others() -> None:
    begun, other, third = found = [job(r, minutes=r.minutes) for r in RUNS]
    begun.state, begun.paced, begun.minutes = "running", 30.0, 30.0
    estimate_minutes(found)
    assert [j.minutes for j in found] == [30.0, 30.0, 120.0]
    third.state, third.minutes = DONE, 80.0
    estimate_minutes(found)
    assert [j.minutes for j in found] == [30.0, 30.0, 80.0]
    assert other.state == WAITING


def test_stated_times_are_those_of_a_processor_until_a_run_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = Reproduction.plan("base", "small", tmp_path / "out", only=("awd-lstm",))
    jobs = planned.jobs()
    for dtype, words in ((torch.float32, ", which this one lacks: "), (torch.bfloat16, "as the suite states: ")):
        monkeypatch.setattr(reproduction, "choose_precision", lambda *_, dtype=dtype: Precision(dtype, "tested"))
        assert words in planned.budget(jobs, 1)
    jobs[0].paced = 30.0
    assert "to go, by the pace so far: " in planned.budget(jobs, 1)


def test_what_is_left_is_shared_by_processes_but_one_run_is_not() -> None:
    found = [job(r, minutes=r.minutes) for r in RUNS]
    assert minutes_to_go(found, 1) == 60
    assert minutes_to_go(found, 2) == 40
    found[2].trained, found[2].state = 0.75, "running"
    assert minutes_to_go(found, 2) == 15
    found[0].state, found[1].state = DONE, FAILED
    assert minutes_to_go(found, 2) == 10
    found[2].trained, found[2].to_read = 1.0, 0.5  # what follows the training takes time as well
    assert minutes_to_go(found, 2) == 20
    assert minutes_to_go([], 2) == 0


def test_nothing_is_left_of_a_training_that_ended_before_its_last_epoch(tmp_path: Path) -> None:
    """Fine-tuning ends when it no longer helps."""

    class Folder(SuiteFolder):
        def commands(self, run: SuiteRun) -> list[SuiteCommand]:
            steps = (("running", "training"), ("reading", "evaluation"))
            return [SuiteCommand(state, ("x",), kind, self.path, output=self.path / kind) for state, kind in steps]

    config = from_dict(RunConfig, {"training": {"epochs": 2, "finetune_epochs": 8}}, "a test")
    begun = RunJob(SuiteRun("a", 1, config, 10.0, (), ()), Folder(tmp_path), minutes=10.0)
    log = begun.folder.run(begun.run) / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    epoch = {"event": "epoch", "train_nats": 3.0, "valid_nats": 2.2, "valid_perplexity": 9.0}
    log.write_text("".join(json.dumps(epoch | {"epoch": n, "seconds": 60.0 * n}) + "\n" for n in range(1, 6)))
    begun.next_command()
    begun.watch()
    assert (begun.trained, begun.minutes, begun.minutes_left) == (0.5, 10.0, 5.0)
    (tmp_path / "training").touch()
    begun.next_command()
    begun.watch()
    assert (begun.trained, begun.minutes, begun.minutes_left) == (1.0, 5.0, 2.5), "half of its commands are left"


def shown(console: Console, *moments: list[RunJob], metric: Metric = "perplexity") -> str:
    display = JobDisplay(console, COLUMNS)
    with display.shown():
        for jobs in moments:
            SuiteJobs(jobs, display, "base, small scale", LocalProcesses(2), metric).show()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lines_say_what_is_new_only() -> None:
    one, other = job(RUNS[0], "running", epochs=3), job(RUNS[1])
    later = job(RUNS[0], "running", epoch=1, epochs=3, valid=99.5)
    last = job(RUNS[0], FAILED, problem="train ended [badly]", epoch=1, epochs=3, valid=99.5)
    text = shown(Console(file=io.StringIO(), width=20), [one, other], [one, other], [later, other], [last, other])
    assert text.splitlines() == [
        "a-seed1: running, epoch 1 of 3",
        "a-seed1: running, epoch 2 of 3, validation perplexity 99.5",
        "a-seed1: failed: train ended [badly]",
    ]


def test_a_grid_in_bits_is_told_in_bits() -> None:
    text = shown(Console(file=io.StringIO(), width=90), [job(RUNS[0], DONE, valid=8.0)], metric="bits_per_token")
    assert text == "a-seed1: done, validation bits per token 3.000\n"


def test_a_terminal_has_a_table() -> None:
    console = Console(file=io.StringIO(), width=90, force_terminal=True)
    jobs = [job(RUNS[0], DONE, minutes=9, valid=88.0), job(RUNS[2], "reading", minutes=40)]
    text = shown(console, jobs)
    assert "base, small scale: 1 of 2 runs done, about 40 min 0 s left" in text
    for cell in ("run", "seed", "state", "validation", "time left", "done", "88.0", "reading", "40 min 0 s"):
        assert cell in text, cell


def test_the_last_epoch_is_not_counted_on() -> None:
    assert job(RUNS[0], "running", epoch=3, epochs=3).status == "running, epoch 3 of 3"


@pytest.mark.parametrize(("named", "number"), [(None, 1), ("4", 4), ("0", 1), ("many", 1), ("4,2", 1)])
def test_a_process_has_one_thread_unless_told(named: str | None, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    if named is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert threads() == number


PARENT = """
import os, subprocess, sys, time
code = ("import os, sys, time; from backstory.jobs.child import end_with; end_with(int(sys.argv[1])); "
        "print(os.getpid(), flush=True); time.sleep(60)")
subprocess.Popen([sys.executable, "-c", code, str(os.getpid())])
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such signal")
def test_a_child_ends_with_its_parent_however_that_ends() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while _lives(child):
        assert time.monotonic() < deadline, "it outlived its parent"
        time.sleep(0.02)
    parent.stdout.close()


def _lives(number: int) -> bool:
    """True if the process runs; one that ended and was not waited for does not."""
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_child_whose_parent_went_before_it_asked_ends_at_once() -> None:
    code = "from backstory.jobs.child import end_with; end_with(1 if __import__('os').getppid() != 1 else 2)"
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ))
    assert done.returncode == (143 if sys.platform.startswith("linux") else 0)
