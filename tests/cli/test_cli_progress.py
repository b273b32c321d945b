"""How long work is told of where there is no terminal."""

import pytest

from backstory.cli import command_line as progress


def test_off_a_terminal_there_is_a_line_every_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 10.0, 59.0, 61.0, 70.0, 180.0, 200.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.progress_bar("reading [/b]", "MB", 1000) as told:
        for done in (1, 2, 1_000_000, 1_500_000, 3_000_000, 4_000_000):
            told(done, 4_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "reading [/b]: 1,000 of 4,000 MB, 0:03:03 left",
        "reading [/b]: 3,000 of 4,000 MB, 0:01:00 left",
    ]
