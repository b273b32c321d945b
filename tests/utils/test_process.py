"""The end of a process, and environment variables on other processes: taken, or refused in one line."""

import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from backstory.utils.errors import UserError
from backstory.utils.process import Launched, first_here, launched, world

TWO = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TWO, "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_alone_without_torchrun() -> None:
    assert launched() == Launched(0, 1, 0, 1)
    assert first_here()


def test_what_torchrun_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched(1, 2, 1, 2)
    assert not first_here()


@pytest.mark.parametrize("value", ["y", "0", "-2", "1.5", "²", "9" * 5000])
def test_a_number_of_processes_that_is_none(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    for asked in (launched, world):
        with pytest.raises(UserError, match="WORLD_SIZE must be a whole number from 1"):
            asked()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RANK", "x", "RANK must be"),
        ("RANK", "2", "RANK must be a whole number from 0 to 1, not '2'"),
        ("RANK", "-1", "RANK must be"),
        ("RANK", "", "RANK is not set"),
        ("LOCAL_RANK", "x", "LOCAL_RANK must be"),
        ("LOCAL_RANK", "2", "LOCAL_RANK must be"),
        ("LOCAL_WORLD_SIZE", "3", "LOCAL_WORLD_SIZE must be"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not set"),
        ("MASTER_PORT", "x", "MASTER_PORT must be"),
        ("MASTER_PORT", "99999", "MASTER_PORT must be"),
    ],
)
def test_what_does_not_fit(name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for known, usual in TWO.items():
        monkeypatch.setenv(known, usual)
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=says):
        launched()


@pytest.mark.parametrize("value", ["x", "-1", "", "00", "9x"])
def test_a_process_whose_number_is_none_speaks(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", value)
    assert first_here()


PROGRAM = """
import atexit, sys, threading, time
from backstory.utils.process import run_program

class Spoken:
    def __del__(self):
        print("taken apart")

spoken = Spoken()
spoken.itself = spoken  # the interpreter finds it at its end

printed = threading.Event()

def late():
    printed.wait()  # lines of two threads at a time may mix
    time.sleep(0.1)  # main has returned
    print("thread")

def main():
    threading.Thread(target=late).start()
    atexit.register(print, "atexit")
    print("main")
    printed.set()
    if "broken" in sys.argv:
        raise ValueError("broken")
    return 3

run_program(main)
"""


def ended(*arguments: str, program: str = PROGRAM) -> tuple[int, str, str]:
    """Exit code and output of the program."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_program_ends_with_its_threads_and_exit_functions_and_leaves_its_modules_alone() -> None:
    assert ended() == (3, "main\nthread\natexit\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_whose_thread_never_ends_can_be_ended(number: signal.Signals) -> None:
    program = PROGRAM.replace("time.sleep(0.1)", "time.sleep(1000)").replace(
        'print("main")', 'for number in (2, 15): signal.signal(number, signal.SIG_IGN)\n    print("main")'
    )
    program = program.replace("import atexit", "import signal, atexit").replace(
        "return 3", "sys.stdout.flush(); return 3"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stdout.readline() == "main\n"
        for _ in range(100):  # it ignores signals until its main function has returned
            running.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                assert running.wait(0.1) == -number
                return
        running.kill()
        pytest.fail("it does not end")


def test_a_program_that_raises_ends_as_python_does() -> None:
    code, out, error = ended("broken")
    assert (code, out) == (1, "main\nthread\natexit\ntaken apart\n")
    assert error.splitlines()[-1] == "ValueError: broken"


def test_loading_a_program_s_modules_starts_no_garbage_collection() -> None:
    program = PROGRAM.replace("import atexit", "import gc, atexit").replace(
        'print("main")',
        "lists = [[] for _ in range(40_000)]; print(sum(s['collections'] for s in gc.get_stats()) - before)",
    )
    program = program.replace("def main():", "def main():\n    before = sum(s['collections'] for s in gc.get_stats())")
    assert ended(program=program) == (3, "0\nthread\natexit\n", "")


def test_a_program_ends_without_an_output_to_flush() -> None:
    assert ended(program="import os, sys\nos.close(1)\nsys.stdout = None" + PROGRAM.replace("print(", "str("))[0] == 3
