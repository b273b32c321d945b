"""Sharp Nearby, Fuzzy Far Away: how much of its context an LSTM uses, and what for."""

from collections.abc import Sequence
from typing import Any

from backstory.papers.published.paper import (
    EFFECTIVE_CONTEXT,
    OUTSIDE_WINDOW,
    Cost,
    Figure,
    Finding,
    Measure,
    Paper,
    Printed,
)
from backstory.reports.examined import SMALL
from backstory.reports.published_section import Published

_WHERE: dict[str, tuple[str, Printed]] = {
    "valid": ("table 1", "perplexity"),
    "test": ("table 1", "perplexity"),
    "effective-context": ("section 4", "tokens"),
    "effective-context-average": ("section 4", "tokens"),
    "effective-context-frequent": ("section 4.1", "tokens"),
    "effective-context-infrequent": ("section 4.1", "tokens"),
    "effective-context-DT": ("section 4.1", "tokens"),
    "truncate-13": ("section 7", "effect_percent"),
    "local-order": ("section 5.1", "tokens"),
    "global-order": ("section 5.1", "tokens"),
    "drop-content-5": ("section 5.2", "effect_percent"),
    "drop-content-5-control": ("section 5.2", "effect_percent"),
    "drop-function-5": ("section 5.2", "effect_percent"),
    "drop-distant-near": ("section 6.1", "effect_percent"),
    "drop-distant-far": ("section 6.1", "effect_percent"),
    "drop-target-near": ("section 6.1", "effect_percent"),
    "drop-target-far": ("section 6.1", "effect_percent"),
    "replace-target-near": ("section 6.1", "effect_percent"),
    "without-cache-near": ("section 6.2", "effect_percent"),
    "without-cache-far": ("section 6.2", "effect_percent"),
    "outside-window": ("section 6.2", "share_percent"),
}
"""Where each figure stands, and what it is. `replace-target-near` is the most that any replacement costs. `outside-window` is
the share of the tokens that are not among those that the cache holds, 500 on Penn Treebank and 3,875 on WikiText-2: the paper
says that the cache hurts so many words, and the text alone gives both numbers, whatever the model."""

_SHARED = {
    "effective-context-average": 200.0,
    "effective-context-frequent": 50.0,
    "effective-context-infrequent": 200.0,
    "effective-context-DT": 10.0,
    "local-order": 20.0,
    "global-order": 50.0,
}
"""Said of both corpora."""
_PRINTED = {
    "ptb": {
        "valid": 59.07,
        "test": 56.89,
        "effective-context": 150.0,
        **_SHARED,
        "truncate-13": 25.0,
        "drop-content-5": 65.0,
        "drop-content-5-control": 17.0,
        "drop-function-5": 15.0,
        "drop-distant-near": 3.5,
        "drop-distant-far": 12.0,
        "drop-target-near": 9.0,
        "drop-target-far": 2.0,
        "replace-target-near": 14.0,
        "without-cache-near": 22.0,
        "without-cache-far": 28.0,
        "outside-window": 36.0,
    },
    "wikitext-2": {
        "valid": 67.29,
        "test": 64.51,
        "effective-context": 250.0,
        **_SHARED,
        "without-cache-near": 32.0,
        "without-cache-far": 53.0,
        "outside-window": 20.0,
    },
}


def _figures() -> dict[str, Figure]:
    """By CORPUS-NAME; all but the test perplexities are of the validation text."""
    return {
        f"{corpus}-{name}": Figure(value, "test" if name == "test" else "valid", *_read(name))
        for corpus, values in _PRINTED.items()
        for name, value in values.items()
    }


def _read(name: str) -> tuple[str, str, Printed]:
    where, metric = _WHERE[name]
    return where, "cache" if name.startswith(("without-cache", "outside-window")) else "static", metric


CONTENT, FUNCTION = ("NN", "VB", "JJ"), ("IN", "DT")
"""Tags of section 4.1: nouns, verbs and adjectives; prepositions and determiners."""


def _finding(sentence: str, text: str, printed: Sequence[str], where: str, *measures: Measure, **more: Any) -> Finding:
    """A finding on Penn Treebank; the printed figures of these names, in their order, stand in `text`."""
    told = text.format(*(f"{_PRINTED['ptb'][name]:g}" for name in printed))
    return Finding(sentence, told, where, measures, figures=tuple(f"ptb-{name}" for name in printed), **more)


def _kept(context: int, by: str = "", *groups: str) -> Cost:
    return Cost("truncate", f"truncate-{context}", by, groups)


def _needed(told: str, by: str, *groups: str) -> Measure:
    """The effective context of a group, which is shown."""
    return Measure(told, (Cost("truncate", EFFECTIVE_CONTEXT, by, groups),))


def _small(told: str, cost: Cost) -> Measure:
    """A cost that is next to no effect, either way."""
    return Measure(told, (cost,), above=-SMALL, below=SMALL)


def _permuted(method: str, span: str, boundary: int) -> Cost:
    return Cost(method, f"{method}-{span}-{boundary}")


def _dropped(words: str, boundary: int, control: bool = False) -> Cost:
    return Cost("drop", f"drop-{words}-{boundary}{'-control' * control}")


def _class(experiment: str, group: str, condition: str = "") -> Cost:
    """Of words that came near, only far away, or not before (none)."""
    return Cost(experiment, condition or experiment, "class", (group,))


def _replaced(group: str, by: str) -> Cost:
    return _class("replace-target", group, f"replace-target-{by}")


def _cached(group: str) -> Cost:
    """Of words that the cache's window holds near or only farther back, or not at all (none)."""
    return Cost("cache", "without-cache", "cache", (group,))


_ORDERS = {"shuffle": "shuffling", "reverse": "reversing"}
_WORDS = {"unknown": "by <unk>", "similar": "by a similar word"}

FINDINGS = {
    "effective-context": _finding(
        "The effective context is about 150 tokens",
        "{} tokens; about {} on average over two texts",
        ("effective-context", "effective-context-average"),
        "section 4, figure 1a",
        about=_PRINTED["ptb"]["effective-context"],
    ),
    "settings": _finding(
        "Settings do not change the effective context",
        "no observable difference",
        (),
        "section 4, figure 1b",
        beside=True,
    ),
    "infrequent-words": _finding(
        "Infrequent words need more context than frequent ones",
        "frequent {}, infrequent more than {} tokens",
        ("effective-context-frequent", "effective-context-infrequent"),
        "section 4.1, figure 1c",
        _needed("frequent", "frequency", "frequent"),
        _needed("infrequent", "frequency", "infrequent"),
        Measure(
            "with 50 tokens, infrequent over frequent",
            (_kept(50, "frequency", "infrequent"),),
            (_kept(50, "frequency", "frequent"),),
            above=0.0,
        ),
    ),
    "frequent-words-far": _finding(
        "Frequent words are insensitive to context beyond the nearest 50 tokens",
        "{} tokens",
        ("effective-context-frequent",),
        "section 4.1, figure 1c",
        _small("with 50 tokens", _kept(50, "frequency", "frequent")),
    ),
    "infrequent-words-far": _finding(
        "Infrequent words need more than 200 tokens",
        "more than {} tokens",
        ("effective-context-infrequent",),
        "section 4.1, figure 1c",
        Measure("with 200 tokens", (_kept(200, "frequency", "infrequent"),), above=SMALL),
    ),
    "content-words": _finding(
        "Content words need more context than function words",
        "nouns and verbs more than any other, read off figure 1d; determiners {} tokens",
        ("effective-context-DT",),
        "section 4.1, figure 1d",
        _needed("content", "tag", *CONTENT),
        _needed("function", "tag", *FUNCTION),
        Measure(
            "with 50 tokens, content over function",
            (_kept(50, "tag", *CONTENT),),
            (_kept(50, "tag", *FUNCTION),),
            above=0.0,
        ),
    ),
    "determiners": _finding(
        "A determiner takes the nearest 10 tokens alone",
        "{} tokens",
        ("effective-context-DT",),
        "section 4.1, figure 1d",
        Measure("with 10 tokens", (_kept(10, "tag", "DT"),), below=SMALL),
    ),
    "local-order": _finding(
        "The order of 20 tokens matters next to the target, and not 20 tokens away from it",
        "only among the nearest {} tokens; costs read off figure 2a",
        ("local-order",),
        "section 5.1, figure 2a",
        *(Measure(f"{doing} 1 away", (_permuted(done, "local", 1),), above=SMALL) for done, doing in _ORDERS.items()),
        *(_small(f"{doing} 20 away", _permuted(done, "local", 20)) for done, doing in _ORDERS.items()),
    ),
    "global-order": _finding(
        "The order of all tokens matters, that of those beyond the nearest 50 does not",
        "only among the nearest {} tokens; costs read off figure 2b",
        ("global-order",),
        "section 5.1, figure 2b",
        *(Measure(f"{doing} all", (_permuted(done, "global", 1),), above=SMALL) for done, doing in _ORDERS.items()),
        *(_small(f"{doing} beyond 50", _permuted(done, "global", 50)) for done, doing in _ORDERS.items()),
    ),
    "far-words": _finding(
        "Which words there are beyond the nearest 50 tokens matters more than their order",
        "other words cost more; costs read off figure 2b",
        (),
        "section 5.1, figure 2b",
        Measure("replacing", (_permuted("replace", "global", 50),)),
        Measure("shuffling", (_permuted("shuffle", "global", 50),)),
        Measure(
            "replacing over shuffling",
            (_permuted("replace", "global", 50),),
            (_permuted("shuffle", "global", 50),),
            above=0.0,
        ),
    ),
    "content-dropped": _finding(
        "Content words beyond 5 tokens are worth more than as many words at random",
        "content +{}%, as many at random +{}%",
        ("drop-content-5", "drop-content-5-control"),
        "section 5.2, figure 3",
        Measure("content", (_dropped("content", 5),)),
        Measure("as many at random", (_dropped("content", 5, control=True),)),
        Measure("content over random", (_dropped("content", 5),), (_dropped("content", 5, control=True),), above=0.0),
    ),
    "function-dropped": _finding(
        "Function words beyond 5 tokens matter, but over as many words at random less than content words do",
        "function +{}%, not very different from as many at random",
        ("drop-function-5",),
        "section 5.2, figure 3",
        Measure("function", (_dropped("function", 5),), above=SMALL),
        Measure("as many at random", (_dropped("function", 5, control=True),)),
        Measure(
            "content over random less function over random",
            (_dropped("content", 5), _dropped("function", 5, control=True)),
            (_dropped("content", 5, control=True), _dropped("function", 5)),
            above=0.0,
        ),
    ),
    "dropped-far": _finding(
        "Beyond 20 tokens only content words matter",
        "costs read off figure 3",
        (),
        "section 5.2, figure 3",
        Measure("content", (_dropped("content", 20),), above=SMALL),
        _small("function", _dropped("function", 20)),
    ),
    "far-copies": _finding(
        "Words that came only far away are expected from all the distant context, not copied from where they came",
        "without the distant context +{}%, without the word +{}%",
        ("drop-distant-far", "drop-target-far"),
        "section 6.1, figure 4a",
        Measure("without the distant context", (_class("drop-distant", "far"),)),
        Measure("without the word", (_class("drop-target", "far"),)),
        Measure("distant over word", (_class("drop-distant", "far"),), (_class("drop-target", "far"),), above=0.0),
    ),
    "near-copies": _finding(
        "Words that came near are copied from where they came, not expected from the distant context",
        "without the word +{}%, without the distant context +{}%",
        ("drop-target-near", "drop-distant-near"),
        "section 6.1, figure 4a",
        Measure("without the word", (_class("drop-target", "near"),)),
        Measure("without the distant context", (_class("drop-distant", "near"),)),
        Measure("word over distant", (_class("drop-target", "near"),), (_class("drop-distant", "near"),), above=0.0),
    ),
    "near-replaced": _finding(
        "For words that came near, another word in their place is worse than none",
        "up to +{}%; without the word +{}%",
        ("replace-target-near", "drop-target-near"),
        "section 6.1, figure 4b",
        *(Measure(told, (_replaced("near", by),)) for by, told in _WORDS.items()),
        *(
            Measure(f"{told} over none", (_replaced("near", by),), (_class("drop-target", "near"),), above=0.0)
            for by, told in _WORDS.items()
        ),
    ),
    "far-replaced": _finding(
        "For words that came only far away, another word in their place is no worse than none",
        "largely unaffected, read off figure 4b",
        (),
        "section 6.1, figure 4b",
        *(Measure(told, (_replaced("far", by),)) for by, told in _WORDS.items()),
        *(
            Measure(f"{told} over none", (_replaced("far", by),), (_class("drop-target", "far"),), below=SMALL)
            for by, told in _WORDS.items()
        ),
    ),
    "cache": _finding(
        "A cache helps with words that came near, and more with those that came only far away",
        "without it near +{}%, far +{}%",
        ("without-cache-near", "without-cache-far"),
        "section 6.2, figure 7",
        Measure("near", (_cached("near"),), above=0.0),
        Measure("far", (_cached("far"),)),
        Measure("far over near", (_cached("far"),), (_cached("near"),), above=0.0),
    ),
    "cache-window": _finding(
        "36% of the words are not in a cache's window of 500 when they come, and the cache harms these",
        "it hurts about {}% of the words, those that it does not hold",
        ("outside-window",),
        "section 6.2, figure 7",
        Measure("not in its window", (Cost("cache", OUTSIDE_WINDOW),), above=35.5, below=36.5),
        # That it costs these words something is sure of any cache, and decides nothing.
        Measure("these, without it", (_cached("none"),)),
    ),
}
"""What it found, as far as it is judged of other models: those on Penn Treebank, of which most figures are printed."""

PAPER = Paper(
    title="Sharp Nearby, Fuzzy Far Away: How Neural Language Models Use Context",
    cited="Khandelwal et al. 2018",
    figures=_figures(),
    findings=FINDINGS,
)

BESIDE = Published(PAPER.cited, "an AWD-LSTM, the mean of three seeds, on every token of the validation text", _PRINTED)
"""The same for a report."""
