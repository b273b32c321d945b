"""Recency in a report: gains on the right reading at the right places, of the same tokens only, and as text."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from drawings import marks_of, texts
from printed import terminal_lines

from backstory.evaluation import evaluate
from backstory.reports import render
from backstory.reports.sections import evaluation_section as recency
from backstory.results import read, result_from
from backstory.utils.errors import UserError


def measured(
    made: Any, reader: str = "static", gain: float = 0.0, new: float | None = 9.0, name: str = "demo", **changes: Any
) -> dict[str, Any]:
    figures = made.evaluation(recency=made.recency(gain, new), reader=reader) | changes
    return made.result("evaluation", figures, name=name)


@pytest.fixture
def two(run: Any, made: Any) -> Any:
    """A run that was read by itself and with a cache, which gains 1, 0.5 and 0.25 nats and loses 0.5 on what is new."""
    return read(
        run(results={"evaluate-test": measured(made), "evaluate-test-cache": measured(made, "cache", 1.0, 9.5)})
    )


def group_of(*runs: Any) -> Any:
    (group,) = recency.same_tokens(runs)
    return group


@pytest.mark.full
def test_readings_of_other_tokens_stand_apart(two: Any, run: Any, made: Any) -> None:
    in_rows = made.recency() | {"new": {"tokens": 3000, "nats": 9.1}}
    rows = measured(made, batch_size=10, recency=in_rows)
    other = read(run("b", {"evaluate-test-batch10": rows}))
    assert [[name for name, *_ in group] for group in recency.same_tokens([two, other])] == [
        ["static", "cache"],
        ["static"],
    ]
    html = render([run("c", {"evaluate-test": measured(made), "evaluate-test-batch10": rows})])
    assert "<h3>stdlib, test</h3>" in html and "<h3>stdlib, test, batch of 10</h3>" in html
    assert "words, in each of 10 rows of the batch)" in html
    assert "<h2>Recency</h2>" not in render([run("d")])


def test_the_caption_says_what_is_gained_and_where(two: Any, run: Any, made: Any) -> None:
    plot = recency.recency_curves(group_of(two), "recency")
    assert plot and plot.caption.splitlines()[1:] == [
        "cache gains most at 1–4 tokens ago: +1.00, and -0.50 on new tokens."
    ]
    alone = read(run("b", {"evaluate-test": measured(made)}))
    plot = recency.recency_curves(group_of(alone), "recency")
    assert plot and plot.caption.splitlines()[1:] == [
        "static: 3.00 at 1–4 tokens ago, 7.00 at 1,000 or more, 9.00 on new tokens."
    ]
    many = [measured(made, f"cache:window={n}", 1.0, 9.5) for n in (1, 2, 3, 4)]
    several = read(run("c", {"evaluate-test": measured(made), **{f"evaluate-{i}": m for i, m in enumerate(many)}}))
    plot = recency.recency_curves(group_of(several), "recency")
    assert plot and "\n" not in plot.caption


def test_the_table_has_what_each_paid(two: Any) -> None:
    table = recency.recency_table(group_of(two))
    assert [c.heading for c in table.columns] == ["Tokens ago", "Over", "static", "cache"]
    assert table.rows == (
        ("1–4", "1,234", "3.000", "2.000"),
        ("20–49", "1,234", "4.000", "3.500"),
        ("1,000 or more", "1,234", "7.000", "6.750"),
        ("new", "2,000", "9.000", "9.500"),
    )


def test_gains_stand_where_they_belong(two: Any) -> None:
    plot = recency.recency_curves(group_of(two), "r")
    assert plot and "Gain over static in nats per token (above 0: better)" in plot.caption
    assert "(9.9% of 20,123 words)" in plot.caption
    assert {"cache", "gain over static (nats)", "new", "1,000"} <= set(texts(plot.svg))
    (points,) = marks_of(plot.svg)
    xs, ys = zip(*points, strict=True)
    # Logarithmic: the second of three distances lies as far between the others as its logarithm does.
    assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx(math.log(33 / 2.4) / math.log(1400 / 2.4), abs=1e-3)
    assert xs[3] > xs[2]
    nat = ys[1] - ys[0]  # from 1 nat to 0.5
    assert [(y - ys[0]) / nat for y in ys] == pytest.approx([0, 1, 1.5, 3], abs=1e-3)  # upwards is less y


def test_one_reading_shows_what_it_paid(run: Any, made: Any) -> None:
    plot = recency.recency_curves(group_of(read(run(results={"evaluate-test": measured(made)}))), "r")
    assert plot and plot.caption.startswith("Nats per token, by how many tokens ago")
    assert "nats" in texts(plot.svg) and "static" not in texts(plot.svg)
    ((first, second, third, new),) = marks_of(plot.svg)
    assert (second[1] - first[1]) / (third[1] - first[1]) == pytest.approx(0.25, abs=1e-3)  # 3, 4 and 7 nats
    assert (new[1] - first[1]) / (third[1] - first[1]) == pytest.approx(1.5, abs=1e-3)


def test_several_runs_gain_on_the_static_reading_of_the_first(two: Any, run: Any, made: Any) -> None:
    other = read(run("b", {"evaluate-test": measured(made, gain=-1.0, name="wide")}))
    group = group_of(two, other)
    assert [name for name, *_ in group] == ["demo, static", "demo, cache", "wide, static"]
    plot = recency.recency_curves(group, "r")
    assert plot and "Gain over demo, static in nats per token" in plot.caption
    cache, wide = marks_of(plot.svg)
    zero = wide[3][1]  # as good on what is new
    assert [y - zero for _, y in wide[:3]] == pytest.approx([zero - y for _, y in cache[:3]], abs=1e-3)
    assert wide[3][0] != cache[3][0], "points of what is new stand side by side"
    # No static reading: nothing to gain on.
    caches = {f"evaluate-test-cache{i}": measured(made, f"cache:window={i}", float(i)) for i in (1, 2)}
    without = group_of(read(run("c", caches)))
    plot = recency.recency_curves(without, "r")
    assert recency.static_baseline(without) is None and plot and len(marks_of(plot.svg)) == 2
    assert {"cache:window=1", "cache:window=2", "nats"} <= set(texts(plot.svg))


def test_without_new_or_repeated_tokens_and_with_a_breakdown(run: Any, made: Any) -> None:
    results = {"evaluate-test": measured(made, new=None), "evaluate-test-cache": measured(made, "cache", 1.0, None)}
    group = group_of(read(run(results=results)))
    plot = recency.recency_curves(group, "r")
    assert plot and [len(points) for points in marks_of(plot.svg)] == [3]
    assert recency.recency_table(group).rows[-1] == ("new", "0", "–", "–")
    broken = made.recency() | {"new": {"tokens": 2000, "nats": 1e300}}
    broken["bins"][1]["nats"] = 1e300
    plot = recency.recency_curves(group_of(read(run("b", {"evaluate-test": measured(made, recency=broken)}))), "r")
    assert plot and [len(points) for points in marks_of(plot.svg)] == [2]
    once = measured(made, recency={**made.recency(), "bins": []})
    group = group_of(read(run("c", {"evaluate-test": once})))
    assert recency.recency_curves(group, "r") is None and len(recency.recency_table(group).rows) == 1
    assert terminal_lines(recency.RECENCY, once) == ["  recency     nats: 9.00 for new words"]


def test_gains_times_tokens_are_what_the_reader_gains(tiny_run: Path, tmp_path: Path) -> None:
    readers = ("static", "cache:window=30,theta=1,weight=0.9")
    for rows in (1, 3):
        made = [
            evaluate(tiny_run, split="test", reader=r, batch_size=rows, out=tmp_path / f"{rows}-{r[:5]}")
            for r in readers
        ]
        results = [result_from(json.dumps(result.to_dict()), "x") for result in made]
        static, cache = (
            [float(row[place].replace(",", "")) * int(row[1].replace(",", "")) for row in table.rows]
            for table in [
                recency.recency_table([recency.Named(r.figures.reader, r, r.figures.recency) for r in results])
            ]
            for place in (2, 3)
        )
        figures = [result.figures for result in results]
        gain = (figures[0].nats_per_token - figures[1].nats_per_token) * figures[0].tokens
        assert sum(static) - sum(cache) == pytest.approx(gain, abs=1e-3 * figures[0].tokens)
        assert abs(gain) > 0.01 * figures[0].tokens


@pytest.mark.full
def test_the_page_has_a_section(two: Any, run: Any, made: Any) -> None:
    html = render([run("page", {"evaluate-test": measured(made), "evaluate-valid": measured(made, split="valid")})])
    assert "<h2>Recency</h2>" in html and "<h3>stdlib, valid</h3>" in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert "Nats by distance to the last occurrence: stdlib, test" in html


@pytest.mark.full
def test_hostile_names_are_text(run: Any, made: Any) -> None:
    name = "_<script>$\\frac$ \x00" + "x" * 200
    runs = [run(f"{i}", {"evaluate-test": measured(made, "<b>")}, name=n) for i, n in enumerate((name, "b"))]
    runs.append(run("static", {"evaluate-test": measured(made)}, name=name))
    html = render(runs)
    assert "<script>$" not in html and "<b>" not in html
    plot = recency.recency_curves(group_of(*map(read, runs)), "r")
    assert plot and sum(text.startswith("_<script>$\\") for text in texts(plot.svg)) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r.pop("new"), "figures.recency.new must be an object"),
        (lambda r: r["new"].update(nats="x"), "figures.recency.new.nats must be a number or null"),
        (lambda r: r.pop("bins"), "figures.recency.bins must be a list"),
        (lambda r: r["bins"][1].update({"from": None}), r"figures.recency.bins\[1\].from must be a number"),
        (lambda r: r["bins"][2].update(nats=None), r"figures.recency.bins\[2\].nats must be a number"),
    ],
)
def test_a_damaged_section_is_refused(change: Any, says: str, made: Any) -> None:
    result = measured(made)
    change(result["figures"]["recency"])
    with pytest.raises(UserError, match=says):
        result_from(json.dumps(result), "x")


def test_in_a_terminal(made: Any) -> None:
    assert terminal_lines(recency.RECENCY, measured(made)) == [
        "  recency     nats: 3.00 for words seen 1–4 ago, 7.00 for words seen 1,000 or more ago, 9.00 for new words"
    ]
