"""Figures show the data at the right positions, follow the page's theme, can share a page, and are reproducible."""

import math
import os
import re
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import matplotlib
import pytest

from backstory.reports import context_curves, learning_curves, svg
from backstory.reports.sections.figures_section import THIN_POINTS, training_points
from backstory.results import TruncationFigures, read
from backstory.results.training_record import StepsRecord

NAMESPACE = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> dict[str, float]:
    """The texts of a figure with their horizontal places."""
    return {"".join(t.itertext()): float(t.get("x", 0)) for t in ET.fromstring(svg).iter(f"{NAMESPACE}text")}


def examination(run: Any, made: Any, **changes: Any) -> Any:
    folder = run(results={"x": made.result("examination", made.truncation(**changes))})
    return read(folder).of(TruncationFigures)[0]


def test_learning_curves_name_runs_axes_and_findings(run: Any) -> None:
    plot = learning_curves([read(run()), read(run("b", name="wide"))])
    assert plot
    assert {"demo 130.1", "wide 130.1", "epoch", "perplexity per word"} <= texts(plot.svg).keys()
    assert plot.caption.startswith(
        "demo is best at epoch 3 of 3, at validation perplexity 130.1 per word over 73,760 words "
        "(weights averaged from epoch 3 on).\nwide is best"
    )


def test_a_run_that_goes_on_from_another_says_so(run: Any, made: Any) -> None:
    begun = made.result("training", made.training(), init_from={"run": "demo", "weights": "0" * 64})
    plot = learning_curves([read(run("b", {"": begun}, name="longer"))])
    assert plot and plot.caption.startswith(
        "longer, which began with the weights of demo, is best at epoch 3 of 3, at "
    )


def test_figures_are_accessible_follow_the_page_and_load_nothing(run: Any, made: Any) -> None:
    plots = [learning_curves([read(run("a"))]), context_curves([("demo", examination(run, made))])]
    for plot in plots:
        assert plot
        root = ET.fromstring(plot.svg)
        caption = plot.caption.replace("\n", " ")
        assert root.get("role") == "img" and root.get("aria-label") == f"{plot.title}. {caption}"
        assert root.get("viewBox") and root.get("width") is None
        assert "currentColor" in plot.svg and "#010203" not in plot.svg and "font-family:" not in plot.svg
        assert "<style" not in plot.svg and "<metadata" not in plot.svg
        assert re.sub(r'xmlns(:\w+)?="[^"]*"', "", plot.svg).count("http") == 0


def test_ids_do_not_meet_and_references_resolve(run: Any) -> None:
    found = read(run())
    first, second = learning_curves([found], "a"), learning_curves([found], "b")
    assert first and second
    both = first.svg + second.svg
    ids = re.findall(r'\bid="([^"]+)"', both)
    references = re.findall(r'(?:url\(|href=")#([^)"]+)', both)
    assert ids and len(ids) == len(set(ids))
    assert references and set(references) == set(ids)


def test_the_same_runs_give_the_same_figure_whatever_the_users_style(run: Any) -> None:
    found = read(run())
    before = learning_curves([found])
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path"}):
        assert learning_curves([found]) == before
        assert matplotlib.rcParams["font.size"] == 30


@pytest.mark.full
def test_pictures_have_no_date(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = read(run())
    undated = {ending: learning_curves([results]).drawn(ending) for ending in ("svg", "pdf")}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "x")
    plot = learning_curves([results])
    assert {ending: plot.drawn(ending) for ending in ("svg", "pdf")} == undated
    assert os.environ["SOURCE_DATE_EPOCH"] == "x"


def test_threads_draw_one_after_the_other_and_leave_the_users_style() -> None:
    before, begun = matplotlib.rcParams["svg.fonttype"], threading.Event()

    def draw() -> None:
        with svg.style():
            begun.set()

    with svg.style():
        other = threading.Thread(target=draw)
        other.start()
        assert not begun.wait(0.2)
    other.join()
    assert begun.is_set() and matplotlib.rcParams["svg.fonttype"] == before


def test_hostile_names_are_text(run: Any) -> None:
    name = "_<script>$\\frac$ \x00语言" + "x" * 200 + "$\\frac$"
    runs = [read(run("a", name=name)), read(run("b"))]
    learning = learning_curves(runs)
    context = context_curves([(r.name, r.of(TruncationFigures)[0]) for r in runs])
    assert learning and context
    assert any(t.startswith("_<script>") and t.endswith("frac$ 130.1") for t in texts(learning.svg))
    assert any(t.startswith("_<script>") and t.endswith("frac$ 150") for t in texts(context.svg))


def test_the_mark_stands_at_the_effective_context(run: Any, made: Any) -> None:
    plot = context_curves([("demo", examination(run, made))])
    assert plot
    places = texts(plot.svg)
    per_decade = places["1,000"] - places["100"]
    expected = places["100"] + per_decade * math.log10(1.5) + 4  # written four points to the right of its line
    assert places["150"] == pytest.approx(expected, abs=0.1)
    assert "1%" in places and "added loss (nats per token)" in places and "context (tokens)" in places
    assert plot.caption.startswith(
        "demo gains less than 1% from context beyond 150 tokens (95%: 100 to 200), "
        "and its perplexity is 50.7% higher with only 5.\nBands:"
    )


@pytest.mark.parametrize("most", [0.011, 0.013, 0.015, 0.017, 0.02, 0.04, 0.4])
def test_the_mark_of_a_short_context_and_the_dashed_line_keep_their_labels_apart(
    run: Any, made: Any, most: float
) -> None:
    effects = {5: 0.001, 20: most, 100: 0.0}
    conditions = [{"context": context, "nats": 4.7 + effect, "perplexity": math.exp(4.7 + effect), "effect": effect,
                   "low": effect, "high": effect, "effect_percent": 100 * math.expm1(effect)}
                  for context, effect in effects.items()]  # fmt: skip
    effective = {"context": 5, "low": 5, "high": 5, "threshold_percent": 1.0, "more_context_hurts": False}
    shown = examination(run, made, conditions=conditions, effective_context=effective, maximum_context=100)
    plot = context_curves([("demo", shown)])
    assert plot
    for width in (svg.WIDE, svg.NARROW, svg.PAPER):
        with svg.style():
            figure = plot.draw(width)
            figure.draw_without_rendering()
            labels = {text.get_text(): text.get_window_extent() for text in figure.axes[0].texts}
        assert labels.keys() == {"1%", "5"} and not labels["1%"].overlaps(labels["5"])


def test_a_short_context_that_costs_less_is_told_as_lower(run: Any, made: Any) -> None:
    found = examination(run, made)
    first, *rest = found.figures.conditions
    figures = replace(found.figures, conditions=(replace(first, effect_percent=-30.8), *rest))
    plot = context_curves([("demo", replace(found, figures=figures))])
    assert plot and "its perplexity is 30.8% lower with only 5." in plot.caption


def test_a_context_beyond_the_longest_has_no_mark(run: Any, made: Any) -> None:
    none = {"context": None, "low": None, "high": None, "threshold_percent": 1.0, "more_context_hurts": False}
    plot = context_curves([("demo", examination(run, made, effective_context=none))])
    assert plot and "150" not in texts(plot.svg)
    assert "demo still gains 1% or more beyond 1,000 tokens" in plot.caption


def test_conditions_that_cannot_be_drawn_are_left_out(run: Any, made: Any) -> None:
    found = examination(run, made)
    first, second, *rest = found.figures.conditions
    changed = (replace(first, context=0), replace(second, effect=math.inf, high=math.inf), *rest)
    plot = context_curves([("demo", replace(found, figures=replace(found.figures, conditions=changed)))])
    assert plot and "nan" not in plot.svg and "inf" not in plot.svg


def test_nothing_to_draw(run: Any, made: Any) -> None:
    assert context_curves([]) is None
    assert learning_curves([read(run(results={"e": made.result("evaluation", made.evaluation())}, metrics=""))]) is None


def test_a_single_epoch_and_infinite_perplexities_are_drawn(run: Any, made: Any) -> None:
    results = made.everything()
    results[""]["figures"]["curve"] = results[""]["figures"]["curve"][:1]
    assert learning_curves([read(run("a", results=results, metrics=""))])
    first, *rest = (found := read(run("b", metrics=""))).epochs
    infinite = replace(first, valid_perplexity=math.inf, train_nats=math.nan)
    plot = learning_curves([replace(found, epochs=(infinite, *rest))])
    assert (plot and "b 130.1" in texts(plot.svg)) or "demo 130.1" in texts(plot.svg)


def test_training_points_lie_within_their_epoch(run: Any) -> None:
    points = training_points(read(run()))
    assert [round(x, 2) for x, _ in points[:6]] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
    assert points[0][1] == pytest.approx(math.exp(6.01)) and points[-1] == (3, pytest.approx(math.exp(5.01)))


def test_long_logs_are_averaged(run: Any, made: Any) -> None:
    found = read(run())
    steps = tuple(StepsRecord(epoch=1, step=step, nats=5.0 + step % 2) for step in range(1, 10_001))
    many = type(found)(found.name, "", steps, (replace(found.epochs[0], step=10_000),), found.results)
    points = training_points(many)
    assert 100 < len(points) <= THIN_POINTS
    assert all(value == pytest.approx(math.exp(5.5), rel=0.02) for _, value in points)


def test_a_legend_has_as_many_columns_as_the_width_holds(run: Any) -> None:
    plot = learning_curves([read(run(f"r{i}", name=f"a run of a long name {i}")) for i in range(4)])
    assert plot
    for drawn, rows in ((plot.svg, 2), (plot.narrow(), 4)):
        root = ET.fromstring(drawn)
        lines = {t.get("y") for t in root.iter(f"{NAMESPACE}text") if "a run" in "".join(t.itertext())}
        assert len(lines) == rows


@pytest.mark.full
def test_many_runs_are_told_apart(run: Any) -> None:
    runs = [read(run(f"r{i}", name=f"run {i}")) for i in range(8)]
    plot = learning_curves(runs)
    assert plot and {f"run {i} 130.1" for i in range(8)} <= texts(plot.svg).keys()
    strokes = set(re.findall(r"fill: none; (?:stroke-dasharray: [^;]*; stroke-dashoffset: 0; )?"
                             r"stroke: [^;]*; stroke-width: 1.8", plot.svg))  # fmt: skip
    assert len(strokes) == 8
    context = context_curves([(r.name, r.of(TruncationFigures)[0]) for r in runs])
    assert context and {f"run {i} 150" for i in range(8)} <= texts(context.svg).keys()
    assert "run 6: 150 tokens (95%: 100 to 200).\nrun 7: 150 tokens (95%: 100 to 200).\n" in context.caption
    assert plot.caption.startswith("Validation perplexity of 8 runs")


def test_a_long_label_keeps_both_ends() -> None:
    assert svg.label("awd-lstm-pointer-seed1, cache", 22) == "awd-lstm-po…ed1, cache"
    assert svg.label("awd-lstm", 8) == "awd-lstm" and len(svg.label("x" * 99, 9)) == 9
