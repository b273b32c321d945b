"""Progress where there is no terminal: a line every minute."""

import pytest

from backstory.config import terminal


def test_the_time_left_is_that_of_the_present_part_of_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 500, 100))
    monkeypatch.setattr(terminal.CLOCK, "seconds", lambda: next(clock))
    with terminal.progress_bar("reading") as progress:
        for done in (10, 100, 1, 51):  # the second part reads 50 of 100 tokens in the last 100 seconds
            progress(done, 100)
    assert capsys.readouterr().err.splitlines()[-1] == "reading: 51 of 100 tokens, 0:01:38 left"
