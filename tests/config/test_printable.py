"""Printed text of other people moves no cursor, rings no bell and turns no line around."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from backstory.config.terminal import one_line, printable


def test_letters_of_every_script_stay() -> None:
    text = "naïve \t 漢字 עברית می\u200cخواهم 👩\u200d🔬\n"
    assert printable(text) == text


def test_what_steers_a_terminal_is_written_out() -> None:
    assert printable("\x1b[2J\x07a\rb\x9b1m\x7f") == r"\x1b[2J\x07a\x0db\x9b1m\x7f"
    assert printable("\u202egnp.exe \udcff\u2028") == r"\u202egnp.exe \udcff\u2028"


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_printed_controls(text: str) -> None:
    shown = printable(text)
    assert not any(unicodedata.category(c) == "Cc" for c in shown if c not in "\n\t")
    shown.encode()
    assert "\n" not in one_line(text)
