"""Gate curves in a report: correct positions for every epoch, many runs side by side, and extreme values."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from drawings import marks_of

from backstory.reports import render
from backstory.reports.sections import gate_section as gates
from backstory.results import read

NAMESPACE = "{http://www.w3.org/2000/svg}"
SHARES = ((0.02, 0.30, 0.08), (0.10, 0.28, 0.16), (0.12, 0.25, 0.20))
"""Of each epoch: tokens that give q half or more, tokens for which it is better, and mean lambda."""


def policy(epoch: int, **changes: Any) -> dict[str, Any]:
    used, better, mean = SHARES[epoch - 1]
    return {"utilization": used, "win_share": better, "mean_lambda": mean, "p_perplexity": 135.0 + epoch,
            "q_perplexity": 400.0, "oracle_perplexity": 70.0} | changes  # fmt: skip


@pytest.fixture
def gated(run: Any, made: Any) -> Any:
    """Make a run whose log tells of a gate after every epoch."""

    def make(folder: str = "demo", **changes: Any) -> Path:
        lines = [{**e, "policy": policy(e["epoch"], **changes)} if e["event"] == "epoch" else e for e in made.log()]
        return run(folder, name=folder, metrics="".join(json.dumps(line) + "\n" for line in lines))

    return make


def told(*folders: Path) -> list[gates.Gated]:
    return [(run.name, gates.gate_epochs(run)) for run in map(read, folders)]


def texts(svg: str) -> list[str]:
    return ["".join(t.itertext()) for t in ET.fromstring(svg).iter(f"{NAMESPACE}text")]


def lines_of(svg: str) -> list[list[tuple[float, float]]]:
    """The points of each curve, in the order in which they were drawn."""
    curves = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none;[^"]*stroke-width: 1.8', svg)
    points = [re.findall(r"[ML] ?(-?[\d.]+) (-?[\d.]+)", curve) for curve in curves]
    drawn = [[(float(x), float(y)) for x, y in p] for p in points if len(p) == 3]
    return drawn[:-3]  # the last ones are the legend's


def test_shares_stand_at_their_places(gated: Any) -> None:
    plot = gates.shares(told(gated()))
    assert {"λ ≥ ½ (PoU)", "oracle", "mean λ", "epoch", "share of tokens"} <= set(texts(plot.svg))
    curves = lines_of(plot.svg)
    assert len(curves) == 3
    low, high = curves[0][0][1], curves[1][0][1]  # 0.02 and 0.30, upwards
    for curve, values in zip(curves, zip(*SHARES, strict=True), strict=True):
        assert [y for _, y in curve] == pytest.approx(
            [low + (v - 0.02) / 0.28 * (high - low) for v in values], abs=0.05
        )
        assert [x for x, _ in curve] == pytest.approx([x for x, _ in curves[0]])
    # After epoch 3, whose weights are kept.
    assert plot.caption.endswith("After the best epoch demo uses it at 12.0%, an oracle would at 25.0%.")


def test_perplexities_of_either_prediction_stand_beside_the_mixture(gated: Any) -> None:
    plot = gates.parts(told(gated()))
    assert {"mixture", "p alone", "q alone", "epoch", "perplexity"} <= set(texts(plot.svg))
    mixture, p, q = ([y for _, y in curve] for curve in lines_of(plot.svg))
    assert q[0] == q[1] == q[2] < min(mixture + p)  # upwards is less
    assert mixture[0] < p[0] and mixture[2] > p[2]  # 270.4 against 136, and 130.1 against 138
    assert "Triangles" not in plot.caption
    assert plot.caption.endswith("After the best epoch: demo 130.1, with p alone 138.0 and with q alone 400.0.")


@pytest.mark.parametrize("enormous", [5000.0, 1e304])
def test_a_prediction_that_is_far_worse_leaves_the_others_room(gated: Any, enormous: float) -> None:
    found = told(gated(q_perplexity=enormous))
    plot = gates.parts(found)
    assert "Triangles: beyond the axis." in plot.caption
    assert "10,000" not in texts(plot.svg) and "1,000" in texts(plot.svg)
    mixture, _, q = ([y for _, y in curve] for curve in lines_of(plot.svg))
    assert mixture[2] - mixture[0] > 0.25 * (mixture[2] - q[0])
    cell = gates.gates_table(found).rows[0][-1]
    assert cell == ("5,000" if enormous == 5000 else "above 10⁴") and cell in plot.caption


def test_a_value_beyond_the_axis_after_a_single_epoch_is_a_triangle_alone(gated: Any) -> None:
    ((name, epochs),) = told(gated(q_perplexity=1e5))
    plot = gates.parts([(name, epochs[:1])])
    assert "Triangles: beyond the axis." in plot.caption
    *_, q = marks_of(plot.svg)
    assert len(q) == 1


@pytest.mark.full
def test_every_run_has_a_panel_of_its_own(gated: Any) -> None:
    runs = [gated(f"run{i}") for i in range(5)]
    for plot in (gates.shares(told(*runs)), gates.parts(told(*runs))):
        assert [t for t in texts(plot.svg) if t.startswith("run")] == [f"run{i}" for i in range(5)]
        assert len(lines_of(plot.svg)) == 15
        assert texts(plot.svg).count("epoch") == 1 and "run0" not in plot.caption
    assert [row[0] for row in gates.gates_table(told(*runs)).rows] == [f"run{i}" for i in range(5)]
    assert gates.gates_table(told(*runs)).rows[0][1:] == ("3", "12.0%", "25.0%", "0.200", "130.1", "138.0", "400.0")


@pytest.mark.full
def test_a_report_shows_gates_where_there_are_some(gated: Any, run: Any) -> None:
    page = render([gated(), gated("wide"), run("plain", name="plain")])
    assert "<h2>Gate</h2>" in page and page.count("λ ≥ ½ (PoU)") == 2  # drawn for two widths
    assert "<h2>Gate</h2>" not in render([run("alone")])
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_the_curve_of_a_result_serves_where_there_is_no_log(run: Any, made: Any) -> None:
    results = made.everything()
    for epoch in results[""]["figures"]["curve"]:
        epoch["policy"] = policy(epoch["epoch"])
    (_, found), *_ = told(run(results=results, metrics=""))
    assert [e.utilization for e in found] == [0.02, 0.10, 0.12]


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [{"utilization": None}, {"win_share": "many"}, {"mean_lambda": 1.5}, {"p_perplexity": 0}, {"q_perplexity": -3.0}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_cannot_be_drawn_is_left_out(gated: Any, changes: dict[str, Any]) -> None:
    folder = gated(**changes)
    assert gates.gate_epochs(read(folder)) == [] and "<h2>Gate</h2>" not in render([folder])


def test_a_single_epoch_is_drawn(gated: Any) -> None:
    ((name, found),) = told(gated())
    one = [(name, found[:1])]
    for plot in (gates.shares(one), gates.parts(one)):
        assert "1" in texts(plot.svg) and "nan" not in plot.svg


def test_hostile_names_are_text(gated: Any) -> None:
    name = "<b>$\\frac$ 语言" + "x" * 50
    found = [(name, told(gated())[0][1])] * 2
    assert any(t.startswith("<b>$\\frac$ 语") for t in texts(gates.shares(found).svg))
