"""Text that is not ours (names, words, keys, file contents), made safe to print on a terminal or into a log."""

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1: escape sequences, bells, carriage returns
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of the text after it
    "\u2028\u2029\ud800-\udfff]"  # separators of lines that terminals disagree about; bytes that were not UTF-8
)


def printable(text: str) -> str:
    r"""The text with its control characters written out, as in `\x1b[2J`; newlines, tabs and all of Unicode's letters stay.

    What joins letters (U+200C, U+200D) stays too: Persian, Hindi and many emoji are not written without it.
    """
    return _UNSAFE.sub(lambda match: _escaped(match[0]), text)


def cell(text: str) -> str:
    r"""The text printable and in its place in a line or a table: newlines and tabs are written out too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable_json(text: str) -> str:
    """JSON that `json.dumps` wrote in ASCII, printable and of the same value: of control characters it leaves DEL alone."""
    return text.replace("\x7f", "\\u007f")


def one_line(text: str) -> str:
    """The text printable and in one line: each run of white space is one space."""
    return printable(" ".join(text.split()))


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
