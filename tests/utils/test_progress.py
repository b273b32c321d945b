"""Progress: a bar on a terminal, and elsewhere a line every minute."""

import io

import pytest
from rich.console import Console

from backstory.utils import terminal


def test_nothing_is_counted_before_the_work_says_how_much_there_is() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with terminal.shown_progress(console), terminal.progress_bar("reading", "MB", 10) as progress:
        display = terminal._DISPLAY.get()
        assert display is not None and display.bars is not None
        task = display.bars.tasks[0]
        assert (task.total, task.fields["counts"]) == (None, "")
        progress(20, 1000)
        assert (task.completed, task.total, task.fields["counts"]) == (2, 100, "2 of 100 MB")


def test_the_time_left_is_that_of_the_present_part_of_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 500, 100))
    monkeypatch.setattr(terminal.CLOCK, "seconds", lambda: next(clock))
    with terminal.progress_bar("reading") as progress:
        for done in (10, 100, 1, 51):  # the second part reads 50 of 100 tokens in the last 100 seconds
            progress(done, 100)
    assert capsys.readouterr().err.splitlines()[-1] == "reading: 51 of 100 tokens, 0:01:38 left"
