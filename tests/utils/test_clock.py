"""The clock leaves out the time for which the process is suspended."""

import signal
import threading
import time
from collections.abc import Callable

import pytest

from backstory.utils.clock import Clock
from backstory.utils.terminal import progress_bar

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="needs the signals of job control")


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let the time of the system pass."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_time_before_a_process_goes_on_is_left_out_from_the_last_reading(pass_time: Callable[[float], None]) -> None:
    clock = Clock()
    with clock.listening():
        began = clock.seconds()
        pass_time(2.0)
        assert clock.seconds() - began == 2.0
        pass_time(60.0)
        signal.raise_signal(signal.SIGCONT)
        pass_time(3.0)
        signal.raise_signal(signal.SIGCONT)  # also one that was not suspended
        pass_time(1.0)
        assert clock.seconds() - began == 3.0
    pass_time(5.0)
    assert clock.seconds() - began == 8.0


def test_a_suspended_command_has_the_time_left_of_its_work(
    pass_time: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("reading") as progress:
        progress(0, 100)
        pass_time(90.0)
        progress(10, 100)
        pass_time(3600.0)
        signal.raise_signal(signal.SIGCONT)
        pass_time(90.0)
        progress(20, 100)
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "0:13:30 left",
        "0:12:00 left",
    ]


def test_another_handler_is_called_and_stands_again(pass_time: Callable[[float], None]) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGCONT, lambda number, frame: heard.append(number))
    try:
        own = signal.getsignal(signal.SIGCONT)
        with Clock().listening():
            signal.raise_signal(signal.SIGCONT)
        assert heard == [signal.SIGCONT] and signal.getsignal(signal.SIGCONT) is own
    finally:
        signal.signal(signal.SIGCONT, before)


def test_a_thread_has_no_handlers() -> None:
    def listen() -> None:
        with Clock().listening():
            handlers.append(signal.getsignal(signal.SIGCONT))

    before, handlers = signal.getsignal(signal.SIGCONT), []
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert handlers == [before]
