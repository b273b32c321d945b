"""Experiments on context in a report: the right numbers in the right figure, beside what was published of the same."""

import copy
import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from drawings import marks_of, texts

from backstory.context.examination_table import table
from backstory.papers import paper as papers
from backstory.papers.paper import published_examinations
from backstory.reports import context_curves, render, write
from backstory.reports.sections import context_section as examinations
from backstory.reports.sections import context_sentences as sentences
from backstory.reports.sections.context_sentences import Examinations, examined_models
from backstory.results import read, result_from
from backstory.results.examination_record import EXPERIMENTS
from backstory.results.published_values import Published
from backstory.utils.errors import UserError

BESIDE = published_examinations()
CORPUS = {"name": "ptb", "fingerprint": "f00d", "types": 10_000}


def condition(name: str, effect: float, targets: int = 300, **more: Any) -> dict[str, Any]:
    return {"name": name, "targets": targets, "nats": 4.5 + effect, "perplexity": math.exp(4.5 + effect),
            "effect": effect, "low": effect - 0.02, "high": effect + 0.02,
            "effect_percent": 100 * math.expm1(effect), **more}  # fmt: skip


def group(by: str, name: str, conditions: list[dict[str, Any]], targets: int = 100, **more: Any) -> dict[str, Any]:
    return {"by": by, "group": name, "targets": targets, "share": targets / 300,
            "baseline": {"context": None, "nats": 4.5, "perplexity": math.exp(4.5)}, "conditions": conditions,
            **more}  # fmt: skip


def examination(experiment: str, conditions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"experiment": experiment, "split": "valid", "unit": "word", "reader": "static", "seed": 0, "targets": 300,
            "maximum_context": 1000, "context": 300, "within_documents": False, "near": 50, "tagger": None,
            "unknown_tag_share": None, "baseline": {"context": 300, "nats": 4.5, "perplexity": math.exp(4.5)},
            "conditions": conditions, "groups": [], **more}  # fmt: skip


def permuted(method: str, spans: tuple[str, ...] = ("local", "global"), scale: float = 1.0) -> dict[str, Any]:
    effects = {1: 0.4, 20: 0.05, 50: 0.005, 200: 0.0}
    return examination(method, [
        condition(f"{method}-{span}-{b}", scale * e * (2 if span == "global" else 1), method=method, span=span,
                  boundary=b, context=300)
        for span in spans for b, e in effects.items()
    ])  # fmt: skip


def dropped() -> dict[str, Any]:
    effects = {("content", False): 0.3, ("content", True): 0.1, ("function", False): 0.05, ("function", True): 0.04}
    return examination("drop", [
        condition(f"drop-{words}-{b}{'-control' * control}", effect * share, method="drop", words=words,
                  control=control, boundary=b, context=300, dropped=90.0)
        for (words, control), effect in effects.items() for b, share in {5: 1.0, 20: 0.2, 100: 0.0}.items()
    ], tagger="gold (pos/penn/valid.txt)", unknown_tag_share=0.047)  # fmt: skip


def by_class(experiment: str, effects: dict[str, float], **more: Any) -> dict[str, Any]:
    """One condition, and its effect in each class."""
    name = more.pop("name", experiment)
    by = "cache" if experiment == "cache" else "class"
    made = [group(by, g, [condition(name, e, 100, method=name, **more)]) for g, e in effects.items()]
    return examination(experiment, [condition(name, 0.1, method=name, **more)], groups=made)


def truncated() -> dict[str, Any]:
    found = {"context": 100, "low": 75, "high": 150, "more_context_hurts": False}

    def curve(scale: float) -> list[dict[str, Any]]:
        return [condition(f"truncate-{n}", scale * e, method="truncate", context=n)
                for n, e in {5: 0.4, 50: 0.1, 1000: 0.0}.items()]  # fmt: skip

    splits = [("frequency", "frequent", 0.2), ("frequency", "infrequent", 1.0), ("tag", "NN", 1.0), ("tag", "DT", 0.1),
              ("tag", "other", 0.5)]  # fmt: skip
    groups = [group(by, name, curve(scale), effective_context=found) for by, name, scale in splits]
    return examination("truncate", curve(0.8), groups=groups, effective_context={**found, "threshold_percent": 1.0})


def all_of_them() -> dict[str, dict[str, Any]]:
    replaced = by_class("replace-target", {"near": 0.15, "far": 0.01, "none": 0.0}, replacement="unknown")
    similar = by_class("replace-target", {"near": 0.2, "far": 0.02, "none": 0.0}, replacement="similar")
    for mine, theirs in zip([replaced, *replaced["groups"]], [similar, *similar["groups"]], strict=True):
        mine["conditions"] += theirs["conditions"]
    cached = by_class(
        "cache", {"near": 0.2, "far": 0.3, "none": -0.1}, name="without-cache", hurt=0.4, outside_window=0.33
    )
    return {
        "truncate": truncated(),
        "shuffle": permuted("shuffle"),
        "reverse": permuted("reverse", scale=1.2),
        "replace": permuted("replace", ("global",), 2.0),
        "drop": dropped(),
        "drop-target": by_class("drop-target", {"near": 0.1, "far": 0.02, "none": 0.0}),
        "drop-distant": by_class("drop-distant", {"near": 0.03, "far": 0.12, "none": 0.05}, boundary=50),
        "replace-target": replaced,
        "cache": {**cached, "reader": "cache"},
    }


@pytest.fixture
def folder(run: Any, made: Any) -> Any:
    """A run folder with these examinations, of this corpus."""

    def make(found: dict[str, dict[str, Any]], name: str = "demo", corpus: str = "ptb", place: str = "") -> Path:
        results = {f"examine-{key}-valid": made.result("examination", figures, corpus={**CORPUS, "name": corpus})
                   for key, figures in found.items()}  # fmt: skip
        return run(place or name, results, name=name)

    return make


def heights(svg: str) -> list[float]:
    """Return the height of each bar in points (negative below zero), in drawing order."""
    bars = re.findall(r'd="M ([-\d.]+) ([-\d.]+) L [-\d.]+ [-\d.]+ L [-\d.]+ ([-\d.]+) [^"]*z[^"]*" clip', svg)
    return [float(base) - float(top) for _, base, top in bars]


@pytest.mark.full
def test_one_page_answers_every_question(folder: Any) -> None:
    page = render([folder(all_of_them())], BESIDE)
    titles = re.findall("<h3>(.*?)</h3>", page)
    assert "<h4>" not in page and titles[:8] == [
        "Frequent and infrequent words",
        "Parts of speech",
        "Order of words close by",
        "Order and identity of all words farther away",
        "Content and function words dropped",
        "Repeated words",
        "Repeated words, replaced",
        "Effect of the cache",
    ]
    places = [*(f"figure {n}" for n in ("1a", "1c", "1d", "2a", "3", "4a", "4b", "7")), "section 5.1"]
    assert all(f"{place} (ptb)" in page for place in places)
    assert "Other results" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.full
def test_the_page_says_what_an_added_loss_is_and_over_which_context(folder: Any) -> None:
    made = all_of_them()
    page = re.sub(r"\s+", " ", render([folder(made)], BESIDE))
    assert page.count("Added loss: how much higher the mean negative log-likelihood of a token is than with the") == 1
    assert "The unchanged context is the nearest 300 tokens where it is cut, and the nearest 300 tokens where" in page
    made["truncate"]["baseline"]["context"] = None
    made["drop"]["baseline"] = {**made["drop"]["baseline"], "context": 100}
    page = re.sub(r"\s+", " ", render([folder(made, place="other")], BESIDE))
    assert "The unchanged context is all tokens before the target where it is cut.</p>" in page


def test_groups_that_do_not_fit_side_by_side_follow_below(folder: Any) -> None:
    made = [condition("truncate-5", 0.1, 300, method="truncate", context=5)]
    effective = {"context": 5, "low": 5, "high": 5, "more_context_hurts": False}
    names = ["NN", "VB", "JJ", "RB", "DT", "IN", "PRP", "CC"]
    groups = [group("tag", name, made, effective_context=effective) for name in names]
    figures = examination("truncate", made, groups=groups, effective_context={**effective, "threshold_percent": 1.0})
    lines = table(read(folder({"truncate": figures})).results[0])
    below = lines[lines.index("  by tag, effects in nats:") + 1 :]
    assert [line.split() for line in below if "NN" in line or "IN" in line] == [names[:5], names[5:]]
    assert max(map(len, below)) <= 80 and sum("+0.1000" in line for line in below) == 2


def test_effects_follow_below_where_the_terminal_is_narrow(folder: Any) -> None:
    made = [condition(f"truncate-{n}", 0.1, 300, method="truncate", context=n) for n in (5, 10)]
    effective = {"context": 5, "low": 5, "high": 5, "more_context_hurts": False}
    groups = [group("tag", name, made, effective_context=effective) for name in ("NN", "VB", "JJ", "RB")]
    figures = examination("truncate", made, groups=groups, effective_context={**effective, "threshold_percent": 1.0})
    [result] = read(folder({"truncate": figures})).results
    lines = table(result, 56)
    first = next(number for number, line in enumerate(lines) if line.startswith("   context"))
    assert lines[first : first + 6] == [
        "   context  perplexity   percent",
        "         5       99.48    +10.5%",
        "        10       99.48    +10.5%",
        "   context  effect, nats  95% interval",
        "         5       +0.1000  +0.0800 to +0.1200",
        "        10       +0.1000  +0.0800 to +0.1200",
    ]
    below = lines[lines.index("  by tag, effects in nats:") :]
    assert max(map(len, below)) <= 56 and sum("+0.1000" in line for line in below) == 4
    assert "   context  perplexity  effect, nats   percent  95% interval" in table(result)


def test_truncations_of_the_first_results_have_names_and_targets(folder: Any) -> None:
    """Their conditions had only a length; the table and the page show them as any other."""
    made = [condition(f"truncate-{n}", 0.1, 300, method="truncate", context=n) for n in (5, 10)]
    effective = {"context": 5, "low": 5, "high": 5, "more_context_hurts": False}
    groups = [group("tag", "NN", [one | {"targets": 100} for one in made], effective_context=effective)]
    figures = examination("truncate", made, groups=groups, effective_context={**effective, "threshold_percent": 1.0})
    shown = read(folder({"truncate": figures}, place="now"))
    for one in [*figures["conditions"], *figures["groups"][0]["conditions"]]:
        del one["name"], one["method"], one["targets"]
    first = read(folder({"truncate": figures}, place="first"))
    assert first.results[0].figures == shown.results[0].figures
    assert table(first.results[0]) == table(shown.results[0])
    assert "         5       99.48" in "\n".join(table(first.results[0]))
    conditions, of_shown = (examinations.conditions_table(r.results[0].figures).rows for r in (first, shown))
    assert conditions == of_shown and (conditions[0][0], conditions[0][-1]) == ("truncate-5", "300 words")


def test_the_table_says_which_words_have_no_tag(folder: Any) -> None:
    drop = all_of_them()["drop"] | {"tagger": "gold (pos/penn/valid.txt)", "unknown_tag_share": 0.047}
    [result] = read(folder({"drop": drop})).results
    lines = [line for line in table(result) if line.startswith("  tags: gold (pos/penn/valid.txt); ")]
    assert [line.split("; ")[1] for line in lines] == [
        "4.7% of the words are <unk>, neither content nor function words"
    ]


def test_sentences_hold_both_numbers(folder: Any) -> None:
    (found,) = examined_models([read(folder(all_of_them()))])
    assert [*found.results] == [*EXPERIMENTS] and found.name == "demo"
    assert str(sentences.dropped(found, BESIDE)) == (
        "Dropped beyond 5 tokens: content words +35.0%, as many at random +10.5%; function words +5.1%, as many at "
        "random +4.1%; tags: gold (pos/penn/valid.txt), 4.7% of the tokens are <unk>; Khandelwal et al. 2018, figure 3 "
        "(ptb): content +65%, as many at random +17%, function +15%."
    )
    assert str(sentences.local_order(found, BESIDE)) == (
        "Perplexity when 20 tokens of the context are changed, by the number of tokens between them and the predicted token: "
        "shuffled +49.2% at 1 and less than 1% from 50 on, reversed +61.6% at 1 and less than 1% from 50 on; Khandelwal et "
        "al. 2018, figure 2a (ptb): order matters among the nearest 20 tokens."
    )
    far = str(sentences.global_order(found, None))
    assert "replaced +395.3% at 1 and less than 1% from 200 on." in far and "Khandelwal" not in far
    # Its figure 2b is of WikiText-2; the text is about both corpora.
    assert str(sentences.global_order(found, BESIDE)).endswith(
        "Khandelwal et al. 2018, section 5.1 (ptb): beyond 50 tokens other words matter, another order does not."
    )
    assert str(sentences.copied(found, BESIDE)) == (
        "Perplexity of words by where they occurred before: near +10.5% without the word itself and +3.0% without the distant "
        "context, far +2.0% without the word itself and +12.7% without the distant context, not before +5.1% without the "
        "distant context; Khandelwal et al. 2018, figure 4a (ptb): near +9% and +3.5%, far +2% and +12%."
    )
    assert "near +16.2% by <unk> and +22.1% by a similar word, far +1.0% by" in str(sentences.replaced(found, BESIDE))
    assert str(sentences.cached(found, BESIDE)) == (
        "Perplexity without the cache +10.5%, by where a word occurred before: near +22.1%, far +35.0%, not in its window "
        "-9.5%; 33.0% of the text is not in its window; it harms 40.0% of the words; Khandelwal et al. 2018, "
        "section 6.2, figure 7 (ptb): near +22%, far +28%; it hurts about 36% of the words, those that cannot "
        "be copied from context."
    )
    assert "nouns (33.3% of the targets) 100 tokens (95%: 75 to 150), determiners" in str(
        sentences.speech(found, BESIDE)
    )


def test_a_sentence_on_one_boundary_says_its_effect_once(folder: Any) -> None:
    one = examination("shuffle", permuted("shuffle")["conditions"][:1])
    (found,) = examined_models([read(folder({"shuffle": one}, corpus="texts"))])
    assert str(sentences.local_order(found, None)).endswith("the predicted token: shuffled +49.2% at 1.")
    assert f"{BESIDE.model}. The conditions differ: their text is another (here texts); " in sentences.comparability(
        found, BESIDE
    )
    small = examination("shuffle", permuted("shuffle", scale=0.001)["conditions"][:4])
    (found,) = examined_models([read(folder({"shuffle": small}, place="small"))])
    assert str(sentences.local_order(found, None)).endswith("the predicted token: shuffled less than 1% from 1 on.")


HURTS = {"context": None, "low": None, "high": None, "threshold_percent": 1.0, "more_context_hurts": True, "best_length": 5,
         "best_effect": math.log(0.775), "best_low": -0.52, "best_high": -0.04, "best_effect_percent": -22.5}  # fmt: skip
SAID = "best at 5 tokens (22.5% better than with 100), more context hurts"


def harmed(**found: Any) -> dict[str, Any]:
    """A model that is better with 5 tokens than with 100."""
    made = [condition("truncate-5", math.log(0.775), 300, method="truncate", context=5) | {"low": -0.52, "high": -0.04},
            condition("truncate-100", 0.0, 300, method="truncate", context=100)]  # fmt: skip
    groups = [group("frequency", "frequent", made, effective_context=found), group("frequency", "infrequent", made,
              effective_context={"context": 5, "low": 5, "high": 5, "more_context_hurts": False})]  # fmt: skip
    figures = examination("truncate", made, groups=groups, effective_context={**found, "threshold_percent": 1.0})
    figures["baseline"]["context"] = 100
    for one in groups:
        one["baseline"]["context"] = 100
    return figures | {"maximum_context": 100}


@pytest.mark.full
@pytest.mark.parametrize("found", [HURTS, {"context": 5, "low": 5, "high": 5}], ids=["now", "older"])
def test_more_context_that_hurts_is_said_and_is_no_effective_context(folder: Any, found: dict[str, Any]) -> None:
    """Of results of before there was such a thing, too: they said that it uses about 5 tokens."""
    runs = read(folder({"truncate": harmed(**found)}))
    page = re.sub(r"\s+", " ", render([folder({"truncate": harmed(**found)}, place="page")], BESIDE))
    assert f"demo: {SAID}" in page and "uses about" not in page and "gains less than 1% from context beyond" not in page
    [examination_] = examined_models([runs])
    [curve, frequent] = examinations.examination_plots(examination_.first)
    assert f"demo: {SAID}" in curve.caption
    both = context_curves([("a", examination_.first), ("b", examination_.first)])
    assert both and "a best at 5" in texts(both.svg)
    needs = (
        "Less than 1% is gained beyond: infrequent words (33.3% of the targets) 5 tokens (95%: 5 to 5); frequent words"
    )
    assert f"{needs} (33.3% of the targets) {SAID}" in frequent.caption
    lines = table(examination_.first)
    assert f"  effective context: none; {SAID}" in lines
    rows = examinations.contexts_table([("demo", examination_.first)]).rows
    assert rows[0][1] == SAID


def test_a_longest_context_that_seems_better_than_all_is_not_decided(folder: Any) -> None:
    """The gain is within chance, or there are too few targets; whether more context helps is not known either."""
    made = [condition("truncate-20", -0.03, 300, method="truncate", context=20) | {"low": -0.16, "high": 0.09}]
    found = {"context": None, "low": None, "high": None, "threshold_percent": 1.0, "more_context_hurts": False}
    figures = examination("truncate", made, effective_context=found) | {"maximum_context": 20}
    said = "effective context not decided: no better with 300 than with 20 tokens"
    runs = read(folder({"truncate": figures}))
    assert runs.results[0].figures.context_in_words() == said
    page = re.sub(r"\s+", " ", render([folder({"truncate": figures}, place="page")], BESIDE))
    assert f"demo: {said}" in page and "still gains" not in page and "more than 20 tokens" not in page


def test_a_group_of_few_targets_has_no_effective_context(folder: Any) -> None:
    """Resamples of a single target are all alike, so its interval would be a certain answer."""
    made = [condition("truncate-5", 0.0, 300, method="truncate", context=5)]
    effective = {"context": 5, "low": 5, "high": 5, "more_context_hurts": False}
    groups = [group("frequency", "frequent", made, 1, effective_context=effective),
              group("frequency", "infrequent", made, 299, effective_context=effective)]  # fmt: skip
    figures = examination("truncate", made, groups=groups, effective_context={**effective, "threshold_percent": 1.0})
    [examined] = examined_models([read(folder({"truncate": figures}))])
    assert str(sentences.frequency(examined, None)) == (
        "Less than 1% is gained beyond: infrequent words (99.7% of the targets) 5 tokens (95%: 5 to 5); "
        "frequent words (0.3% of the targets) effective context not known: too few targets (1)."
    )
    assert examined.truncation
    rows = examinations.groups_table(examined.truncation.figures).rows
    assert [row[1] for row in rows] == ["effective context not known: too few targets (1)", "5 tokens (95%: 5 to 5)"]


@pytest.mark.parametrize("ends", [(None, None), (0.3, 0.3)])  # as an earlier version wrote them
def test_a_group_of_one_target_has_no_interval(folder: Any, tmp_path: Path, ends: tuple[float | None, ...]) -> None:
    many, one = (
        condition("drop-target", 0.1),
        condition("drop-target", 0.3, 1) | dict(zip(("low", "high"), ends, strict=True)),
    )
    groups = [group("class", "near", [many]), group("class", "far", [one], 1)]
    made = folder({"drop-target": examination("drop-target", [many], groups=groups)})
    [examined] = examined_models([read(made)])
    rows = examinations.conditions_table(examined.first.figures).rows
    assert [row[4] for row in rows] == ["0.080 to 0.120", "0.080 to 0.120", "–"]
    write([made], tmp_path / "r.csv")
    lines = [line for line in (tmp_path / "r.csv").read_text().splitlines() if "class far: " in line]
    assert ",added_nats,0.3,,," in lines[0]
    [plot] = examinations.examination_plots(examined.first)
    assert plot.svg.count("stroke-width: 0.9") == 1  # the line on the bar of many targets


@pytest.mark.full
def test_an_effective_context_that_is_the_longest_that_was_read_is_a_bound(folder: Any) -> None:
    """Its perplexity is the baseline, so it costs nothing by definition."""
    made = [condition("truncate-50", 0.1, 300, method="truncate", context=50),
            condition("truncate-100", 0.0, 300, method="truncate", context=100)]  # fmt: skip
    effective = {"context": 100, "low": 50, "high": 100, "more_context_hurts": False}
    baseline = {"context": 100, "nats": 4.5, "perplexity": math.exp(4.5)}
    groups = [group("frequency", "frequent", made, effective_context=effective, baseline=baseline)]
    figures = examination("truncate", made, groups=groups, baseline=baseline, maximum_context=100,
                          effective_context={**effective, "threshold_percent": 1.0})  # fmt: skip
    runs = read(folder({"truncate": figures}))
    said = "at least 100 tokens, the longest context that was read (95%: 50 to 100 or more)"
    assert f"  effective context: {said}, within 1% of perplexity" in table(runs.results[0])
    page = re.sub(r"\s+", " ", render([folder({"truncate": figures}, place="page")], BESIDE))
    assert f"demo uses {said}" in page and "uses about" not in page and "gains less than 1% from context" not in page
    [examined] = examined_models([runs])
    assert str(sentences.frequency(examined, None)) == f"frequent words (33.3% of the targets) need {said}."
    [curve, _] = examinations.examination_plots(examined.first)
    assert "≥100" in texts(curve.svg)
    context = figures["effective_context"]
    context["low"] = 100
    again = read(folder({"truncate": figures}, place="certain")).results[0].figures
    assert again.context_in_words() == "at least 100 tokens, the longest context that was read (95%: 100 or more)"


def test_what_was_not_examined_by_class_says_so(folder: Any) -> None:
    made = [condition("drop-distant", 0.1, 300, method="drop-distant", boundary=50, context=100)]
    found = examined_models([read(folder({"drop-distant": examination("drop-distant", made)}))])[0]
    assert (
        str(sentences.copied(found, BESIDE))
        == "Perplexity of words by where they occurred before: examine again with --by class."
    )


def test_an_older_effective_context_that_is_another_now_has_no_interval(folder: Any) -> None:
    """100 tokens were within a percent, 150 were not, and from 200 on all are."""
    effects = {50: 0.1, 100: 0.005, 150: 0.02, 200: 0.0}
    made = [condition(f"truncate-{n}", e, 300, method="truncate", context=n) for n, e in effects.items()]
    for stored, said in ((100, "200 tokens"), (200, "200 tokens (95%: 50 to 200)")):
        older = {"context": stored, "low": 50, "high": 200, "threshold_percent": 1.0}
        found = read(folder({"truncate": examination("truncate", made, effective_context=older)}, place=f"of{stored}"))
        figures = found.results[0].figures
        assert figures.context_in_words() == said
        assert examinations.examination_plots(found.results[0])


def test_a_cache_that_was_examined_by_other_classes_is_examined_again(folder: Any) -> None:
    older = by_class("cache", {"near": 0.2, "far": 0.3, "none": -0.1}, name="without-cache", hurt=0.4)
    for one in older["groups"]:
        one["by"] = "class"
    (found,) = examined_models([read(folder({"cache": older}))])
    assert examinations.examination_plots(found.first) == []
    assert str(sentences.cached(found, None)) == (
        "Perplexity without the cache +10.5%; by where a word occurred before: examine again; it harms 40.0% of the words."
    )
    assert [row[1] for row in examinations.conditions_table(found.first.figures).rows] == [
        "all",
        "class: near",
        "class: far",
        "class: none",
    ]


@pytest.mark.full
def test_what_does_not_compare_is_said(folder: Any) -> None:
    (found,) = examined_models([read(folder(all_of_them()))])
    assert sentences.comparability(found, BESIDE) == (
        "Published figures are of an AWD-LSTM, the mean of three seeds, on every token of the validation text with enough "
        "words before it. The conditions differ: its perplexity is 59.07 (ptb) and this model’s 90.0; "
        "here 300 words are scored, by one model. "
        "Compare directions, and sizes only roughly."
    )
    other = {"drop": {**dropped(), "split": "test", "unit": "piece", "reader": "cache:window=9"}}
    (found,) = examined_models([read(folder(other, "other", "stdlib"))])
    said = sentences.comparability(found, BESIDE)
    for part in (
        "their text is another (here stdlib)",
        "it reads words, and this model pieces",
        "test split",
        "the reader here is cache:window=9",
    ):
        assert part in said
    own = folder({"drop": {**dropped(), "split": "text"}}, "own", "mine.txt")
    (text,) = examined_models([read(own)])
    assert " split" not in sentences.comparability(text, BESIDE)
    page = render([own], BESIDE)
    assert ", mine.txt" in page and ", text" not in page
    assert "figure 3 (ptb, another text): content +65%" in str(sentences.dropped(found, BESIDE))
    (plot,) = examinations.examination_plots(found.first, BESIDE)
    assert "Diamonds" not in plot.caption, "figures of another text are not drawn beside these"


def test_a_text_in_lower_case_is_another(folder: Any) -> None:
    (found,) = examined_models([read(folder(all_of_them()))])

    def of_config(lowercase: bool) -> Examinations:
        origin = replace(found.first.provenance, config={"text": {"lowercase": lowercase}})
        first, *rest = found.results.items()
        return Examinations(found.name, {first[0]: replace(first[1], provenance=origin), **dict(rest)})

    lower = of_config(True)
    assert lower.corpus == "ptb in lower case"
    assert "their text is another (here ptb in lower case)" in sentences.comparability(lower, BESIDE)
    assert of_config(False).corpus == "ptb"


def test_bars_are_as_high_as_effects(folder: Any) -> None:
    (found,) = examined_models([read(folder({"drop": dropped()}))])
    (plot,) = examinations.examination_plots(found.first, BESIDE)
    wanted = [c.effect for c in found.first.figures.conditions]
    bars = heights(plot.svg)
    assert [b / bars[0] for b in bars] == pytest.approx([w / wanted[0] for w in wanted], abs=0.01)
    assert {"content words", "function words", "at random, for content", "5", "20", "100"} <= set(texts(plot.svg))
    diamonds = next(m for m in marks_of(plot.svg) if len(m) == 3)
    up = [-(y - diamonds[2][1]) for _, y in diamonds]  # from function words, +15%
    assert up[1] / up[0] == pytest.approx(
        (math.log(1.17) - math.log(1.15)) / (math.log(1.65) - math.log(1.15)), abs=0.02
    )


def test_classes_stand_in_their_order_with_their_sizes(folder: Any) -> None:
    found = by_class("cache", {"near": 0.2, "none": -0.1}, name="without-cache", hurt=0.4)
    (alone,) = examined_models([read(folder({"cache": found}))])
    (plot,) = examinations.examination_plots(alone.first)
    assert [t for t in texts(plot.svg) if t in ("near", "far", "not in its window", "100", "0")] == [
        *("near", "100", "far", "0", "not in its window", "100")
    ]
    near, none = heights(plot.svg)
    assert none / near == pytest.approx(-0.5, abs=0.02)


def test_curves_are_where_they_belong(folder: Any) -> None:
    (found,) = examined_models([read(folder({"shuffle": permuted("shuffle")}))])
    near, far = examinations.examination_plots(found.first)
    for plot, name in (
        (near, "tokens between the target and what is changed"),
        (far, "nearest tokens left as they are"),
    ):
        assert name in texts(plot.svg) and "added loss (nats per token)" in texts(plot.svg)
        (points,) = marks_of(plot.svg)
        first, second, _, last = points[-5:-1]  # before them the band, after them the legend
        assert (second[1] - last[1]) / (first[1] - last[1]) == pytest.approx(0.125, abs=1e-3)
        assert (second[0] - first[0]) / (last[0] - first[0]) == pytest.approx(math.log(20) / math.log(200), abs=1e-3)


def test_several_models_have_bands_of_their_deviation(folder: Any, made: Any) -> None:
    figures = truncated()
    for one in [figures, *figures["groups"]]:
        for c in one["conditions"]:
            c |= {"deviation": 0.05, "effects": [c["effect"]] * 3}
    figures["models"] = [{"name": f"m{i}", "seed": i, "nats": 4.5} for i in range(3)]
    (found,) = examined_models([read(folder({"truncate": figures}))])
    assert found.first.figures.conditions[0].spread == (pytest.approx(0.27), pytest.approx(0.37))
    plots = examinations.examination_plots(found.first)
    assert len(plots) == 3 and all("a standard deviation either way over 3 models" in p.caption for p in plots)
    assert "by 3 models" in sentences.comparability(found, BESIDE)


@pytest.mark.full
def test_perplexities_of_several_models_compare_on_the_same_targets_only(folder: Any) -> None:
    a, b = folder({"truncate": truncated()}, "a"), folder({"truncate": truncated()}, "b")
    page = render([a, b], BESIDE)
    apart = "the highest perplexity is 1.00 times the lowest with 5 tokens, and 1.00 times with all context"
    assert f"{apart}; Khandelwal et al. 2018, figure 1b" in page
    assert "perplexity per word" in page
    other = folder({"truncate": {**truncated(), "targets": 200}}, "c")
    assert "figure 1b" not in render([a, other], BESIDE)


@pytest.mark.full
def test_what_was_examined_twice_stands_twice(folder: Any) -> None:
    found = {"drop": dropped(), "again": dropped(), "inside": {**dropped(), "within_documents": True}}
    names = [e.name for e in examined_models([read(folder(found))])]
    assert names == ["demo", "demo (examine-drop-valid)", "demo, within documents"]
    page = render([folder(found, "x")], BESIDE)
    levels = [int(level) for level in re.findall(r"<h([1-6])>", page)]
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.count("<h3>Content and function words dropped</h3>") == 1  # one figure, a panel for each
    assert all(f">{name}</text>" in page for name in ("x", "x (examine-drop-valid)", "x, within documents"))
    assert page.count("Lines on bars: ") == 1 + 2  # the caption, and its two drawings for screen readers


@pytest.mark.full
def test_examinations_of_one_model_in_folders_of_their_own_are_put_together(run: Any, made: Any) -> None:
    def place(name: str, figures: dict[str, Any], weights: str | None) -> Path:
        result = made.result("examination", figures, corpus=CORPUS)
        result["provenance"]["weights"] = weights
        return run(name, {"": result}, name="hf:small")

    found = all_of_them()
    parts = {name: found[name] for name in ("drop-target", "drop-distant", "replace-target")}
    page = render([place(name, figures, "abc") for name, figures in parts.items()], BESIDE)
    assert "<h1>hf:small</h1>" in page and page.count(">Repeated words</h3>") == 1
    assert "Repeated words, replaced" in page
    for other in ("def", None):
        apart = [place(f"{name}-{other}", figures, f"{other}{i}" if other else None) for i, (name, figures) in
                 enumerate(parts.items())]  # fmt: skip
        assert "<h1>3 runs compared</h1>" in render(apart, BESIDE)


@pytest.mark.full
def test_words_of_pieces_are_called_words_and_what_is_cut_is_said(folder: Any) -> None:
    more = {"pieces_per_word": 1.27, "window": 512, "cut_contexts": 3}
    found = {name: {**figures, **more} for name, figures in all_of_them().items()}
    found["truncate"]["baseline"] = {**found["truncate"]["baseline"], "context": 1000}
    page = render([folder(found)], BESIDE)
    said = "Words have 1.27 pieces on average; the model reads at most 512 pieces; contexts of 3 targets were longer"
    assert page.count(f"{said}, and cut.") == 1
    assert "context (words)" in page and "nats per word" in page and "100 words (95%: 75 to 150)" in page
    assert "context (tokens)" not in page and "nats per token" not in page and "words left as they are" in page
    assert "Whole context (words)</th>" in page and "<td>1,000</td>" in page.replace(' class="n"', "")
    assert ">full<" not in page
    without = render([folder(all_of_them(), "other")], BESIDE)
    assert "context (tokens)" in without and "pieces" not in without


def test_tables_hold_every_condition(folder: Any) -> None:
    (found,) = examined_models([read(folder(all_of_them()))])
    table = examinations.conditions_table(found.results["drop-target"].figures)
    assert [row[:2] for row in table.rows] == [
        ("drop-target", "all"),
        *(("drop-target", f"class: {name}") for name in ("near", "far", "none")),
    ]
    assert table.rows[1][3:] == ("0.100", "0.080 to 0.120", "10.5%", "100 words")
    groups = examinations.groups_table(found.results["truncate"].figures)
    assert groups.rows[0] == ("frequency: frequent", "100 tokens (95%: 75 to 150)", "90.0", "100", "33.3%")


def test_sentences_for_a_terminal(folder: Any) -> None:
    (found,) = examined_models([read(folder(all_of_them()))])
    for name, result in found.results.items():
        lines = examinations.examination_sentences(result, BESIDE)
        assert lines and "Khandelwal et al. 2018" in lines[0] and lines[-1].startswith("Published figures are of"), name


def test_unknown_experiments_and_damaged_ones(folder: Any, made: Any) -> None:
    page = render([folder({"x": examination("telepathy", [])})], BESIDE)
    assert "Other results" in page and "telepathy" in page
    for spoil in (lambda f: f["conditions"][0].pop("boundary"), lambda f: f.update(groups=[{"by": "class"}]),
                  lambda f: f["conditions"][0].update(control=1), lambda f: f.update(conditions=[])):  # fmt: skip
        figures = copy.deepcopy(dropped())
        spoil(figures)
        with pytest.raises(UserError, match=r"is damaged: figures\."):
            result_from(json.dumps(made.result("examination", figures)), "x")


@pytest.mark.full
def test_hostile_names_are_text(folder: Any) -> None:
    found = all_of_them()
    found["drop"]["tagger"] = "<script>alert(1)</script>"
    page = render([folder(found, "<b>$\\frac$", "<i>", "hostile")], BESIDE)
    assert "<script>alert" not in page and "<b>$" not in page and "<i>" not in page


def test_the_printed_figures_are_those_of_the_paper() -> None:
    paper = papers.paper("context")
    assert (
        paper.values["ptb-drop-content-5"].value == 65 and paper.values["ptb-outside-window"].metric == "share_percent"
    )
    assert papers.published_value("context/wikitext-2-without-cache-far")[1] == "Khandelwal et al. 2018, section 6.2"
    assert isinstance(BESIDE, Published)
    for corpus, values in BESIDE.figures.items():
        for name, value in values.items():
            assert paper.values[f"{corpus}-{name}"].value == value
    same, other = BESIDE.beside("wikitext-2", "outside-window"), BESIDE.beside("wikitext-2", "drop-content-5")
    assert same and other and (same.values, same.where) == ((20.0,), "wikitext-2")
    assert other.where == "ptb, another text" and BESIDE.beside("ptb", "no such figure") is None


MASK = {"title": "Words <masked>", "sentence": "Perplexity after masking"}


@pytest.mark.full
def test_an_experiment_that_describes_its_picture_is_drawn_as_lines(run: Any, made: Any) -> None:
    conditions = [
        condition(f"{name}-{b}", effect * scale, series=name, boundary=b)
        for name, scale in (("all words", 1.0), ("every other", 0.5))
        for b, effect in ((5, 0.2), (20, 0.1), (100, 0.001))
    ]
    result = made.result("examination", examination("mask", conditions, picture=MASK | {"by": None}))
    found = result_from(json.dumps(result), "x")
    sentence = (
        "Perplexity after masking: all words +22.1% at 5 and less than 1% from 100 on; every other +10.5% at 5 and"
    )
    (said,) = examinations.examination_sentences(found, BESIDE)
    assert said.startswith(sentence)
    (plot,) = examinations.examination_plots(found)
    assert {"all words", "every other", "nearest tokens left as they are"} <= set(texts(plot.svg))
    html = render([run(results={"examine-mask-valid": result})], BESIDE)
    assert "<h3>Words &lt;masked&gt;</h3>" in html and sentence in html and "Published figures" not in html


def test_an_experiment_that_describes_its_picture_is_drawn_as_bars(made: Any) -> None:
    def effects(level: float) -> list[dict[str, Any]]:
        return [condition(f"mask-{name}", level * scale, series=name) for name, scale in (("all", 1.0), ("half", 0.5))]

    groups = [
        group("class", name, effects(level), targets) for name, level, targets in (("near", 0.2, 7), ("far", 0.1, 9))
    ]
    figures = examination("mask", effects(0.15), groups=groups, picture=MASK | {"by": "class"})
    found = result_from(json.dumps(made.result("examination", figures)), "x")
    (plot,) = examinations.examination_plots(found)
    assert plot.caption.startswith(
        "Perplexity after masking: all near +22.1%, far +10.5%; half near +10.5%, far +5.1%."
    )
    assert {"all", "half", "near", "far", "7", "9", "class"} <= set(texts(plot.svg))
    unsplit = json.dumps(made.result("examination", figures | {"groups": []}))
    assert examinations.examination_plots(result_from(unsplit, "x")) == []
