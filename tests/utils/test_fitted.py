"""Long lines on a terminal: broken between words, under their text."""

import io

import pytest

from backstory.utils.terminal import fitted, hanging, terminal_width


def test_a_long_line_goes_on_under_its_text_and_a_command_stays_whole() -> None:
    line = (
        "  unknown     8.0% of the words are outside the vocabulary; `backstory train ptb-small --out a` has other ones"
    )
    assert hanging(line, 60) == [
        "  unknown     8.0% of the words are outside the vocabulary;",
        "              `backstory train ptb-small --out a` has other",
        "              ones",
    ]
    assert hanging(line, len(line)) == [line]
    assert hanging("  Perplexity of words by where they occurred", 30) == [
        "  Perplexity of words by where",
        "  they occurred",
    ]
    assert hanging("  a label that is wider than half  text", 30) == ["  a label that is wider than", "  half  text"]


def test_lines_are_fitted_to_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    assert fitted("one two three four") == "one two three four"
    monkeypatch.setattr("sys.stdout", Terminal())
    assert fitted("one two three four\n\n a  b") == "one two\nthree four\n\n a  b"


def test_a_table_is_folded_where_the_terminal_is_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert terminal_width() == 80
    monkeypatch.setattr("sys.stdout", Terminal())
    assert terminal_width() == 60
    monkeypatch.setenv("COLUMNS", "200")
    assert terminal_width() == 80


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
