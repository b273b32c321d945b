"""Crashes and damage: a folder is never blocked, no process is left behind, and a failing run affects no other."""

import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console
from small_suites import Reproduced, suite, write

from backstory.cli.main import main
from backstory.config import RunConfig, from_yaml
from backstory.jobs import child, runner
from backstory.jobs.launchers import LocalProcesses
from backstory.jobs.runner import JobDisplay
from backstory.papers import reproduction as reproduce
from backstory.papers import suite_folder
from backstory.papers.plan import SuiteRun, runs_of
from backstory.papers.suite import Suite
from backstory.papers.suite_folder import SuiteCommand, SuiteFolder
from backstory.papers.suite_jobs import COLUMNS, RunJob, SuiteJobs
from backstory.results.result_file import result_from
from backstory.storage.atomic import TEMPORARY
from backstory.utils.errors import UserError
from backstory.utils.process import Stopped, StopRequest


class Crash(BaseException):
    """Simulates a dead process."""


def crashing(call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """The call, until it was made as often as is left."""

    def counted(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            raise Crash
        left[0] -= 1
        return call(*arguments, **options)

    return counted


def test_a_crash_at_the_start_does_not_block_the_folder(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = from_yaml(Suite, yaml.safe_dump(suite()), "mine")
    runs, folder, steps = runs_of(mine, "small", "mine"), SuiteFolder(desk / "out"), 0
    while True:
        shutil.rmtree(folder.path, ignore_errors=True)
        left = [steps]
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", crashing(Path.mkdir, left))
            patch.setattr(suite_folder, "write_atomically", crashing(suite_folder.write_atomically, left))
            try:
                folder.open(mine, runs)
                break
            except Crash:
                steps += 1
        folder.check(runs)
        folder.open(mine, runs)
        assert folder.recipe(runs[-1]).is_file()
    assert steps >= 7, "a step that crashes for each folder and file"


def test_what_a_killed_start_left_unfinished_is_swept(desk: Path) -> None:
    mine = from_yaml(Suite, yaml.safe_dump(suite()), "mine")
    runs, folder = runs_of(mine, "small", "mine"), SuiteFolder(desk / "out")
    folder.path.mkdir()
    unfinished = folder.path / f"{TEMPORARY}77-suite.yaml"
    unfinished.touch()
    folder.check(runs)
    folder.open(mine, runs)
    assert not unfinished.exists()
    (desk / "other").mkdir()
    (desk / "other" / "mine.txt").touch()
    with pytest.raises(UserError, match="holds something other than a reproduction"):
        SuiteFolder(desk / "other").check(runs)


def test_a_dry_run_needs_no_folder_that_can_be_written_to(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(suite())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["reproduce", "suite.yaml", "--dry-run"]) == 0
    assert main(["reproduce", "suite.yaml"]) == 2


# --- a run's trouble ---


@pytest.mark.parametrize(("weights_file", "done"), [("a", True), ("b", False), (None, True)])
def test_a_reading_of_other_weights_than_the_run_has_is_made_again(
    weights_file: str | None, done: bool, tmp_path: Path
) -> None:
    reading, best = tmp_path / "evaluate-test", tmp_path / "checkpoints" / "best-2"
    for folder in (reading, best):
        folder.mkdir(parents=True)
    files = {"weights.safetensors": {"bytes": 8, "sha256": "a"}}
    (best / "manifest.json").write_text(json.dumps({"schema": 1, "files": files}))
    figures = {"split": "test", "reader": "static", "unit": "word"}
    figures |= dict.fromkeys(("tokens", "nats_per_token", "perplexity", "bits_per_token"), 1.0)
    origin = {"command": f"backstory evaluate {tmp_path} --split test --out {reading}", "weights_file": weights_file}
    result = {"schema": 1, "kind": "evaluation", "name": "run", "figures": figures, "provenance": origin}
    (reading / "result.json").write_text(json.dumps(result))
    command = SuiteCommand("reading", ("evaluate",), "evaluation", reading, ("--split", "test"))
    assert command.done() == done


def test_an_error_in_the_middle_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs' first commands have ended: the next of one is started, then that of the other raises."""
    (tmp_path / "sleeper.py").write_text("import sys, time; time.sleep(float(sys.argv[2]))")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(child, "MODULE", "sleeper")
    started: list[subprocess.Popen] = []

    class Step(SuiteCommand):
        """Done once its process has ended."""

        def done(self) -> bool:
            return self.arguments == ("0",) and len(started) >= 2 and all(p.poll() == 0 for p in started[:2])

    class Script(SuiteFolder):
        def commands(self, run: SuiteRun) -> list[SuiteCommand]:
            steps = [Step("running", (seconds,), "training", self.path) for seconds in ("0", "60")]
            if run.system == "bad" and steps[0].done():
                raise OSError("the disk fails")
            return steps

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    def until_both_ended(_: float) -> None:
        assert [p.wait(60) for p in started] == [0, 0]

    monkeypatch.setattr(child.subprocess, "Popen", Recorded)
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=time.monotonic, sleep=until_both_ended))
    (tmp_path / "logs").mkdir()
    runs = [SuiteRun(system, 1, RunConfig(), minutes, (), ()) for system, minutes in (("good", 2.0), ("bad", 1.0))]
    display = JobDisplay(Console(file=io.StringIO()), COLUMNS)
    jobs = SuiteJobs(
        [RunJob(run, Script(tmp_path), minutes=run.minutes) for run in runs],
        display,
        "",
        LocalProcesses(2),
        "perplexity",
    )
    try:
        with pytest.raises(OSError, match="the disk fails"):
            runner.run_jobs(jobs, LocalProcesses(2), StopRequest())
        assert [p.poll() for p in started] == [0, 0, -signal.SIGTERM]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "line",
    ["not JSON", "[]", '{"event": "epoch"}', '{"event": "epoch", "valid_perplexity": "low", "seconds": 3.0}'],
)
def test_a_damaged_log_is_no_news(line: str, tmp_path: Path) -> None:
    folder = SuiteFolder(tmp_path)
    job = RunJob(SuiteRun("a", 1, RunConfig(), 10.0, (), ()), folder, "running")
    log = folder.run(job.run) / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    epoch = {
        "event": "epoch",
        "epoch": 1,
        "train_nats": 3.0,
        "valid_nats": 2.2,
        "valid_perplexity": 9.0,
        "seconds": 60.0,
    }
    log.write_text(f"{json.dumps(epoch)}\n")
    job.watch()
    known = vars(job).copy()
    assert (job.epoch, job.valid, job.minutes) == (1, 9.0, job.epochs)
    with open(log, "a") as file:
        file.write(f"{line}\n")
    job.watch()
    assert vars(job) == known


def test_a_damaged_log_of_a_finished_run_stops_nothing(reproduced: Reproduced, desk: Path) -> None:
    shutil.copytree(reproduced.folder / "runs", desk / "runs")
    write(suite())
    place = desk / "runs" / "suite-small" / "runs"
    with open(place / "plain-seed1" / "metrics.jsonl", "a") as file:
        file.write("not JSON\n")
    assert main(["reproduce", "suite.yaml"]) == 0


@pytest.mark.full
def test_a_damaged_result_of_a_training_is_written_again(reproduced: Reproduced, desk: Path) -> None:
    shutil.copytree(reproduced.folder / "runs", desk / "runs")
    write(suite())
    path = desk / "runs" / "suite-small" / "runs" / "plain-seed1" / "result.json"
    whole = result_from(path.read_text(), "result.json").figures
    path.write_text(path.read_text().replace('"parameters"', '"paramters"'))
    assert main(["reproduce", "suite.yaml"]) == 0
    again = result_from(path.read_text(), "result.json").figures
    assert (again.valid_nats, again.curve) == (whole.valid_nats, whole.curve)


def test_a_stop_is_told_as_that_of_a_training(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(suite())
    monkeypatch.setattr(reproduce, "run_jobs", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match=r"^runs/suite-small is stopped and its runs are saved; ") as stopped:
        reproduce.Reproduction.plan("suite.yaml", "small").run(LocalProcesses(1))
    assert (stopped.value.signal, stopped.value.exit_code) == (signal.SIGTERM, 143)
    assert main(["reproduce", "suite.yaml"]) == 143


def test_contexts_longer_than_the_text_are_told_before_anything_runs(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = suite()
    changed["systems"][0]["small"]["examinations"][0]["maximum_context"] = 1000
    write(changed)
    assert main(["reproduce", "suite.yaml"]) == 2
    assert "system plain, its examination: the text has" in (told := capsys.readouterr().err)
    assert "a smaller maximum_context" in told and not Path("runs").exists()


@pytest.mark.full
def test_a_claim_about_a_run_that_failed_after_its_reading_is_not_judged(
    reproduced: Reproduced, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(reproduced.folder / "runs", desk / "runs")
    shutil.rmtree(desk / "runs" / "suite-small" / "runs" / "plain-seed1" / "examine-truncate-valid")
    write(suite())
    # The checkpoints are gone, so that the examination which is to be made again fails.
    shutil.rmtree(desk / "runs" / "suite-small" / "runs" / "plain-seed1" / "checkpoints")
    assert main(["reproduce", "suite.yaml"]) == 1
    found = json.loads((desk / "runs" / "suite-small" / "result.json").read_text())["figures"]
    assert found["failed"] == 1 and len(found["runs"][0]["readings"]) == 1
    assert (found["claims"][0]["verdict"], found["claims"][0]["gain"]) == ("runs are missing: no claim", None)
