"""Splits of the targets of a small readable text, and figures computed from losses by group."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from backstory.config import TextConfig
from backstory.context import EXPERIMENTS, SPLITS, Examination, Losses, Similar, figures
from backstory.context.examination import outside_window, split_targets
from backstory.data import prepare
from backstory.papers.paper import paper
from backstory.results.validation import is_number
from backstory.utils.errors import UserError

WORDS = [5, 1, 2, 5, 3, 1, 4, 4, 6, 5]


class Silent:
    """A scorer that is never called."""

    def score(self, contexts: Any, targets: Any, progress: Any = None) -> np.ndarray:
        raise AssertionError


def on(ids: list[int] | np.ndarray = WORDS, **settings: Any) -> Examination:
    return Examination(np.array(ids), None, Silent(), 100, 1, **settings)


def named(split: str, examined: Examination, reach: int | None = None) -> list[str]:
    """The group of every token."""
    groups = split_targets(examined, np.arange(len(examined.ids)), reach, [split])[split]
    assert groups.codes.dtype == np.int16
    return [groups.names[code] for code in groups.codes]


def test_a_word_is_frequent_from_800_occurrences_in_training() -> None:
    counts = np.array([0, 799, 800, 801, 5000, 0, 1])
    assert named("frequency", on([1, 2, 3, 4, 5, 6], counts=counts)) == ["infrequent"] + 3 * ["frequent"] + 2 * [
        "infrequent"
    ]


def test_parts_of_speech_are_grouped_by_how_they_begin() -> None:
    tags = np.array(
        ["NN", "NNS", "NNP", "VBD", "JJR", "RB", "DT", "IN", "PRP", "PRP$", "WDT", "SYM", "<eos>", "<unk>", "TO"]
    )
    found = named("tag", on([*range(15)], tags=tags))
    assert found == [
        "NN",
        "NN",
        "NN",
        "VB",
        "JJ",
        "RB",
        "DT",
        "IN",
        "PRP",
        "PRP",
        "other",
        "other",
        "<eos>",
        "<unk>",
        "TO",
    ]
    assert named("content", on([*range(15)], tags=tags)) == 6 * ["content"] + 5 * ["function"] + 3 * ["neither"] + [
        "function"
    ]


def test_near_far_and_none_by_the_last_occurrence() -> None:
    # 5 comes at 0, 3 and 9; 1 at 1 and 5; 4 at 6 and 7.
    assert named("class", on(near=3)) == ["none", "none", "none", "near", "none", "far", "none", "near", "none", "far"]
    assert named("class", on(near=4)) == ["none", "none", "none", "near", "none", "near", "none", "near", "none", "far"]
    assert named("class", on(near=6)) == [
        "none",
        "none",
        "none",
        "near",
        "none",
        "near",
        "none",
        "near",
        "none",
        "near",
    ]


def test_targets_alone_with_their_tag_are_apart_as_no_word_is_similar_to_them() -> None:
    # 1 and 2 are nouns, 4 is once a noun and twice a verb as 5 is; 9 ends lines, and no other word has its tag.
    ids = np.array([1, 9, 2, 4, 1, 9, 4, 5, 4, 2])
    tags = np.array(["NN", "<eos>", "NN", "NN", "NN", "<eos>", "VB", "VB", "VB", "NN"])
    examined = on(ids, tags=tags, near=4)
    assert named("similar", examined) == [
        "none", "alone", "none", "none", "near", "alone", "near", "none", "near", "far"
    ]  # fmt: skip
    similar = Similar(ids, tags, np.ones(10))
    assert all(
        (name == "alone") == (not len(similar(int(id))))
        for id, name in zip(ids, named("similar", examined), strict=True)
    )
    with pytest.raises(UserError, match="a split by similar needs part-of-speech tags"):
        named("similar", on(ids))


def test_what_a_context_does_not_reach_was_never_there() -> None:
    assert named("class", on(near=2), reach=4) == [
        "none",
        "none",
        "none",
        "far",
        "none",
        "far",
        "none",
        "near",
        "none",
        "none",
    ]


def test_within_documents_only_the_same_document_counts() -> None:
    examined = on(near=3, documents=np.array([0, 3, 7]), within_documents=True)
    assert named("class", examined) == ["none", "none", "none", "none", "none", "none", "none", "none", "none", "none"]
    examined = on(near=3, documents=np.array([0, 3, 6]), within_documents=True)
    assert named("class", examined) == ["none", "none", "none", "none", "none", "none", "none", "near", "none", "none"]


def test_a_cache_holds_what_came_within_its_window() -> None:
    # As above, of a cache that holds four words: what came only before them is in none of its classes.
    held = on(near=3, cached=np.minimum(np.arange(10), 4))
    found = named("cache", held)
    assert found == ["none", "none", "none", "near", "none", "far", "none", "near", "none", "none"]
    assert named("class", held)[9] == "far" and outside_window(held) == 0.7
    documents = on(near=3, cached=np.minimum(np.arange(10), 4), documents=np.array([0, 3]), within_documents=True)
    assert named("cache", documents)[3] == "none", "5 at 0 is of another document"


@pytest.mark.full
@pytest.mark.parametrize(("corpus", "window", "share"), [("ptb", 500, 0.3615), ("wikitext-2", 3875, 0.2033)])
def test_what_a_cache_does_not_hold_is_what_the_paper_says_it_hurts(corpus: str, window: int, share: float) -> None:
    """36% of Penn Treebank's words and 20% of WikiText-2's: a property of the text, not of the model."""
    try:
        ids = prepare(TextConfig(corpus=corpus)).splits["valid"].ids
    except UserError:
        pytest.skip(f"BACKSTORY_DATA names no folder with {corpus}")
    held = on(ids, cached=np.minimum(np.arange(len(ids)), window))
    assert outside_window(held) == pytest.approx(share, abs=5e-5)
    anywhere = (np.array(split_targets(held, np.arange(len(ids)), None, [])["class"].codes) == 2).mean()
    assert anywhere < 0.6 * share, "words that never came before are fewer"
    assert round(100 * share) == paper("context").values[f"{corpus}-outside-window"].value


def test_the_place_in_a_document_is_counted_from_where_it_begins() -> None:
    examined = on([0] * 1200, documents=np.array([0, 120]))
    found = named("position", examined)
    assert [found[i] for i in (0, 49, 50, 99, 100, 119)] == ["0-49", "0-49", "50-99", "50-99", "100-199", "100-199"]
    assert [found[i] for i in (120, 169, 319, 320, 619, 620, 1119, 1120)] == [
        "0-49", "0-49", "100-199", "200-499", "200-499", "500-999", "500-999", "1000-",
    ]  # fmt: skip


def test_a_split_takes_what_it_goes_by() -> None:
    positions = np.arange(3)
    assert set(split_targets(on(), positions, None, [])) == {"class", "position"}
    with pytest.raises(UserError, match="split by frequency needs counts of a training text"):
        split_targets(on(), positions, None, ["frequency"])
    for split in ("tag", "content"):
        with pytest.raises(UserError, match=f"split by {split} needs part-of-speech tags.*--by"):
            split_targets(on(), positions, None, [split])
    with pytest.raises(UserError, match="only the experiment cache splits by cache"):
        split_targets(on(), positions, None, ["cache"])
    everything = on(counts=np.ones(9), tags=np.array(["NN"] * len(WORDS)), cached=np.arange(len(WORDS)))
    assert set(split_targets(everything, positions, None, [])) == set(SPLITS)
    assert all(split.description for split in SPLITS.values())
    assert {name for kind in EXPERIMENTS.values() for name in kind.by} <= set(SPLITS)


def losses(seed: int = 0, count: int = 60) -> Losses:
    """Random losses under two truncations."""
    random = np.random.default_rng(seed)
    baseline = random.exponential(3, count)
    nats = baseline + random.normal([[0.5], [0.001]], 0.05, (2, count))
    conditions = [{"name": f"truncate-{n}", "method": "truncate", "context": n} for n in (5, 50)]
    found = Losses(np.arange(count), np.arange(count) % 7, baseline, None, nats, np.array([5.0, 50.0]), conditions)
    on_class = Examination(np.arange(count) % 7, None, Silent(), count, 1, near=50)
    return replace(found, splits=split_targets(on_class, found.positions, None, []))


def test_the_figures_of_a_group_are_those_of_its_targets_alone() -> None:
    made = losses()
    found = figures([made], ["class", "position"])
    assert [(g.by, g.group) for g in found.groups] == [
        ("class", "near"), ("class", "none"), ("position", "0-49"), ("position", "50-99"),
    ]  # fmt: skip
    for by in ("class", "position"):
        groups = [g for g in found.groups if g.by == by]
        assert sum(g.targets for g in groups) == 60 and math.isclose(sum(g.share for g in groups), 1)
        for place in range(2):
            weighted = sum(g.share * g.conditions[place].effect for g in groups)
            assert weighted == pytest.approx(found.conditions[place].effect)
    chosen = np.arange(60) < 50
    first = next(g for g in found.groups if g.group == "0-49")
    assert first.baseline.nats == pytest.approx(made.baseline[chosen].mean())
    effect = (made.nats[0] - made.baseline)[chosen]
    assert first.conditions[0].effect == pytest.approx(effect.mean())
    # A mean of 50 with a deviation of 0.05: the interval is about 1.96 standard errors to either side.
    width = first.conditions[0].high - first.conditions[0].low
    assert width == pytest.approx(2 * 1.96 * effect.std() / math.sqrt(50), rel=0.1)
    assert first.effective_context.context == 50


@pytest.mark.parametrize("lost", [1e3, 1e30, 1e38])
def test_effects_of_a_model_that_broke_down_can_be_read_again(lost: float) -> None:
    made = losses()
    found = figures([replace(made, nats=made.nats + lost), made], ["class"])
    numbers = [vars(c) for part in (found, *found.groups) for c in part.conditions]
    assert all(is_number(c[name]) for c in numbers for name in ("nats", "effect", "low", "high", "effect_percent"))


@pytest.mark.parametrize("models", [1, 3])
def test_a_single_target_has_no_interval(models: int) -> None:
    """Resamples of one target are all alike: an interval of no width would be the surest answer of all."""
    made = [replace(losses(count=51), nats=losses(count=51).nats - shift) for shift in (0.0, 2.0, 4.0)[:models]]
    split = figures(made, ["position"])
    many, one = split.groups
    assert (many.targets, one.targets) == (50, 1)
    assert all(c.low < c.effect < c.high and c.interval == (c.low, c.high) for c in many.conditions)
    assert [(c.low, c.high, c.interval) for c in one.conditions] == [(None, None, None)] * 2
    assert [c.spread is None for c in one.conditions] == [models == 1] * 2  # models have a deviation still
    assert '"low": null' in json.dumps(one.conditions[0].to_dict())
    context = one.effective_context
    assert (context.low, context.high, context.more_context_hurts) == (5, None, False)


def test_a_split_that_was_not_saved_is_refused() -> None:
    with pytest.raises(UserError, match="hold no split by tag; there are class, position"):
        figures([losses()], ["tag"])


def test_a_set_is_the_mean_over_models_with_the_deviation_over_them() -> None:
    models = [replace(losses(), nats=losses().nats + shift) for shift in (0.0, 0.1, 0.5)]
    found = figures(models, ["class"])
    effects = [(m.nats - m.baseline).mean(1) for m in models]
    for place, condition in enumerate(found.conditions):
        ours = [float(e[place]) for e in effects]
        assert condition.effects == pytest.approx(ours)
        assert condition.effect == pytest.approx(np.mean(ours))
        assert condition.deviation == pytest.approx(np.std(ours, ddof=1))
        assert condition.low < condition.effect < condition.high
    assert found.baseline.deviation == pytest.approx(0.0)
    assert found.effective_context.context is None and found.effective_context.models == (50, None, None)
    assert all(c.deviation is not None for g in found.groups for c in g.conditions)


@pytest.mark.parametrize(
    "other, says",
    [
        (losses(count=59), "other targets"),
        (replace(losses(), targets=np.zeros(60)), "other text"),
        (replace(losses(), baseline_context=300), "other conditions"),
        (replace(losses(), conditions=losses().conditions[::-1]), "other conditions"),
    ],
)
def test_models_that_were_examined_otherwise_make_no_set(other: Losses, says: str) -> None:
    with pytest.raises(UserError, match=says):
        figures([losses(), other])
