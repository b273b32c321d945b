"""Numbers as people read them: one sign below zero, none at zero."""

import re
from pathlib import Path

import pytest

from backstory.reports.svg import blank, inline, style
from backstory.reports.writers import escape_latex
from backstory.results.passage import Numbers
from backstory.utils import formats
from backstory.utils.scores import bounded

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("value", [0.0, -0.0, 0.0004, -0.0004])
def test_zero_has_no_sign(value: float) -> None:
    layers = [Numbers(kind, "gain", (value,)) for kind in ("diverging", "plain", "sequential")]
    assert [formats.percent(value), formats.signed_percent(value), bounded(value)] == ["0.0%", "0.0%", "0.00"]
    assert [formats.decimal(value, 3), formats.signed(value), formats.count(value)] == ["0.000", "0.000", "0"]
    assert [layer.text(0) for layer in layers] == ["0.00"] * 3


def test_a_change_has_its_sign_and_a_missing_one_a_dash() -> None:
    changes = (12.34, -40.0, -1204.6, 2e6, float("inf"), None)
    expected = ["+12.3%", "-40.0%", "-1,205%", "above 10⁶%", "not finite%", "–"]
    assert [formats.signed_percent(change) for change in changes] == expected
    assert [formats.signed(0.12), formats.signed(-1234.5, 1), formats.signed(None)] == ["+0.120", "-1,234.5", "–"]


def test_latex_sets_the_sign_of_a_number_as_a_minus() -> None:
    assert escape_latex("-0.1 (-0.2 to 0.0), awd-2, 1e-5, 2-3") == "$-$0.1 ($-$0.2 to 0.0), awd-2, 1e-5, 2-3"


def test_charts_have_the_sign_of_the_tables() -> None:
    with style():
        figure, axes = blank()
        axes.plot([0, 1], [-2, 2])
        drawn = inline(figure, "x", "t", "d")
    assert ">-1" in drawn and "\N{MINUS SIGN}" not in drawn


def test_no_other_module_writes_a_sign() -> None:
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.py")]
    writing = re.compile(r"\{[^{}\n]*:[^{}\n\"' ]*\+z?,?\.[^{}\n]*\}|'\+' if|\"\+\" if")
    wrong = [file.name for file in files if writing.search(file.read_text(encoding="utf-8"))]
    assert files and not wrong
