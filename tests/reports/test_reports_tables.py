"""Figures as rows: digits, units, escaping, and tables filled into Markdown."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from backstory.reports import Column, Table, figures_table, fill, to_markdown, to_text, trainings_table
from backstory.reports.document import Tabular
from backstory.reports.sections.context_section import contexts_table, lengths_table
from backstory.reports.sections.settings_section import MOST_ROWS, values_table
from backstory.reports.writers import html_piece
from backstory.results import AuditRecord, TruncationFigures, read
from backstory.utils import formats
from backstory.utils.errors import UserError, plural

SMALL = Table((Column("Run"), Column("Perplexity", numeric=True)), (("a", "98.1"), ("b", "1,204")))


def test_every_figure_with_unit_tokens_and_audit(run: Any) -> None:
    table = figures_table([read(run())])
    assert [c.heading for c in table.columns] == [
        "Run", "Perplexity", "Over", "Audit", "Read by", "Text", "Bits per token"
    ]  # fmt: skip
    assert table.rows == (
        ("demo", "98.1 per word", "20,123 words", "audited", "static", "stdlib, test", "6.616"),
        ("demo", "130.1 per word", "73,760 words", "not audited", "training, epoch 3", "stdlib, valid", "7.023"),
    )


def test_a_text_of_ones_own_is_named_alone(run: Any, made: Any) -> None:
    made_of = {"corpus": {"name": "mine.txt"}}
    table = figures_table(
        [read(run(results={"e": made.result("evaluation", made.evaluation(split="text"), **made_of)}))]
    )
    assert table.rows[0][5] == "mine.txt"


def test_bits_and_rows_have_columns_where_they_say_something(run: Any, made: Any) -> None:
    bits = made.evaluation(
        2.5, unit="character", tokens=1, batch_size=10, bits_per_character=1.3219, bits_per_byte=1.29
    )
    table = figures_table([read(run(results={"e": made.result("evaluation", bits)}))])
    row = dict(zip((c.heading for c in table.columns), table.rows[0], strict=True))
    assert row["Bits per character"] == "1.322" and row["Bits per byte"] == "1.290" and row["Batch"] == "10"
    assert row["Perplexity"] == "2.500 per character" and row["Over"] == "1 character"


def test_a_reading_that_goes_on_after_another_split_says_so(run: Any, made: Any) -> None:
    figures = made.evaluation(2.5, reader="dynamic", after="valid")
    table = figures_table([read(run(results={"e": made.result("evaluation", figures)}))])
    assert table.rows[0][4] == "dynamic, after valid"
    with pytest.raises(UserError, match=r"figures\.after must be text or null"):
        read(run("b", {"e": made.result("evaluation", figures | {"after": 3})}))


def test_perplexity_per_word_has_a_column_where_tokens_are_smaller(run: Any, made: Any) -> None:
    def column(unit: str) -> list[str]:
        figures = made.evaluation(2.5, unit=unit, words=9, nats_per_word=5.0, perplexity_per_word=148.4)
        table = figures_table([read(run(unit, {"e": made.result("evaluation", figures)}))])
        (row,) = (dict(zip((c.heading for c in table.columns), row, strict=True)) for row in table.rows)
        return [row[heading] for heading in row if heading == "Perplexity per word"]

    assert column("piece") == ["148.4"]
    assert column("word") == []


def test_failed_and_absent_audits(run: Any, made: Any) -> None:
    results = {
        "a": made.result("evaluation", made.evaluation(audit={"passed": False})),
        "b": made.result("evaluation", made.evaluation(audit=None)),
    }
    assert [row[3] for row in figures_table([read(run(results=results))]).rows] == ["AUDIT FAILED", "not audited"]


def test_training_and_context_tables(run: Any, made: Any) -> None:
    found = read(run())
    assert trainings_table([found]).rows == (
        ("demo", "2,653,200", "929,589 words", "3", "3", "perplexity 130.1 per word", "15,100", "1 min 5 s"),
    )
    examination = found.of(TruncationFigures)[0]
    assert contexts_table([("demo", examination)]).rows == (
        (
            "demo",
            "150 tokens (95%: 100 to 200)",
            "1%",
            "109.9 per word",
            "all before it",
            "2,000 words",
            "stdlib, valid",
        ),
    )
    rows = lengths_table(examination.figures).rows
    assert rows[0] == ("5 tokens", "165.7", "0.410", "0.390 to 0.430", "50.7%", "2,000 words")
    assert rows[-1][:2] == ("full", "109.9") and len(rows) == 6


def test_unknown_figures_as_keys_and_values() -> None:
    values = {"a": {"b": [1, 2.5, None], "c": True}, "list": [{"x": "<i>"}, {"x": float("nan")}], "none": {}}
    assert values_table(values).rows == (
        ("a.b", "1, 2.5, –"), ("a.c", "yes"), ("list[0].x", "<i>"), ("list[1].x", "not finite"), ("none", "none")
    )  # fmt: skip


def test_unknown_figures_are_cut_and_say_so() -> None:
    rows = values_table({str(i): i for i in range(1000)}).rows
    assert len(rows) == MOST_ROWS + 1 and rows[-1] == ("and more", "800 further figures in the result file")


def test_html_escapes_and_marks_numbers() -> None:
    html = html_piece(Tabular(Table((Column("<Run>"), Column("n", numeric=True)), (("<script>", 'a"&b'),)), "runs"))
    assert '<th scope="col">&lt;Run&gt;</th><th scope="col" class="n">n</th>' in html
    assert '<tr><th scope="row"><span>&lt;script&gt;</span></th><td class="n">a&#34;&amp;b</td></tr>' in html


def test_text_is_columns_side_by_side_with_numbers_to_the_right() -> None:
    table = Table(
        (Column("Run"), Column("Loss", numeric=True), Column("Note")), (("a", "10.5", "–"), ("long", "1.25", "x"))
    )
    assert to_text(table) == "Run   Loss  Note\na     10.5  –\nlong  1.25  x"


def test_columns_of_text_are_aligned_by_the_width_of_their_letters() -> None:
    """Chinese letters take two columns of a terminal, accents and vowel points none."""
    names = ("日本", "e\u0301te\u0301", "שָׁ", "a")
    table = Table((Column("Run"), Column("Loss", numeric=True)), tuple((name, "1") for name in names))
    assert to_text(table).splitlines()[1:] == [
        "日本     1", "e\u0301te\u0301      1", "שָׁ        1", "a        1",
    ]  # fmt: skip


def test_markdown_is_a_table_with_numbers_to_the_right() -> None:
    assert to_markdown(SMALL).splitlines() == [
        "| Run | Perplexity |", "|---|---:|", "| a | 98.1 |", "| b | 1,204 |"
    ]  # fmt: skip


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=20))
def test_markdown_shows_any_text_as_it_is(text: str) -> None:
    shown = " ".join(text.split())
    table = Table((Column("Run"), Column("x")), ((f"a{shown}b", "1"),))
    tokens = MarkdownIt("gfm-like", {"linkify": False}).disable("linkify").parse(to_markdown(table))
    cells = [t for t in tokens if t.type == "inline"][2:]
    pieces = [[c.content for c in cell.children or [] if c.type in ("text", "text_special")] for cell in cells]
    assert ["".join(piece) for piece in pieces] == [f"a{shown}b", "1"]


def test_fill_replaces_only_its_own_place_and_can_be_repeated() -> None:
    text = "# A\n<!-- table: other -->\nkeep\n<!-- end -->\n<!-- table: main -->\nold\n<!-- end -->\nafter\n"
    filled = fill(text, "main", SMALL)
    table = to_markdown(SMALL)
    assert filled == (
        f"# A\n<!-- table: other -->\nkeep\n<!-- end -->\n<!-- table: main -->\n{table}\n<!-- end -->\nafter\n"
    )
    assert fill(filled, "main", SMALL) == filled


def test_fill_survives_a_hostile_cell() -> None:
    text = "<!-- table: main -->\n<!-- end -->\nafter"
    hostile = Table((Column("Run"),), (("<!-- end --> \\1 \\g<0>",),))
    filled = fill(text, "main", hostile)
    assert fill(filled, "main", hostile) == filled and filled.endswith("\n<!-- end -->\nafter")


@pytest.mark.parametrize(
    "text", ["", "<!-- table: main -->", "<!-- table: mainly --><!-- end -->",
             "<!-- table: main -->\n<!-- table: other -->\n<!-- end -->"]
)  # fmt: skip
def test_fill_without_a_place(text: str) -> None:
    with pytest.raises(UserError, match="the text has no place for table 'main'; add the lines"):
        fill(text, "main", SMALL)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (formats.perplexity(2.3514), "2.351"),
        (formats.perplexity(98.14), "98.1"),
        (formats.perplexity(1204.4), "1,204"),
        (formats.perplexity(None), "–"),
        (formats.perplexity(float("inf")), "not finite"),
        (formats.count(929589), "929,589"),
        (formats.model_size(62_350), "62,000"),
        (formats.model_size(999_600), "1 M"),
        (formats.model_size(2_653_200), "2.7 M"),
        (formats.model_size(132_100_000, 3), "132 M"),
        (formats.percent(50.68), "50.7%"),
        (formats.percent(1204.4), "1,204%"),
        (formats.duration(4.25), "4.2 s"),
        (formats.duration(59.6), "60 s"),
        (formats.duration(65.1), "1 min 5 s"),
        (formats.duration(7384), "2 h 3 min"),
        (plural("word", 1), "word"),
        (plural("byte", 0), "bytes"),
    ],
)
def test_numbers_read_well(said: str, expected: str) -> None:
    assert said == expected


@pytest.mark.parametrize(
    ("audit", "told"),
    [
        ({"passed": True, "places": 8, "failures": []}, "passed at 8 places"),
        ({"passed": True, "places": 1, "failures": []}, "passed at 1 place"),
        ({"passed": True, "places": 8, "cuts": 272, "failures": []}, "passed at 8 places, 272 cuts"),
        ({"passed": False, "places": 8, "failures": ["it looks ahead", "so"]}, "FAILED: it looks ahead; so"),
    ],
)
def test_how_an_audit_ended(audit: dict[str, Any], told: str) -> None:
    assert AuditRecord.read(audit, "x").in_words() == told


def test_names_of_readers_wrap_at_their_plus_and_long_cells_are_marked() -> None:
    table = Table((Column("Reader"), Column("Settings")), (("dynamic+cache", "x" * 41), ("a + b", "x" * 40)))
    html = str(html_piece(Tabular(table, "readers")))
    assert "dynamic+<wbr>cache" in html and "a + b" in html
    assert f'<td class="long">{"x" * 41}</td>' in html and f"<td>{'x' * 40}</td>" in html
