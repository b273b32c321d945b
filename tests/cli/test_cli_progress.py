"""Progress without a terminal: a line on the work within the first second, then one a minute."""

import subprocess
import sys

import pytest
from commands import Command, process

from backstory.utils import terminal as progress

SLOW = {
    "train demo --out new": "training demo in new",
    "evaluate run": "reading test with run",
    "evaluate run good.txt": "reading good.txt with run",
    "examine run": "examining truncate of run",
    "examine hf:org/name": "examining truncate of hf:org/name; the result is only printed, and a stopped examination starts "
    "again (--out FOLDER saves both)",
    "examine hf:org/name --out new": "examining truncate of hf:org/name",
    "explain surprisal run": "explaining surprisal of run",
    "explain reading run --reader cache": "comparing readers of run",
    "generate run": "loading run",
    "read run": "loading run",
    "reader statistics run": "collecting statistics of run",
    "reader tune run --reader cache": "tuning cache for run",
    "reader train run": "training three-level for run",
    "reader audit run": "auditing static of run",
    "export run": "exporting run",
    "report run": "writing report.html",
    "sweep run demo --space demo": "planning a sweep of demo over demo",
    "sweep show run": "reading the trials of run",
    "reproduce base": "planning base, small scale",
    "ls readers": "collecting the readers",
    "demo": "training, reading and examining a small model in runs/demo; this takes a few minutes",
}
"""Commands that take more than a second, and their first line."""

WITHOUT_TORCH = """
import os, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "optuna"):
            sys.stderr.flush()
            os._exit(9)

sys.meta_path.insert(0, Absent())
from backstory.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""
"""The command line, which exits when it would load a slow library."""


@pytest.mark.full
@pytest.mark.usefixtures("run_copy")
@pytest.mark.parametrize("line", SLOW)
def test_a_slow_command_says_what_it_does_before_it_loads_what_is_slow(line: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines() == [f"backstory: {SLOW[line]}"] and done.stdout == "", done


@pytest.mark.parametrize("line", ["evaluate nowhere", "explain surprisal nowhere", "examine nowhere"])
def test_an_absent_run_is_one_line_before_anything_is_loaded(line: str, desk: object) -> None:
    out, err = process(*line.split()).communicate(timeout=60)
    assert out == "" and err.startswith("backstory: there is no run folder nowhere; train one") and err.count("\n") == 1


def test_nothing_is_announced_where_all_is_loaded(command: Command, run_copy: object) -> None:
    assert command("generate", "run", "--tokens", "2").err == ""


def test_off_a_terminal_there_is_a_line_every_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 10.0, 59.0, 61.0, 70.0, 180.0, 200.0])
    monkeypatch.setattr(progress.CLOCK, "seconds", lambda: next(clock))
    with progress.progress_bar("reading [/b]", "MB", 1000) as told:
        for done in (1, 2, 1_000_000, 1_500_000, 3_000_000, 4_000_000):
            told(done, 4_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "reading [/b]: 1,000 of 4,000 MB, 0:03:03 left",
        "reading [/b]: 3,000 of 4,000 MB, 0:01:00 left",
    ]


@pytest.mark.usefixtures("run_copy")
def test_the_proof_of_a_reading_has_progress_of_its_own(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    said = command("evaluate", "run", "--proof", "cache.bks").err.splitlines()
    assert {line.split(":")[0] for line in said} == {"writing cache.bks"}, "the reading itself is a single block"


@pytest.mark.full
@pytest.mark.usefixtures("run_copy")
@pytest.mark.parametrize(
    ("flags", "bar"),
    [
        ("--reader cache --after valid", "reading valid, then test"),
        ("--reader dynamic:rule=sgd,rate=0.1 --reader cache", "reading test twice, adaptive and static"),
    ],
)
def test_the_bar_says_why_it_counts_more_tokens_than_the_text_has(
    command: Command, monkeypatch: pytest.MonkeyPatch, flags: str, bar: str
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    said = command("evaluate", "run", *flags.split()).err.splitlines()
    assert {line.split(":")[0] for line in said} == {bar}
