"""Rows of text separated by commas or tabs, as every reader of CSV takes them."""

import csv
from collections.abc import Callable, Iterable
from typing import Any, TextIO


def row_writer(file: TextIO, dialect: str = "excel") -> Callable[[Iterable[Any]], object]:
    """Return a function that writes a row, which ends in a line feed; a cell with any end of a line is quoted."""
    return csv.writer(_Lines(file), dialect, lineterminator="\r\n").writerow


class _Lines:
    """Takes rows that end in carriage return and line feed: before Python 3.13 csv quotes only what is in its terminator."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> None:
        self.file.write(row.removesuffix("\r\n") + "\n")
