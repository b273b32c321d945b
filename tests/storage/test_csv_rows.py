"""Rows of text that are read back as they were written."""

import csv
import io
from typing import Any

import pytest

from backstory.storage.csv_rows import row_writer

CELLS = ["\r", "\n", "\r\n", "a\rb", 'say "no"', "a\tb", "a,b", "é", " ", ""]


def written(dialect: str, *rows: list[Any]) -> str:
    text = io.StringIO(newline="")
    write = row_writer(text, dialect)
    for row in rows:
        write(row)
    return text.getvalue()


@pytest.mark.parametrize("dialect", ["excel", "excel-tab"])
def test_any_cell_is_read_back_whole(dialect: str) -> None:
    text = written(dialect, ["word", "rank"], *([cell, "1"] for cell in CELLS))
    assert list(csv.reader(io.StringIO(text, newline=""), dialect)) == [
        ["word", "rank"],
        *([cell, "1"] for cell in CELLS),
    ]


def test_pandas_reads_them_too() -> None:
    pandas = pytest.importorskip("pandas")
    text = written("excel-tab", ["word", "rank"], *([cell, 1] for cell in CELLS))
    frame = pandas.read_csv(io.BytesIO(text.encode()), sep="\t", keep_default_na=False)
    assert list(frame["word"]) == CELLS and list(frame["rank"]) == [1] * len(CELLS)


def test_ordinary_rows_end_in_a_line_feed() -> None:
    assert written("excel-tab", ["a", 1, 0.5, None], ["b c", 2, "", "x"]) == "a\t1\t0.5\t\nb c\t2\t\tx\n"
