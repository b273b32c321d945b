"""Reproductions in tables, sentences and on the page."""

import math
from typing import Any

import pytest

from backstory.reports import render
from backstory.reports.phrases import summary
from backstory.reports.sections import reproduction_section as epochs
from backstory.reports.sections.reproduction_section import (
    GATES,
    HOW,
    JUDGED,
    RULE,
    claims_table,
    findings_table,
    gates_table,
    memory_table,
    recency_table,
    systems_table,
)
from backstory.reports.tables import compact
from backstory.reports.theme import rendered
from backstory.results import ReproductionFigures, read
from backstory.utils.errors import UserError


def row(name: str, **changes: Any) -> dict[str, Any]:
    return {"system": name, "note": "", "split": "test", "reader": "static", "published": 57.3, "source": "A 2018, table 1",
            "mean": 98.123, "deviation": 0.456, "seeds": [1, 2, 3], "planned_seeds": [1, 2, 3], "tokens": 82430,
            "audited": True, "parameters": 2653200} | changes  # fmt: skip


def claim(**changes: Any) -> dict[str, Any]:
    side = {"system": "mos", "split": "test", "reader": "static"}
    return {"sentence": "A mixture helps", "better": side, "than": side, "published_gain": 2.86, "gain": 1.5, "low": 0.25,
            "high": 2.75, "paired": True, "seeds": [3, 3], "verdict": "yes"} | changes  # fmt: skip


def measure(told: str, value: float | None, **changes: Any) -> dict[str, Any]:
    low, high = (None, None) if value is None else (value - 0.01, value + 0.01)
    return {"measure": "drop-content-5", "label": told, "unit": "nats", "value": value, "low": low, "high": high,
            "above": None, "below": None} | changes  # fmt: skip


def finding(*measures: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"paper": "context", "finding": "content-dropped", "sentence": "Content words matter", "system": "lstm",
            "published": "content +65%", "source": "A 2018, section 5, figure 3", "figures": {"a": 65.0}, "baseline": None,
            "seeds": [1, 2, 3], "planned_seeds": [1, 2, 3], "about": None, "measures": [*measures],
            "verdict": "yes"} | changes  # fmt: skip


def reproduction(**changes: Any) -> dict[str, Any]:
    context = {"experiment": "truncate", "split": "valid", "targets": 2000, "maximum_context": 1000,
               "effective_context": {"context": 150, "low": 100, "high": 200, "threshold_percent": 1.0}}  # fmt: skip
    run = {
        "run": "awd-lstm-seed1",
        "system": "awd-lstm",
        "seed": 1,
        "state": "done",
        "problem": None,
        "examinations": [context],
    }
    lost = {
        "run": "mos-seed2",
        "system": "mos",
        "seed": 2,
        "state": "failed",
        "problem": "no <memory>",
        "examinations": [],
    }
    return {"suite": "base", "scale": "small", "title": "AWD & MoS", "note": "Everything is small.", "papers": ["A 2018: T"],
            "metric": "perplexity", "unit": "word", "planned": 6, "finished": 5, "failed": 1, "core_hours": 1.234,
            "threads": 1, "systems": [row("awd-lstm"), row("mos", published=None, source=None, seeds=[1, 3], audited=False)],
            "claims": [claim(), claim(low=None, high=None, verdict="one seed: no claim")],
            "runs": [run, lost]} | changes  # fmt: skip


def made_result(**changes: Any) -> ReproductionFigures:
    return made_of(reproduction(**changes))


def cells(table: Any, heading: str) -> list[str]:
    place = [column.heading for column in table.columns].index(heading)
    return [line[place] for line in table.rows]


def test_systems_stand_beside_what_was_published() -> None:
    table = systems_table(made_result())
    assert cells(table, "Published perplexity") == ["57.30 (A 2018, table 1)", "–"]
    assert cells(table, "Ours, small scale") == ["98.12", "98.12"] and cells(table, "Deviation")[0] == "0.46"
    assert cells(table, "Seeds") == ["3", "2 of 3"]
    assert cells(table, "Audit") == ["audited", "AUDIT FAILED"]
    assert cells(table, "Effective context") == ["150 tokens (95%: 100 to 200)", "–"]
    assert "Note" not in [column.heading for column in table.columns]


def test_bits_have_four_decimals_and_their_unit() -> None:
    table = systems_table(
        made_result(metric="bits_per_token", unit="character", systems=[row("ntm", published=1.5648, mean=1.6)])
    )
    assert cells(table, "Published bits per character") == ["1.5648 (A 2018, table 1)"]
    assert cells(table, "Ours, small scale") == ["1.6000"]


def test_a_suite_without_published_values_names_its_metric() -> None:
    table = systems_table(made_result(systems=[row("a", published=None, source=None, mean=3.6)]))
    assert cells(table, "Perplexity") == ["3.60"] and "Ours, small scale" not in {c.heading for c in table.columns}
    bits = made_result(
        metric="bits_per_token", unit="character", systems=[row("a", published=None, source=None, mean=1.6)]
    )
    assert cells(systems_table(bits), "Bits per character") == ["1.6000"]


def test_claims_have_gains_intervals_and_a_verdict() -> None:
    table = claims_table(made_result())
    assert table.rows[0] == ("A mixture helps", "2.86", "1.50", "0.25 to 2.75", "3 and 3", "yes")
    assert table.rows[1][3:] == ("–", "3 and 3", "one seed: no claim")


PROTOCOL = {"corpus": "ptb", "epochs": 12, "finetune_epochs": 6, "optimizer": "sgd", "learning_rate": 30.0,
            "batch_size": 20, "segment": 35, "init_from": None}  # fmt: skip


def test_claims_say_what_they_were_tested_on_and_what_confounds_them() -> None:
    figures = reproduction()
    for row in figures["systems"]:
        begun = {"epochs": 1, "finetune_epochs": 0, "optimizer": "adam", "init_from": "awd-lstm"}
        row |= {"parameters": 2_653_200, "protocol": PROTOCOL | (begun if row["system"] == "mos" else {})}
    claim, other = figures["claims"]
    claim |= {"confounded": "other learning rates", "verdict": "confounded: no verdict"}
    sides = {"better": {"system": "mos"}, "than": {"system": "awd-lstm"}}
    claim |= sides
    other |= {side: {"system": "awd-lstm"} for side in sides}
    table = claims_table(made_of(figures))
    assert cells(table, "Confounded by") == ["other learning rates", "–"]
    alone = "2.7 M parameters, ptb, 12 epochs of SGD + 6 averaged, from scratch"
    begun = "2.7 M parameters, ptb, 1 epoch of Adam, from the trained awd-lstm"
    assert cells(table, "Tested on") == [f"{begun}; against {alone}", alone]
    assert cells(systems_table(made_of(figures)), "Trained")[0] == alone.split(", ", 1)[1]
    figures["systems"][1] |= {"parameters": 2_400_000, "protocol": PROTOCOL}
    assert cells(claims_table(made_of(figures)), "Tested on")[0] == alone.replace("2.7", "2.4 and 2.7")
    figures["systems"][1]["parameters"] = 62_350
    assert cells(claims_table(made_of(figures)), "Tested on")[0] == alone.replace("2.7", "62,000 and 2.7")
    figures["systems"][0]["parameters"] = 30_120
    assert cells(claims_table(made_of(figures)), "Tested on")[0] == alone.replace("2.7 M", "62,000 and 30,000")


def policy(**changes: Any) -> dict[str, Any]:
    return {"utilization": 0.125, "mean_lambda": 0.25, "p_perplexity": 90.0, "q_perplexity": 120.0, "oracle_perplexity": 80.0,
            "best_constant_perplexity": 88.0, "temperatures": {"0.1": 89.5, "1": 88.5}} | changes  # fmt: skip


def gated(*policies: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """A reproduction of one row with a run for each of these figures of a gate, read in ten rows, and with a cache."""
    read = [
        {"split": "test", "reader": "shuffled-buffer", "batch_size": 10},
        {"split": "test", "reader": "shuffled-buffer+cache", "batch_size": 1},
    ]
    runs = [
        {"run": f"snb-seed{seed}", "system": "snb", "seed": seed, "state": "done", "examinations": [],
         "readings": [{**r, "tokens": 9, "value": 99.0, "audited": False, "policy": found} for r in read]}
        for seed, found in enumerate(policies, 1)
    ]  # fmt: skip
    return reproduction(systems=[row("snb", **r) for r in read], runs=runs, **changes)


def recent(recency: dict[str, Any]) -> dict[str, Any]:
    figures = gated(None)
    figures["runs"][0]["readings"][1]["recency"] = recency
    return figures


def made_of(figures: dict[str, Any]) -> ReproductionFigures:
    return ReproductionFigures.read(figures, "x")


def test_gates_have_means_over_seeds_and_none_where_there_is_one_prediction() -> None:
    other = policy(
        utilization=0.375, mean_lambda=0.5, q_perplexity=130.0, temperatures={"0.1": 90.5, "1": 88.5, "10": 1.0}
    )
    table = gates_table(made_of(gated(policy(), other)))
    assert table.rows == (
        (
            "snb",
            "test, shuffled-buffer, batch of 10",
            "0.375",
            "25.0%",
            "90.00",
            "125.00",
            "80.00",
            "90.00",
            "88.50",
            "88.00",
            "2",
        ),
    )
    assert gates_table(made_of(gated(None))).rows == ()
    assert gates_table(made_result()).rows == (), "results of before there were gates can be read"
    assert systems_table(made_of(gated(policy()))).rows[0][1] == "test, shuffled-buffer, batch of 10"


def test_readings_before_and_after_another_split_are_kept_apart() -> None:
    figures = gated(policy())
    for record in (*figures["systems"], *figures["runs"][0]["readings"]):
        record.update(reader="dynamic", batch_size=1)
    for place in (figures["systems"][1], figures["runs"][0]["readings"][1]):
        place["after"] = "valid"
    figures["runs"][0]["readings"][1]["policy"] = policy(mean_lambda=0.75)
    assert [row[1:3] for row in gates_table(made_of(figures)).rows] == [
        ("test, dynamic", "0.250"),
        ("test, dynamic, after valid", "0.750"),
    ]


def test_the_page_has_gates(run: Any, made: Any) -> None:
    for figures, shown in ((gated(policy()), True), (reproduction(), False)):
        folder = run(f"r{shown}", {"": made.result("reproduction", figures, name="mine")}, config=None, metrics="")
        page = render([folder])
        assert (GATES.split(";")[0][:60] in page, "Best constant lambda" in page) == (shown, shown)


def curves(first: float, second: float | None) -> dict[str, Any]:
    """The memory of a reading, with a bin or two."""
    costs = {"tokens": 5, "nats": 2.0, "exact": 1.0}
    bins = [{"from": 1, "to": 4, "distance": 2.0, **costs, "excess": first}]
    bins += [] if second is None else [{"from": 1000, "to": None, "distance": 1200.0, **costs, "excess": second}]
    found = [{"kind": "queried value", "forgotten": 1.386, "bins": bins}]
    exact = {"exact_nats_per_token": 1.0, "exact_perplexity": 2.7, "excess_nats_per_token": 0.1}
    return {**exact, "kinds": [{"kind": "queried value", **costs, "excess": 0.5}], "curves": found}


def test_memories_have_means_over_the_seeds_that_reach_so_far() -> None:
    figures = gated(None, None)
    for run, found in zip(figures["runs"], (curves(0.25, None), curves(0.75, 1.5)), strict=True):
        run["readings"][0]["memory"] = found
    table = memory_table(made_of(figures))
    assert [column.heading for column in table.columns][3:5] == ["1–4 ago", "1,000 or more ago"]
    assert table.rows == (("snb", "test, shuffled-buffer, batch of 10", "queried value", "0.50", "1.50", "1.39", "2"),)
    assert memory_table(made_result()).rows == ()


def test_the_page_has_memories(run: Any, made: Any) -> None:
    figures = gated(None)
    figures["runs"][0]["readings"][0]["memory"] = curves(0.25, 1.5)
    folder = run("r", {"": made.result("reproduction", figures, name="mine")}, config=None, metrics="")
    assert "1,000 or more ago" in render([folder])


def test_recencies_have_means_over_the_seeds_that_have_them(made: Any) -> None:
    figures = gated(None, None, None)
    far = made.recency(1.0, None)
    found = ({**far, "bins": far["bins"][1:]}, made.recency(0.5), None)  # the last of before there was recency
    for run, recency in zip(figures["runs"], found, strict=True):
        run["readings"][0]["recency"] = recency
    table = recency_table(made_of(figures))
    assert [c.heading for c in table.columns][2:] == ["1–4 ago", "20–49 ago", "1,000 or more ago", "New", "Seeds"]
    assert table.rows == (("snb", "test, shuffled-buffer, batch of 10", "2.50", "3.62", "6.81", "9.00", "2"),)
    figures["runs"][1]["readings"][0]["recency"] = far
    assert recency_table(made_of(figures)).rows[0][2:] == ("2.00", "3.50", "6.75", "–", "2")
    assert recency_table(made_result()).rows == ()


def test_the_page_has_recencies(run: Any, made: Any) -> None:
    for recency in (made.recency(), None):
        figures = gated(None)
        figures["runs"][0]["readings"][0]["recency"] = recency
        result = made.result("reproduction", figures, name="mine")
        page = render([run(f"r{recency is None}", {"": result}, config=None, metrics="")])
        assert ("20–49 ago" in page) == (recency is not None)


def learned(*curves: list[list[float]]) -> dict[str, Any]:
    """A reproduction of two systems with a learning curve for each seed, the last one's of another system."""
    runs = [
        {"run": f"r{seed}", "system": "lstm", "seed": seed, "state": "done", "curve": curve, "examinations": []}
        for seed, curve in enumerate(curves, 1)
    ]
    runs[-1]["system"] = "dual"
    return reproduction(runs=runs)


def test_learning_curves_have_means_over_the_seeds_that_came_so_far() -> None:
    long = [[1, 200.0], [2, 150.0], [3, 140.0]]
    figures = learned(long, [[1, 300.0], [2, 170.0]], [[1, 180.0], [2, 140.0], [3, 138.0]])
    table = epochs.epochs_table(made_of(figures))
    assert [c.heading for c in table.columns] == ["System", "Epoch 1", "Epoch 2", "Epoch 3", "Seeds"]
    assert table.rows == (
        ("lstm", "250.00", "160.00", "140.00", "2"),
        ("dual", "180.00", "140.00", "138.00", "1"),
    )
    drawn = epochs.epoch_curves(made_of(figures), "mine")
    assert drawn is not None and "dual" in drawn.svg and "perplexity per word" in drawn.svg
    broken = learned([[1, 200.0], [2, 1e300], [3, 150.0]], long)
    assert [row[0] for row in epochs.epochs_table(made_of(broken)).rows] == ["dual"], "one epoch is no curve"
    assert epochs.epoch_curves(made_result(), "mine") is None, "results of before there were curves can be read"


def test_the_page_has_learning_curves(run: Any, made: Any) -> None:
    for curve, shown in (([[1, 9.0], [2, 8.0]], True), ([[1, 9.0]], False)):
        result = made.result("reproduction", learned(curve, curve), name="mine")
        page = render([run(f"r{shown}", {"": result}, config=None, metrics="")])
        assert ("Validation by epoch" in page) == shown


def test_the_page_has_all_of_it_and_says_what_failed(run: Any, made: Any) -> None:
    folder = run(
        "base-small", {"": made.result("reproduction", reproduction(), name="base-small")}, config=None, metrics=""
    )
    page = render([folder])
    figures = read(folder).of(ReproductionFigures)[0].figures
    shown = (compact(systems_table(figures).without(HOW))[0], compact(claims_table(figures))[0])
    tables = [str(rendered("table", table=table, look="")) for table in shown]
    for text in (*tables, RULE.split(".")[0], "AWD &amp; MoS, small scale",
                 "mos-seed2 failed: no &lt;memory&gt;", "Everything is small.", "A 2018: T"):  # fmt: skip
        assert text in page, text
    assert "Other results" not in page


def test_findings_stand_beside_what_was_published() -> None:
    bound = math.log1p(0.01)
    found = [
        finding(measure("content", 0.3), measure("content over random", 0.1, above=0.0)),
        finding(measure("far", 0.02, below=bound), measure("harmed", 0.36, unit="share", below=0.5), baseline="plain",
                verdict="no"),
        finding(measure("", 100, unit="tokens", low=75, high=None), measure("with 300 tokens", -0.001, below=bound),
                seeds=[2], verdict="runs are missing: no claim"),
        finding(measure("", None, unit="tokens"), verdict="not measured"),
        finding(seeds=[], verdict="not run"),
    ]  # fmt: skip
    table = findings_table(made_result(findings=found))
    assert cells(table, "Ours") == [
        "content +35.0%; content over random +10.5% (+9.4% to +11.6%; above 0%)",
        "far +2.0% (+1.0% to +3.0%; below 1%); harmed 36.0% (35.0% to 37.0%; below 50%)",
        "effective context 100 tokens (75 tokens to more than was tried); with 300 tokens -0.1% (-1.1% to +0.9%; below 1%)",
        "effective context more than was tried",
        "–",
    ]
    assert cells(table, "Published") == ["content +65% (A 2018, section 5, figure 3)"] * 5
    assert cells(table, "System")[:2] == ["lstm", "lstm beside plain"]
    assert cells(table, "Seeds") == ["3", "3", "1 of 3", "3", "0 of 3"]
    assert cells(table, "Does it hold here?") == ["yes", "no", "runs are missing: no claim", "not measured", "not run"]
    assert findings_table(made_result()).rows == (), "results of before there were findings can be read"


def test_the_page_has_findings(run: Any, made: Any) -> None:
    for found in ([finding(measure("content", 0.3))], []):
        result = made.result("reproduction", reproduction(findings=found), name="mine")
        page = render([run(f"r{len(found)}", {"": result}, config=None, metrics="")])
        assert [text in page for text in ("Content words matter", JUDGED)] == [bool(found)] * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"failed": 0, "claims": [], "findings": [finding(), finding(verdict="no"), finding(verdict="not run")]},
            "base-small: 5 of 6 runs finished, 1 of 2 findings that can be judged holds; 1.23 core-hours.",
        ),
        ({}, "base-small: 5 of 6 runs finished, 1 failed, 1 of 1 claim with several seeds holds; 1.23 core-hours."),
        ({"failed": 0, "claims": []}, "base-small: 5 of 6 runs finished; 1.23 core-hours."),
        (
            {"failed": 0, "claims": [claim(), claim(verdict="not decided")]},
            "base-small: 5 of 6 runs finished, 1 of 2 claims with several seeds holds; 1.23 core-hours.",
        ),
    ],
)
def test_the_summary_counts_runs_and_claims(changes: dict[str, Any], said: str, run: Any, made: Any) -> None:
    folder = run("r", {"": made.result("reproduction", reproduction(**changes), name="base-small")}, metrics="")
    assert summary(read(folder)) == said


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"systems": []}, "figures.systems must be a list that is not empty"),
        ({"systems": [row("a", mean="low")]}, r"figures.systems\[0\].mean must be a number or null"),
        ({"systems": [row("a", audited="yes")]}, r"figures.systems\[0\].audited must be true, false or null"),
        ({"claims": [claim(verdict=1)]}, r"figures.claims\[0\].verdict must be text"),
        ({"findings": {}}, "figures.findings must be a list"),
        ({"findings": [finding(verdict=None)]}, r"figures.findings\[0\].verdict must be text"),
        (
            {"findings": [finding(measure("a", 0.1, low="b"))]},
            r"findings\[0\].measures\[0\].low must be a number or null",
        ),
        ({"runs": [{"run": "a"}]}, r"figures.runs\[0\].system must be text"),
        ({"systems": [row("a", after=1)]}, r"figures.systems\[0\].after must be text or null"),
        ({"systems": [row("a", rows="ten")]}, r"figures.systems\[0\].batch_size must be a number"),
        (gated(policy(mean_lambda=None)), r"figures.runs\[0\].readings\[0\].policy.mean_lambda must be a number"),
        (gated(policy(temperatures={"1": 2.0})), r"readings\[0\].policy.temperatures.0.1 must be a number"),
        (gated(policy(temperatures=[])), r"readings\[0\].policy.temperatures must be an object"),
        (
            recent({"new": {"tokens": 1, "nats": 2.0}, "bins": 3}),
            r"figures.runs\[0\].readings\[1\].recency.bins must be a list",
        ),
        (learned([[1, 2.0], [2]], []), r"runs\[0\].curve\[1\] must be a list of 2"),
        (learned([[1, 2.0], [2, None]], []), r"runs\[0\].curve\[1\]\[1\] must be a number above 0"),
        ({"core_hours": True}, "figures.core_hours must be a number"),
    ],
)
def test_a_damaged_reproduction_is_named(changes: dict[str, Any], expected: str, run: Any, made: Any) -> None:
    folder = run("r", {"": made.result("reproduction", reproduction(**changes))}, metrics="")
    with pytest.raises(UserError, match=expected):
        read(folder)
