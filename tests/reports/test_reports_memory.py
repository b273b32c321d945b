"""Memory curves in a report: the right results together under names that differ, at the right places, and as text."""

import json
import re
from typing import Any

import pytest
from drawings import lines_of, texts
from printed import terminal_lines

from backstory.reports import render
from backstory.reports.sections import evaluation_section as memory
from backstory.reports.sections.evaluation_section import Named, grouped_by_text
from backstory.results import RunResults, read, result_from
from backstory.results.evaluation_record import MemoryRecord
from backstory.utils.errors import UserError


def measured(made: Any, reader: str = "static", level: float = 2.0, **changes: Any) -> dict[str, Any]:
    figures = made.evaluation(memory=made.memory(level), reader=reader)
    return made.result("evaluation", figures, **changes)


def groups(runs: list[RunResults]) -> list[list[Named[MemoryRecord]]]:
    return grouped_by_text(runs, lambda figures: figures.memory)


@pytest.fixture
def three(run: Any, made: Any) -> Any:
    """A run that was read with two readers, one of them twice."""
    results = {
        "evaluate-test": measured(made),
        "evaluate-test-cache": measured(made, "cache", 1.0),
        "evaluate-test-cache_theta_0.3": measured(made, "cache:theta=0.3", 0.5),
    }
    return read(run(results=results))


def test_names_tell_readings_apart(three: Any, run: Any, made: Any) -> None:
    alone = groups([three])
    assert [[name for name, *_ in group] for group in alone] == [["static", "cache", "cache:theta=0.3"]]
    other = read(run("b", {"evaluate-test": measured(made, name="wide")}, name="wide"))
    (both,) = groups([three, other])
    assert [name for name, *_ in both] == ["demo, static", "demo, cache", "demo, cache:theta=0.3", "wide, static"]
    twice = {"evaluate-test": measured(made), "evaluate-test-batch10": measured(made)}
    (same,) = groups([read(run("c", twice))])
    assert [name for name, *_ in same] == ["evaluate-test", "evaluate-test-batch10"]
    plain = [read(run(f"{name}-run", {"evaluate-test": measured(made)}, name=name)) for name in ("x", "y")]
    assert [name for name, *_ in groups(plain)[0]] == ["x", "y"]


@pytest.mark.full
def test_readings_of_other_texts_stand_apart(three: Any, run: Any, made: Any) -> None:
    corpus = {"name": "recall", "fingerprint": "other", "types": 428, "provenance": "drawn"}
    other = read(run("b", {"evaluate-test": measured(made, corpus=corpus)}))
    without = read(run("c"))
    assert [len(group) for group in groups([three, other, without])] == [3, 1]
    assert groups([without]) == [] and "<h2>Memory</h2>" not in render([run("d")])


def test_tables(three: Any) -> None:
    (group,) = groups([three])
    table = memory.excess_table(group, "old entity")
    assert [c.heading for c in table.columns] == ["Tokens ago", "Over", "static", "cache", "cache:theta=0.3"]
    assert table.rows == (
        ("1–4", "1,234", "0.500", "0.250", "0.125"),
        ("20–49", "1,234", "1.000", "0.500", "0.250"),
        ("1,000 or more", "1,234", "2.000", "1.000", "0.500"),
    )
    summary = memory.kinds_table(group)
    assert [c.heading for c in summary.columns][3:] == ["All above exact", "filler word", "old entity", "queried value"]
    assert summary.rows[1] == ("cache", "98.1", "13.1", "0.518", "0.500", "0.500", "0.500")
    costs = memory.costs_table(group[0].part)
    assert [row[:2] for row in costs.rows] == [
        ("filler word", "any"),
        *(
            (kind, when)
            for kind in ("old entity", "queried value")
            for when in ("any", "1–4", "20–49", "1,000 or more")
        ),
    ]
    assert costs.rows[4] == ("old entity", "1,000 or more", "1,234", "6.000", "4.000", "2.000")


def test_a_distance_that_only_some_texts_reach(run: Any, made: Any) -> None:
    results = {"evaluate-test": measured(made), "evaluate-test-cache": measured(made, "cache")}
    results["evaluate-test-cache"]["figures"]["memory"]["curves"] = [
        {**curve, "bins": curve["bins"][:1]} for curve in made.memory()["curves"][:1]
    ]
    (group,) = groups([read(run(results=results))])
    assert [row[3] for row in memory.excess_table(group, "old entity").rows] == ["0.500", "–", "–"]
    assert [c.heading for c in memory.excess_table(group, "queried value").columns][2:] == ["static"]


def test_the_curves_stand_where_they_belong(three: Any) -> None:
    (group,) = groups([three])
    plot = memory.memory_curves(group, "old entity", "m")
    assert plot and "2.81 nats" in plot.caption and "old entity" in plot.title
    assert {"static", "cache", "cache:theta=0.3", "exact", "forgotten", "nats above exact"} <= set(texts(plot.svg))
    lines = lines_of(plot.svg)
    assert len(lines) == 3
    for line in lines:
        xs, ys = zip(*line, strict=True)
        assert list(xs) == sorted(xs) and list(ys) == sorted(ys, reverse=True)  # upwards is less y
        # Logarithmic: the second of three distances lies as far between the others as its logarithm does.
        assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx(0.4117, abs=0.002)
    tops = [line[-1][1] for line in lines]
    zero = tops[0] + 2 * (tops[1] - tops[0])
    assert tops[2] - tops[0] == pytest.approx(0.75 * (zero - tops[0]), abs=0.1)  # 2, 1 and 0.5 nats
    assert memory.memory_curves(group, "nothing", "m") is None


def test_what_broke_down_is_not_drawn(run: Any, made: Any) -> None:
    broken = measured(made)
    broken["figures"]["memory"]["curves"][0]["bins"][1]["excess"] = 1e300
    (group,) = groups([read(run(results={"evaluate-test": broken}))])
    plot = memory.memory_curves(group, "old entity", "m")
    assert plot and len(lines_of(plot.svg)) == 1  # that of the legend


@pytest.mark.full
def test_the_page_has_a_section(three: Any, run: Any, made: Any) -> None:
    valid = measured(made)
    valid["figures"]["split"] = "valid"
    html = render([run("page", {"evaluate-test": measured(made), "evaluate-valid": valid})])
    assert "<h3>stdlib, test</h3>" in html and "<h3>stdlib, valid</h3>" in html
    assert "<h2>Memory</h2>" in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert "Nats above the exact cost, by kind of token" in html


@pytest.mark.full
def test_hostile_names_are_text(run: Any, made: Any) -> None:
    name = "_<script>$\\frac$ \x00" + "x" * 200
    runs = [run(f"{i}", {"evaluate-test": measured(made, "<b>")}, name=n) for i, n in enumerate((name, "b"))]
    html = render(runs)
    assert "<script>$" not in html and "<b>" not in html
    (group,) = groups([read(r) for r in runs])
    plot = memory.memory_curves(group, "old entity", "m")
    assert plot and any(text.startswith("_<script>") for text in texts(plot.svg))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.pop("exact_perplexity"), "figures.memory.exact_perplexity must be a number"),
        (lambda m: m.update(kinds=[]), "figures.memory.kinds must be a list that is not empty"),
        (lambda m: m["curves"][1].pop("forgotten"), r"figures.memory.curves\[1\].forgotten must be a number"),
        (lambda m: m["curves"][0]["bins"][0].update({"from": "x"}), r"curves\[0\].bins\[0\].from must be a number"),
    ],
)
def test_a_damaged_section_is_refused(change: Any, says: str, made: Any) -> None:
    result = measured(made)
    change(result["figures"]["memory"])
    with pytest.raises(UserError, match=says):
        result_from(json.dumps(result), "x")


@pytest.mark.full
def test_a_section_without_anything_that_comes_back(run: Any, made: Any) -> None:
    result = measured(made)
    result["figures"]["memory"]["curves"] = []
    html = render([run(results={"evaluate-test": result})])
    assert "<h2>Memory</h2>" in html and "Every cost: static, test" in html
    assert len(terminal_lines(memory.MEMORY, result)) == 1


def test_in_a_terminal(made: Any) -> None:
    lines = terminal_lines(memory.MEMORY, measured(made))
    assert "13.1" in lines[0] and "0.518" in lines[0]
    assert [line.split() for line in lines[2:]] == [
        ["tokens", "ago", "old", "entity", "queried", "value"],
        ["1–4", "0.50", "0.50"],
        ["20–49", "1.00", "1.00"],
        ["1,000", "or", "more", "2.00", "2.00"],
        ["all", "forgotten", "2.81", "2.77"],
    ]
