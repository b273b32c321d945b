"""Broken output does not stop work: full, closed or unread streams, missing characters, and signals."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, Command
from runs import contents

from backstory.cli.main import main
from backstory.readers.saved_reading import load_reading
from backstory.training.loop import Trainer
from backstory.utils import process as interrupts
from backstory.utils.process import Interrupted, Interrupts, StopRequest
from backstory.utils.terminal import Printed, Tolerant, plain, printing

TRAIN = ["train", "demo", *SMALL, "--corpus", "good.txt", "--out", "new"]
FULL = "backstory: cannot write to standard output: No space left on device; make room, or send it elsewhere\n"


def unread() -> io.TextIOWrapper:
    """A pipe without a reader."""
    ours, theirs = os.pipe()
    os.close(ours)
    return open(theirs, "w", encoding="utf-8")


def full() -> io.TextIOWrapper:
    return open("/dev/full", "w", encoding="utf-8")


def ascii_only() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii")


Streams = Callable[..., tuple[int, str]]


@pytest.fixture
def call(desk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Run a command line with other streams; return its exit code and standard error."""

    def called(*arguments: str, **streams: Any) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            for name, stream in streams.items():
                patch.setattr(sys, name, stream)
            capsys.readouterr()
            code = main(list(arguments))
            for stream in filter(None, streams.values()):
                stream.close()  # what is buffered still must not fail
        return code, capsys.readouterr().err

    return called


@pytest.mark.parametrize("stream", [unread, full, lambda: None])
def test_a_training_goes_on_without_its_progress(stream: Callable[[], Any], call: Streams) -> None:
    code, _ = call(*TRAIN, stderr=stream())
    assert code == 0 and Path("new/result.json").is_file()


@pytest.mark.parametrize(("stream", "ends"), [(unread, 0), (full, 2), (lambda: None, 0)])
def test_what_is_trained_is_saved_first(stream: Callable[[], Any], ends: int, call: Streams) -> None:
    code, err = call(*TRAIN, stdout=stream())
    assert code == ends and Path("new/result.json").is_file()
    assert err.endswith(FULL) == (ends == 2)


@pytest.mark.parametrize(("stream", "ends"), [(unread, 0), (full, 2), (lambda: None, 0), (ascii_only, 0)])
@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        (["evaluate", "run"], "run/evaluate-test/result.json"),
        (["evaluate", "run", "--json"], "run/evaluate-test/result.json"),
        (["explain", "surprisal", "run", "--words", "5", "--out", "seen"], "seen/result.json"),
        (["generate", "run", "--tokens", "3", "--save"], "run/sample/result.json"),
        (["report", "run"], "report.html"),
        (["recipe", "copy", "demo", "new.yaml"], "new.yaml"),
        (["ls"], None),
        (["train", "--help"], None),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_result_is_written_whoever_hears_of_it(
    arguments: list[str], result: str | None, stream: Callable[[], Any], ends: int, call: Streams, run_copy: Path
) -> None:
    code, err = call(*arguments, stdout=stream())
    assert code == ends, err
    assert err.endswith(FULL) == (ends == 2) and "Traceback" not in err
    assert result is None or Path(result).is_file()


@pytest.mark.parametrize("stream", [unread, full])
def test_a_session_is_saved_as_far_as_it_was_heard(stream: Callable[[], Any], call: Streams, run_copy: Path) -> None:
    Path("long.txt").write_text("ann saw two jars of jam\n" * 5000)
    with open("long.txt") as typed:
        code, err = call("read", "run", "--session", "s", stdout=stream(), stdin=typed)
    saved = load_reading(Path("s"))
    assert saved is not None and 0 < saved.progress["tokens"] < 2000
    assert code == (2 if stream is full else 0)
    assert "backstory: read and saved in s; continue with --resume\n" in err


@pytest.mark.parametrize("arguments", [["read", "run"], ["generate", "run", "--prompt", "-"], ["evaluate", "run", "-"]])
def test_a_closed_input_is_one_line(arguments: list[str], call: Streams, run_copy: Path) -> None:
    before = contents(Path())
    assert call(*arguments, stdin=None) == (
        2,
        "backstory: standard input is closed; give it a text, as in `backstory ... < TEXT`\n",
    )
    assert contents(Path()) == before


def test_a_mistake_is_told_in_any_encoding_or_to_nobody(call: Streams, desk: Path) -> None:
    for stream in (ascii_only(), unread(), full(), None):
        assert call("train", "caf\xe9", stderr=stream)[0] == 2
    assert call("train", "caf\xe9", stdout=None)[1].startswith("backstory: there is no recipe 'caf\xe9'")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_bytes_that_nobody_takes(call: Streams, run_copy: Path) -> None:
    line = ("compress", "short.txt", "--model", "run")
    assert call(*line)[0] == 0
    says = "backstory: cannot write to standard output: No space left on device; make room, or send it elsewhere\n"
    for coding in ((*line, "--out", "-"), ("decompress", "short.txt.bks", "--model", "run", "--out", "-")):
        code, err = call(*coding, stdout=full())
        assert code == 2 and err.endswith(says) and err.count("\n") <= 2, err
        assert [call(*coding, stdout=stream)[0] for stream in (unread(), None)] == [0, 0]


@pytest.mark.full
@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full 2>&1", "| true"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_real_processes_with_closed_streams(redirection: str, encoding: str, desk: Path, run_copy: Path) -> None:
    line = f"{sys.executable} -m backstory evaluate run {redirection}"
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    done = subprocess.run(line, shell=True, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == (2 if "full" in redirection else 0)
    assert Path("run/evaluate-test/result.json").is_file()
    assert done.stderr in ("", "backstory: reading test with run\n")


# --- the streams themselves ---


def test_what_styles_its_text_is_found_behind_what_makes_it_printable() -> None:
    below = io.StringIO()
    printed = Printed(below)
    assert plain(printed) is printed.styled and isinstance(plain(below), Tolerant)
    printed.write("a\x1b[1mb")
    plain(printed).write("\x1b[1mc")
    assert below.getvalue() == "a\\x1b[1mb\x1b[1mc"


def test_streams_are_put_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = ascii_only()
    monkeypatch.setattr(sys, "stdout", stream)
    with printing():
        print("caf\xe9")
    assert sys.stdout is stream and stream.errors == "strict"


# --- signals ---


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in interrupts.STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.full
def test_a_closed_terminal_stops_a_training_as_sigterm_does(
    call: Streams, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    step = Trainer._step

    def hung_up(trainer: Trainer, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "_step", hung_up)
    code, err = call(*TRAIN)
    assert code == 128 + signal.SIGHUP and "new is stopped and saved" in err
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    code, err = call(*TRAIN, "--resume")
    assert code == 0 and Path("new/result.json").is_file()


@pytest.mark.parametrize("first", interrupts.STOPS)
@pytest.mark.parametrize("second", interrupts.STOPS)
def test_a_second_signal_changes_nothing(
    first: int, second: int, call: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(arguments: list[str]) -> int:
        try:
            os.kill(os.getpid(), first)
        finally:
            os.kill(os.getpid(), second)
        return 0

    monkeypatch.setattr("backstory.cli.ls.main", interrupted)
    assert call("ls") == (128 + first, "backstory: interrupted\n")


def test_a_training_that_is_interrupted_early_says_that_nothing_was_saved(
    call: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    said = "backstory: interrupted before anything was saved; start again\n"
    with monkeypatch.context() as patch:
        patch.setattr("backstory.training.fit.prepare", prepared)
        assert call(*TRAIN) == (128 + signal.SIGTERM, said)
    assert call(*TRAIN)[0] == 0  # as it says


def test_a_later_signal_ends_what_does_not_end_but_with_the_first_code(monkeypatch: pytest.MonkeyPatch) -> None:
    handler, now = Interrupts(), [100.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    with pytest.raises(Interrupted):
        handler(signal.SIGINT, None)
    handler(signal.SIGTERM, None)
    now[0] += 2 * interrupts.TOGETHER
    with pytest.raises(Interrupted) as raised:
        handler(signal.SIGTERM, None)
    assert raised.value.signal == signal.SIGINT
    handler.ends, now[0] = True, now[0] + 100
    handler(signal.SIGTERM, None)


def test_a_signal_after_a_stop_was_saved_changes_nothing(handlers: None) -> None:
    handler = Interrupts()
    for number in interrupts.STOPS:
        signal.signal(number, handler)
    with StopRequest().listening() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.signal == signal.SIGHUP


def test_a_signal_while_the_interpreter_closes_changes_nothing(desk: Path) -> None:
    code = (
        "import atexit, os, signal, sys; from backstory.cli import ls, main; "
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM); "
        "ls.KINDS['models'] = lambda: os.kill(os.getpid(), signal.SIGINT); "
        "sys.argv[1:] = ['ls', 'models']; raise SystemExit(main.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "backstory: interrupted\n")


def test_a_folder_that_is_no_run_and_is_named_as_a_recipe_stays_out_of_it(command: Command, desk: Path) -> None:
    (desk / "demo").mkdir()
    assert command("train", "demo", *SMALL, "--corpus", "good.txt").code == 0
    assert (desk / "runs" / "demo" / "result.json").is_file() and not list((desk / "demo").iterdir())
