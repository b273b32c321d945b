"""Every measured number in README, docs, CHANGELOG and the heads of recipes and grids has a source that agrees with it."""

from types import ModuleType
from typing import Any

import pytest
import scripts


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return scripts.load("docs/figures.py", "docs_figures")


@pytest.fixture(scope="module")
def entries(figures: ModuleType) -> dict[str, Any]:
    return figures.load(figures.ENTRIES.read_text(encoding="utf-8"))


@pytest.mark.full
def test_every_figure_has_a_source_that_agrees(figures: ModuleType, entries: dict[str, Any]) -> None:
    wrong = [f"{page}: {problem}" for page in figures.pages() for problem in figures.check(page, entries)]
    assert not wrong, "\n".join(["run `python docs/figures.py`, and see docs/figures.yaml:", *wrong])


def test_every_entry_is_of_a_page(figures: ModuleType, entries: dict[str, Any]) -> None:
    assert set(entries) - {figures.PICTURES} <= set(figures.pages())


def test_every_picture_says_what_draws_it(figures: ModuleType, entries: dict[str, Any]) -> None:
    assert figures.picture_problems(entries) == []
    fewer = {name: entry for name, entry in entries[figures.PICTURES].items() if name != "memory.png"}
    assert figures.picture_problems({figures.PICTURES: fewer}) == ["memory.png has no entry"]
    more = {**entries[figures.PICTURES], "reward.png": {"drawn_by": "nobody", "results": ["nothing"]}}
    assert len(figures.picture_problems({figures.PICTURES: more})) == 2


PAGE = "The pointer takes it to 76.13 in perplexity, which is an eighth less. Tuning reads the first 20,000 tokens."
SOURCES = {
    "takes it to {76.13} in": 'mean("span-buffer", "awd-lstm-pointer")',
    "which is {an eighth} less": '1 - mean("span-buffer", "awd-lstm-pointer") / mean("span-buffer", "awd-lstm-longer")',
    "first {20,000} tokens": {"setting": "tokens of validation that tuning reads"},
}


def test_a_page_whose_figures_agree_passes(figures: ModuleType) -> None:
    assert figures.problems(PAGE, SOURCES) == []


@pytest.mark.parametrize(
    ("page", "sources", "problem"),
    [
        (PAGE, {**SOURCES, "takes it to {76.13} in": 'mean("span-buffer", "awd-lstm-longer")'}, "says 76.13, but"),
        (PAGE, {k: v for k, v in SOURCES.items() if "76" not in k}, "a number without a source: ...The pointer takes it"),
        (PAGE.replace("76.13", "76.23"), SOURCES, "stands nowhere in the page"),
        (PAGE + " It takes it to 76.13 in five.", SOURCES, "stands in the page 2 times"),
        (PAGE, {**SOURCES, "which is {an eighth} less": 'mean("span-buffer", "nobody")'}, "no reading"),
        (PAGE, {**SOURCES, "which is {an eighth} less": 'mean("no-grid", "nobody")'}, "FileNotFoundError"),
        (PAGE, {**SOURCES, "which is {an eighth} less": ["1 / 8", "1 / 8"]}, "1 numbers in braces and 2 sources"),
        (PAGE, {**SOURCES, "pointer takes": "1"}, "no number in braces"),
        (PAGE, {**SOURCES, "takes it to {76.13} in": {"setting": "it is so"}}, "is a measurement"),
        (PAGE, {**SOURCES, "takes it to {76.13} in": {"definition": "it is so"}}, "is a measurement"),
        (PAGE, {**SOURCES, "takes it to {76.13} in": {"unkept": "a trial of it"}}, "has to say that the result was not kept"),
        (PAGE, {**SOURCES, "takes it to {76.13} in": {"published": "in some paper"}}, "which paper printed it"),
        (PAGE, {**SOURCES, "which is {an eighth} less": {"bound": "it is so"}}, "a bound follows"),
        (PAGE, {**SOURCES, "which is {an eighth} less": {"estimate": "it is so"}}, "'# hardware'"),
        (PAGE, {**SOURCES, "which is {an eighth} less": {"guess": "it is so"}}, "'guess' is none of"),
        (PAGE, {**SOURCES, "first {20,000} tokens": {"setting": "default"}}, "say in a few words why"),
        (PAGE, {**SOURCES, "first {20,000} tokens": {"setting": "of it", "bound": "of it"}}, "one kind and its reason"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(figures: ModuleType, page: str, sources: dict[str, Any], problem: str) -> None:
    assert any(problem in one for one in figures.problems(page, sources)), figures.problems(page, sources)


@pytest.mark.parametrize(
    "text",
    [
        "It comes to 1.87 here.", "It is 12% better.", "It gains (-0.02 to 0.1).", "Of 82,430 read.", "It took 33 s.",
        "It takes 18 minutes.", "It is three times as fast.", "It is five to ten times slower.", "It peaks at 6 GiB.",
        "A third more work.", "It is twice as fast.", "Nine of the eighteen hold.", "Above 1e-6 only.", "It is 25 ahead.",
        "It loses 27 there.", "It pays half a nat.", "It took fifteen core-hours.", "about 9 to 19% of it",
        "| x | value |\n|---|---|\n| lstm | 88.1 |", "- a list\n  with 3.5 in it", "Within 95% of the text.",
    ],
)  # fmt: skip
def test_a_number_that_looks_measured_is_seen(figures: ModuleType, text: str) -> None:
    assert figures.problems(text, {}) != []


@pytest.mark.parametrize(
    "text",
    [
        "`--rate 0.5`", "```bash\nbackstory train --rate 0.5\n```", "So:\n\n    x = 0.5 y\n\nand on.", "In section 4.2.",
        "(eqs. 3.1 to 3.4)", "With Python 3.11 and 2.13.0.", "Merity et al. 2018", "On 2026-11-22.", "[here](page-1.5.md)",
        "A second model.", "Two layers.", "a 95% interval", "| setting | default |\n|---|---|\n| rate | 0.5 |",
        "<!-- table: x -->\n| 1.5 |\n<!-- end -->",
    ],
)  # fmt: skip
def test_a_number_that_is_none_is_not(figures: ModuleType, text: str) -> None:
    assert figures.problems(text, {}) == []


def test_what_follows_code_and_tables_is_still_read(figures: ModuleType) -> None:
    page = "```bash\nx\n```\n\nTo 1.87.\n\n    x = y\n\nTo 2.87.\n\n<!-- table: x -->\n| 1 |\n<!-- end -->\n\nTo 3.87."
    assert [one.split("{")[1][:4] for one in figures.problems(page, {})] == ["1.87", "2.87", "3.87"]


@pytest.mark.parametrize(
    ("written", "right", "wrong"),
    [
        ("76.13", (76.125, 76.1349), (76.124, 76.136)), ("-0.002", (-0.0024,), (0.002, -0.0026)),
        ("12%", (0.1249,), (0.126, 12.0)), ("1,024", (1024, 1024.4), (1025, 1)),
        ("an eighth", (0.124, 0.12), (0.14, 0.115)), ("three quarters", (0.7586,), (0.66, 0.9)),
        ("nine", (9,), (8, 9.6)), ("twice", (2.1,), (2.4, 1)), ("1e-6", (1e-6,), (2e-6,)),
    ],
)  # fmt: skip
def test_numbers_are_rounded_as_they_are_written(
    figures: ModuleType, written: str, right: tuple[float, ...], wrong: tuple[float, ...]
) -> None:
    number = figures.Written.parse(written)
    assert number is not None
    assert all(number.is_rounded(value) for value in right) and not any(number.is_rounded(value) for value in wrong)


def test_an_entry_written_twice_is_refused(figures: ModuleType) -> None:
    with pytest.raises(figures.FigureError, match="written twice"):
        figures.load('README.md:\n  "x {1.5}": 1.5\n  "x {1.5}": 2\n')
