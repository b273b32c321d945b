"""Printed text of other people moves no cursor, rings no bell and turns no line around."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from backstory.utils.terminal import one_line, padded, printable, shortened


def test_letters_of_every_script_stay() -> None:
    text = "naïve \t 漢字 עברית می\u200cخواهم 👩\u200d🔬\n"
    assert printable(text) == text


def test_what_steers_a_terminal_is_written_out() -> None:
    assert printable("\x1b[2J\x07a\rb\x9b1m\x7f") == r"\x1b[2J\x07a\x0db\x9b1m\x7f"
    assert printable("\u202egnp.exe \udcff\u2028") == r"\u202egnp.exe \udcff\u2028"


def test_text_is_filled_and_shortened_by_the_width_of_its_letters() -> None:
    """Chinese letters take two columns of a terminal, accents none."""
    assert [padded("日本", 6), padded("e\u0301", 3, right=True), padded("long", 2)] == ["日本  ", "  e\u0301", "long"]
    shown = [shortened(text, 12) for text in ("日本語の本", "日本語の本の章", "e\u0301" * 12, "a\n" * 5, "x" * 13)]
    assert shown == ["日本語の本", "日本語の本…", "e\u0301" * 12, r"a\na\na\na\n"[:11] + "…", "x" * 11 + "…"]


@given(st.text(st.characters(exclude_categories=())))
def test_nothing_printed_controls(text: str) -> None:
    shown = printable(text)
    assert not any(unicodedata.category(c) == "Cc" for c in shown if c not in "\n\t")
    shown.encode()
    assert "\n" not in one_line(text)
