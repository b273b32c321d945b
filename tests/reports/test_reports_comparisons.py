"""A comparison of readers is consistent in sentences, tables, pictures, the terminal and the page."""

import io
import json
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from backstory.reports import render, render_comparison
from backstory.reports.sections import comparison_section
from backstory.reports.sections import comparison_section as comparisons
from backstory.reports.sections.comparison_plots import along, by_position, smoothed
from backstory.results import Result, result_from
from backstory.utils.errors import UserError

NAMESPACE = "{http://www.w3.org/2000/svg}"


def result(made: Any, **changes: Any) -> Result:
    return result_from(json.dumps(made.result("comparison", made.comparison(**changes))), "x")


def elements(svg: str, tag: str) -> list[str]:
    return ["".join(e.itertext()) for e in ET.fromstring(svg).iter(f"{NAMESPACE}{tag}")]


def test_a_sentence_says_how_well_each_reads_and_where_it_learns(made: Any) -> None:
    assert comparisons.compared(result(made)) == (
        "demo reads 3,000 words in 12 documents at perplexity 86.5 with learned, 88.2 with dynamic, 89.1 with static: "
        "learned over static gains +0.030 nats per word (95%: -0.010 to +0.050). The gain is 0.000 in the first 100 words of "
        "a document, and +0.030 after 100 to 200."
    )
    one = made.comparison()
    one["positions"] = one["positions"][:1]
    one["comparisons"][-1] |= {"low": None, "high": None}
    read = result_from(json.dumps(made.result("comparison", one)), "x")
    assert comparisons.compared(read).endswith("learned over static gains +0.030 nats per word.")


def test_tables_hold_every_figure(made: Any) -> None:
    read = result(made)
    assert comparisons.readers_table(read.figures).rows[1] == (
        "dynamic", "88.2 per word", "4.480", "3,000 words", "dynamic: rate 0.001 (tuned on valid)"
    )  # fmt: skip
    assert comparisons.pairs_table(read.figures).rows[0] == (
        "dynamic over static", "+0.010", "-0.010 to +0.050", "+1.0", "12 documents"
    )  # fmt: skip
    documents = comparisons.documents_table(read.figures)
    assert [c.heading for c in documents.columns] == ["Document", "From word", "Words", "learned", "dynamic", "static",
        "dynamic over static", "learned over dynamic", "learned over static"]  # fmt: skip
    assert documents.rows[2] == ("Article <2>", "1,000", "250", "4.460", "4.480", "4.490", "+0.010", "+0.020", "+0.030")
    places = comparisons.positions_table(read.figures)
    assert places.rows[1][:4] == ("100 to 200", "1,200", "12", "+0.010 (-0.010 to +0.050)")
    assert comparisons.positions_table(read.figures, intervals=False).rows[1][3] == "+0.010"


@pytest.mark.full
def test_characters_are_told_in_bits_of_each(made: Any) -> None:
    figures = made.comparison()
    figures["unit"] = "character"
    read = result_from(json.dumps(made.result("comparison", figures)), "x")
    assert comparisons.compared(read).startswith(
        "demo reads 3,000 characters in 12 documents at 6.434 bits per character with learned, 6.463 with dynamic, "
    )
    table = comparisons.readers_table(read.figures)
    assert [c.heading for c in table.columns][:3] == ["Reader", "Bits per character", "Nats per character"]
    assert table.rows[1][:3] == ("dynamic", "6.463", "4.480")
    table = comparisons.pairs_table(read.figures)
    assert table.columns[3].heading == "Bits per character gain" and table.rows[0][3] == "+0.014"
    page = render_comparison(read)
    assert "erplexity" not in page and "erplexity" in render_comparison(result(made))


@pytest.mark.full
def test_the_picture_marks_documents_and_passages(made: Any) -> None:
    plot = along(result(made).figures, "x")
    texts, hints = elements(plot.svg, "text"), elements(plot.svg, "title")
    assert {"dynamic over static", "learned over dynamic", "learned over static", "word of the text", "1", "2"} <= {
        *texts
    }
    assert [t for t in texts if t.startswith("Article")] == [
        f"Article <{i}>" for i in range(12)
    ]  # all of them have room
    assert len(hints) == 36 and hints[1] == "Article <1>: dynamic over static +0.010 nats per word over 250 words"
    assert "each block of 50 words" in plot.caption and "mean over 3 blocks" in plot.caption
    in_perplexity = along(result(made).figures, "x", "perplexity")
    assert "perplexity" in elements(in_perplexity.svg, "text") and in_perplexity.svg != plot.svg


@pytest.mark.full
def test_of_sixty_titles_those_are_written_that_have_room(made: Any) -> None:
    plot = along(result(made, documents=60).figures, "x")
    titles = [e for e in ET.fromstring(plot.svg).iter(f"{NAMESPACE}text") if "Article" in "".join(e.itertext())]
    places = sorted(float(e.get("x", "nan")) for e in titles)
    assert 20 < len(titles) < 60
    assert min(b - a for a, b in pairwise(places)) > 11  # points, at 45 degrees
    assert len(elements(plot.svg, "title")) == 180  # the others are told where the mouse is on them


def test_the_average_stays_within_a_document() -> None:
    documents = [SimpleNamespace(start=0, tokens=30), SimpleNamespace(start=30, tokens=40)]
    figures: Any = SimpleNamespace(smooth=3, documents=documents)
    lines = smoothed([1.0, 2.0, 6.0, -1.0, -3.0, -5.0, -7.0], list(range(0, 71, 10)), figures)
    assert lines == [([5, 15, 25], [1.5, 3.0, 4.0]), ([35, 45, 55, 65], [-2.0, -3.0, -5.0, -6.0])]
    assert smoothed([1.0], [0, 10], SimpleNamespace(smooth=0, documents=documents)) == []
    assert smoothed([1.0, 2.0], [0, 10, 20], SimpleNamespace(smooth=1, documents=documents)) == [([5, 15], [1.0, 2.0])]


def test_gain_by_place_has_a_point_for_each(made: Any) -> None:
    plot = by_position(result(made).figures, "x")
    assert plot and {"0–", "100–", "200–", "learned over static"} <= {*elements(plot.svg, "text")} | {
        t.splitlines()[0] for t in elements(plot.svg, "text")
    }
    assert "Bars: 95% intervals" in plot.caption
    figures = made.comparison()
    del figures["positions"][1:]
    assert by_position(result(made, positions=figures["positions"]).figures, "x") is None


def printed(read: Result, width: int, **settings: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **settings)
    comparison_section.SECTION.terminal(read, console)  # type: ignore[misc]
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_has_tables_columns_and_passages(made: Any, width: int) -> None:
    names = {"learned": "learned:memory=full,block=20", "dynamic": "dynamic", "static": "static"}
    figures = json.loads(re.sub(r'"learned"', f'"{names["learned"]}"', json.dumps(made.comparison())))
    text = printed(result_from(json.dumps(made.result("comparison", figures)), "x"), width, force_terminal=True)
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    assert max(map(len, lines)) <= width
    whole = "\n".join(lines)
    assert (
        "A  learned:memory=full,block=20" in whole and "A over C" in whole and "B over C: dynamic over static" in whole
    )
    assert " 3  Article <2>" in whole and "1. The largest gain" in whole and "Kim said" in whole
    assert ("+0.010 (-0.010 to +0.050)" in whole) == (width == 140)


def test_columns_rise_and_hang_in_proportion(made: Any) -> None:
    blocks = [4.0, 2.0, -1.0, 0.0, -4.0]
    documents = [SimpleNamespace(start=0), SimpleNamespace(start=60)]

    def columns(blocks: list[float], width: int) -> list[str]:
        pairs = [SimpleNamespace(blocks=blocks)]
        figures: Any = SimpleNamespace(comparisons=pairs, documents=documents, at=0, tokens=100)
        return [line.plain for line in comparison_section.gain_columns(figures, 0, width)]

    lines = columns(blocks, 80)
    assert [line[8:] for line in lines] == [
        "█    ", "█▄   ", "██   ", "  ▀ █", "    █", "    █", "|1 |2"]  # fmt: skip
    assert [line[:7].strip() for line in lines] == ["+4.00", "", "0", "", "", "", ""]
    wide = columns([1.0] * 999, 40)
    assert {len(line) for line in wide[:3]} == {40} and set(wide[0][8:]) == {"█"}
    nothing = columns([0.0, 0.0], 40)
    assert [line[8:].strip() for line in nothing][:3] == ["", "", ""]


def test_control_characters_do_not_reach_a_terminal(made: Any) -> None:
    hostile = made.comparison()
    hostile["documents"][0]["title"] = "a\x1b[2Jb"
    hostile["readers"][0]["name"] = hostile["comparisons"][1]["reader"] = hostile["comparisons"][2]["reader"] = (
        "x\x1b]0;y"
    )
    text = printed(result_from(json.dumps(made.result("comparison", hostile)), "x"), 100)
    assert "\x1b" not in text and r"a\x1b[2Jb" in text


@pytest.mark.full
def test_the_report_and_a_page_of_its_own_show_it(run: Any, made: Any) -> None:
    results = made.everything() | {"explain-reading": made.result("comparison", made.comparison())}
    page = render([run(results=results), run("b", results, name="b")])
    assert page.count("<h2>Readers against each other</h2>") == 1 and page.count('<figure class="passage">') == 4
    assert "<h3>b: stdlib (test), from word 500</h3>" in page and "Article &lt;2&gt;" in page and "<0>" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)) and set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    names = re.findall(r'name="([\w-]+-layer)"', page)
    assert len(set(names)) == 4
    alone = render_comparison(result(made))
    assert "<h1>stdlib (test), from word 500</h1>" in alone and alone.count("<script>") == 1
    assert "Every document (12)" in alone and alone.count("<svg") == 6  # each for two widths
    assert "script-src 'sha256-" in alone and "backstory comparison demo" in alone
    assert render([run("none")]).count("<script>") == 0


def change(figures: dict[str, Any], way: tuple[Any, ...], value: Any) -> dict[str, Any]:
    place: Any = figures
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = value
    return figures


@pytest.mark.parametrize(
    ("way", "value", "says"),
    [
        (("comparisons", 0, "blocks"), [0.1], r"figures.comparisons\[0\].blocks must be a list of 60"),
        (
            ("comparisons", 1, "perplexity_blocks"),
            [0.1] * 61,
            r"comparisons\[1\].perplexity_blocks must be a list of 60",
        ),
        (("documents", 2, "gains"), [0.1], r"figures.documents\[2\].gains must be a list of 3"),
        (("documents", 2, "nats"), [0.1], r"figures.documents\[2\].nats must be a list of 3"),
        (
            ("positions", 0, "gains"),
            [{"gain": 0.1, "low": None, "high": None}],
            r"positions\[0\].gains must be a list of 3",
        ),
        (("documents", 1, "start"), 0, r"figures.documents\[1\].start must be where the document before it ends"),
        (("documents", 11, "tokens"), 9, r"figures.documents must be all of the stretch"),
        (("block",), 0, r"figures.block must be a number that is whole, 1 or more"),
        (("readers",), [], r"figures.readers must be a list that is not empty"),
        (("passages", 0, "passage"), {}, r"passages\[0\].passage.words must be a list"),
        (("comparisons", 0, "low"), "x", r"figures.comparisons\[0\].low must be a number or null"),
    ],
)
def test_a_damaged_comparison_is_refused(made: Any, way: tuple[Any, ...], value: Any, says: str) -> None:
    content = made.result("comparison", change(made.comparison(), way, value))
    with pytest.raises(UserError, match=says):
        result_from(json.dumps(content), "x")
