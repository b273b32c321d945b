"""The headline names the best reading and what it gains on its fair control; ties tie, and nothing unaudited or stale wins."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from backstory.reports.sections.gains_section import _groups as groups
from backstory.reports.sections.gains_section import gains_table, headline, seeds_table
from backstory.results import RunResults, read

NONE, BUFFER = {"kind": "none"}, {"kind": "span-buffer", "size": 512}


@pytest.fixture
def trained(run: Any, made: Any) -> Any:
    """A run with its settings, read by some readers at some perplexities."""

    def make(name: str, buffer: dict[str, Any], epochs: int = 2, seed: int = 1, **readings: float) -> RunResults:
        config = {"model": {"core": {"kind": "lstm"}, "buffer": buffer}, "training": {"epochs": epochs}, "seed": seed}
        changes = {"config": config, "seed": seed, "init_from": {"run": "base", "weights": "ab"}}
        results = {"": made.result("training", made.training(), **changes)}
        for reader, perplexity in readings.items():
            figures = made.evaluation(perplexity, reader=reader.replace("_", "+"))
            results[f"evaluate-{reader}"] = made.result("evaluation", figures, **changes)
        return read(run(name, results=results, name=name, config=None))

    return make


def test_a_memory_is_compared_with_the_run_trained_alike_without_it(trained: Any) -> None:
    runs = [trained("base", NONE, epochs=9, static=70.0), trained("longer", NONE, static=100.0),
            trained("buffer", BUFFER, static=60.0)]  # fmt: skip
    assert headline(runs) == (
        "buffer scores best: perplexity 60.0 per word over 20,123 words of stdlib (test), 40.0% below its control "
        "longer (100.0)."
    )
    (group,) = groups(runs)
    assert gains_table(group).rows[0] == ("buffer", "60.0", "longer", "no span-buffer", "100.0", "-40.0%")
    assert [row[2] for row in gains_table(group).rows[1:]] == ["–", "–"]  # what lacks a memory has nothing to gain


def test_a_reading_in_another_precision_is_no_control(trained: Any) -> None:
    run = trained("one", NONE, static=100.0, cache=80.0)
    reading = trained("another", NONE, static=99.0).results[-1]
    narrow = replace(reading, provenance=replace(reading.provenance, precision="float32"))
    (group,) = groups([replace(run, results=(*run.results, narrow))])
    assert [row[4] for row in gains_table(group).rows] == ["100.0", "–"]


@pytest.mark.parametrize("change", [{"epochs": 3}, {"seed": 2}])
def test_a_run_trained_otherwise_is_no_control(change: dict[str, int], trained: Any) -> None:
    said = headline([trained("longer", NONE, static=100.0, **change), trained("buffer", BUFFER, static=60.0)])
    assert said.endswith("40.0% below longer (100.0), the next best; none of these runs is its fair control.")


def test_a_reader_is_compared_with_the_same_weights_without_its_last_layer(trained: Any) -> None:
    run = trained("one", NONE, static=100.0, dynamic=80.0, dynamic_cache=76.0)
    assert headline([run]) == (
        "one with dynamic+cache scores best: perplexity 76.0 per word over 20,123 words of stdlib (test), 5.0% below its "
        "control one with dynamic (80.0)."
    )
    (group,) = groups([run])
    assert [row[2:] for row in gains_table(group).rows] == [
        ("one with dynamic", "no cache", "80.0", "-5.0%"), ("one alone", "no dynamic", "100.0", "-20.0%"), ("–",) * 4,
    ]  # fmt: skip


def test_a_memory_that_does_not_pay_is_said_to_lose(trained: Any) -> None:
    runs = [trained("longer", NONE, static=60.0), trained("buffer", BUFFER, static=66.0)]
    assert "longer scores best" in headline(runs)
    assert gains_table(groups(runs)[0]).rows[1][-1] == "+10.0%"


def test_readings_that_look_the_same_tie(trained: Any) -> None:
    runs = [
        trained("a", NONE, static=60.01),
        trained("b", BUFFER, static=60.02),
        trained("c", NONE, epochs=3, static=90.0),
    ]
    assert headline(runs).startswith("a and b tie at perplexity 60.0 per word over")
    assert headline(runs).endswith("(test), ahead of c (90.0).") and gains_table(groups(runs)[0]).rows[1][-1] == "tie"


def test_nothing_unaudited_failed_stale_or_of_another_text_wins(trained: Any) -> None:
    good, better = trained("good", NONE, static=100.0, cache=90.0), trained("better", BUFFER, static=50.0)
    (result,) = (r for r in better.results if r.kind == "evaluation")

    def changed(**changes: Any) -> RunResults:
        return replace(better, results=(better.results[0], replace(result, **changes)))

    audit = replace(result.figures.audit, passed=False)
    corpus = deepcopy(result.provenance.corpus)
    for one in (
        changed(figures=replace(result.figures, audit=None)),
        changed(figures=replace(result.figures, audit=audit)),
        changed(stale="of earlier weights"),
        changed(provenance=replace(result.provenance, corpus=replace(corpus, fingerprint="beef"))),
        changed(figures=replace(result.figures, batch_size=10)),
    ):
        assert headline([good, one]).startswith("good with cache scores best: perplexity 90.0")
    assert headline([good, better]).startswith("better scores best")
    assert headline([better]) == ""


def test_runs_that_differ_only_in_their_seed_are_averaged(trained: Any) -> None:
    runs = [trained(f"a{seed}", NONE, seed=seed, static=score) for seed, score in ((1, 100.0), (2, 110.0), (3, 90.0))]
    where = "per word over 20,123 words of stdlib (test), mean and standard deviation of 3 seeds"
    assert headline(runs) == f"a1, a2 and a3 differ only in their seed: perplexity 100.0 ± 10.0 {where}."
    (group,) = groups(runs)
    assert seeds_table(group).rows == (("a1, a2 and a3", "static", "100.0", "10.0", "3"),)
    # The best seed of the worse setting does not win.
    better = [trained(f"b{seed}", BUFFER, seed=seed, static=score) for seed, score in ((1, 95.0), (2, 96.0), (3, 97.0))]
    assert headline([*runs, *better]) == (
        f"b1, b2 and b3 score best on average: perplexity 96.0 ± 1.0 {where}, ahead of a1, a2 and a3 (100.0 ± 10.0). "
        "The means differ by 4.0 (95%: -22.2 to 30.2), so the seeds do not decide which is better."
    )


def test_the_difference_of_two_sets_of_seeds_has_an_interval(trained: Any) -> None:
    """Seed by seed the differences are 5, 4 and 6: a mean of 5 with a deviation of 1, and t(2) = 4.303 over the root of 3."""
    runs = [trained(f"a{seed}", NONE, seed=seed, static=score) for seed, score in ((1, 100.0), (2, 110.0), (3, 90.0))]
    runs += [trained(f"b{seed}", BUFFER, seed=seed, static=score) for seed, score in ((1, 95.0), (2, 106.0), (3, 84.0))]
    (group,) = groups(runs)
    table = seeds_table(group)
    assert [column.heading for column in table.columns][-2:] == ["Above the best", "95% interval"]
    assert [row[-2:] for row in table.rows] == [("–", "–"), ("5.0", "2.5 to 7.5")]
    assert headline(runs).endswith("ahead of a1, a2 and a3 (100.0 ± 10.0). The means differ by 5.0 (95%: 2.5 to 7.5).")
    # Other seeds are not paired, and vary far more than the means differ.
    others = [
        trained(f"c{seed}", BUFFER, seed=seed, static=score) for seed, score in ((4, 95.0), (5, 106.0), (6, 84.0))
    ]
    assert headline([*runs[:3], *others]).endswith("so the seeds do not decide which is better.")
    # One seed has no interval.
    assert "differ by" not in headline([*runs[:3], others[0]])


def test_a_seed_that_was_trained_twice_is_no_set(trained: Any) -> None:
    (group,) = groups([trained("a", NONE, static=100.0), trained("b", NONE, static=90.0)])
    assert not seeds_table(group).rows
