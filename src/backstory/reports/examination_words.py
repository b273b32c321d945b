"""What experiments on context found, in a sentence each: this model's numbers, and the published ones beside them."""

from collections.abc import Sequence

from backstory.config import plural
from backstory.reports import formats
from backstory.reports.examined import SMALL, TRUNCATE, Examined, conditions_of, groups_of, in_class, small_from
from backstory.reports.formats import count, percent
from backstory.reports.published import Published
from backstory.reports.results import Record, Result
from backstory.reports.words import effective_context

DONE = {"shuffle": "shuffling", "reverse": "reversing", "replace": "replacing"}
TAGS = {"NN": "nouns", "VB": "verbs", "JJ": "adjectives", "DT": "determiners", "IN": "prepositions"}
"""Tags of figure 1d; those of the Penn Treebank that begin so."""
CLASSES = ("near", "far", "none")


def raised(condition: Record | None) -> str:
    """What a condition costs, in percent of perplexity with its sign: `+12.3%`."""
    if condition is None:
        return formats.MISSING
    value = condition["effect_percent"]
    return f"{'+' if value > 0 else ''}{percent(value)}"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part) + "."


def _printed(published: Published | None, corpus: str, names: Sequence[str], text: str) -> str:
    """The printed figures in a template of their own; empty without them."""
    found = published.beside(corpus, *names) if published else None
    if published is None or found is None:
        return ""
    return f"{published.cited} ({found.where}): {text.format(*(f'{value:g}' for value in found.values))}"


def levels(examinations: Sequence[tuple[str, Result]], published: Published | None) -> str:
    """Figure 1b: how far the models are apart with little and with all context, and how much each uses."""
    corpus = str(examinations[0][1].corpus.get("name"))
    shared = set.intersection(*({c["context"] for c in r.figures["conditions"]} for _, r in examinations))
    told = ", ".join(f"{name} {effective_context(r.figures)}" for name, r in examinations)
    parts = [f"Models differ in level and in the context they use: {told}"]
    if shared:
        least = min(shared)
        few = [next(iter(conditions_of(r.figures, context=least)))["perplexity"] for _, r in examinations]
        full = [r.figures["baseline"]["perplexity"] for _, r in examinations]
        apart = f"{max(few) / min(few):.2f} and {max(full) / min(full):.2f} times the lowest"
        parts.append(f"the highest perplexity is, with {count(least)} tokens and with all context, {apart}")
    return _joined(*parts, _printed(published, corpus, ["effective-context-average"],
                                    "settings change the level, not the trend, and about {} tokens are used"))  # fmt: skip


def frequency(examined: Examined, published: Published | None) -> str:
    """Figure 1c: how much context frequent and infrequent words need."""
    result = examined.results[TRUNCATE]
    found = groups_of(result, "frequency")
    told = [f"{name} words {_needs(g, result)} ({_share(g)})" for name, g in found.items()]
    names = ["effective-context-frequent", "effective-context-infrequent"]
    return _joined("Less than 1% is gained beyond: " + ", ".join(told),
                   _printed(published, examined.corpus, names, "frequent {}, infrequent more than {} tokens"))  # fmt: skip


def speech(examined: Examined, published: Published | None) -> str:
    """Figure 1d: how much context words of each part of speech need."""
    result = examined.results[TRUNCATE]
    found = {tag: g for tag, g in groups_of(result, "tag").items() if tag in TAGS}
    told = [f"{TAGS[tag]} {_needs(g, result)} ({_share(g)})" for tag, g in found.items()]
    return _joined("Less than 1% is gained beyond: " + ", ".join(told), _tagged(result),
                   _printed(published, examined.corpus, ["effective-context-DT"],
                            "determiners {} tokens, nouns and verbs more than any other"))  # fmt: skip


def _needs(group: Record, result: Result) -> str:
    return effective_context({**group, "maximum_context": result.figures["maximum_context"]})


def _share(group: Record) -> str:
    return f"{percent(100 * group['share'])} of the targets"


def _tagged(result: Result) -> str:
    """Who gave the tags, and how many words have none of a known word."""
    f = result.figures
    share = f.get("unknown_tag_share")
    if not f.get("tagger"):
        return ""
    unknown = f", {percent(100 * share)} of the tokens tagged unknown" if isinstance(share, int | float) else ""
    return f"tags: {f['tagger']}{unknown}"


def order(examined: Examined, span: str, published: Published | None) -> str:
    """Figures 2a and 2b: what the order of near and of far words is worth."""
    told = []
    for experiment, doing in DONE.items():
        found = _of_span(examined, experiment, span)
        if found:
            first, end = found[0], small_from(found)
            on = f"less than {SMALL:g}% from {count(end)} on" if end is not None else f"{raised(found[-1])} still"
            away = f"beyond {count(found[-1]['boundary'])}" if end is None else ""
            told.append(f"{doing} {raised(first)} beyond {count(first['boundary'])}, {on}{f' {away}' if away else ''}")
    what = "the 20 tokens that start so far away" if span == "local" else "all tokens that are farther"
    name, text = ("local-order", "the order of words matters within {} tokens") if span == "local" else (
        "global-order", "beyond {} tokens order has no effect, other words have")  # fmt: skip
    return _joined(f"Perplexity after changing {what}: {'; '.join(told)}",
                   _printed(published, examined.corpus, [name], text))  # fmt: skip


def _of_span(examined: Examined, experiment: str, span: str) -> list[Record]:
    result = examined.results.get(experiment)
    found = conditions_of(result.figures, span=span) if result else []
    return sorted(found, key=lambda c: c["boundary"])


def dropped(examined: Examined, published: Published | None) -> str:
    """Figure 3: what content and function words are worth, beside as many words dropped at random."""
    result = examined.results["drop"]
    nearest = min(c["boundary"] for c in result.figures["conditions"])
    told = []
    for words in ("content", "function"):
        pair = [
            next(iter(conditions_of(result.figures, words=words, control=control, boundary=nearest)), None)
            for control in (False, True)
        ]
        if pair[0]:
            told.append(f"{words} words {raised(pair[0])}, as many at random {raised(pair[1])}")
    names = ["drop-content-5", "drop-content-5-control", "drop-function-5"]
    said = _printed(published, examined.corpus, names, "content +{}%, as many at random +{}%, function +{}%")
    return _joined(
        f"Dropped beyond {count(nearest)} tokens: {'; '.join(told)}", said if nearest == 5 else "", _tagged(result)
    )


def copied(examined: Examined, published: Published | None) -> str:
    """Figure 4a: whether words that come back are copied or expected from what the text is about."""
    told = []
    for group in CLASSES:
        target, distant = (in_class(examined, name, group) for name in ("drop-target", "drop-distant"))
        parts = [f"{raised(target)} without the word itself"] if target else []
        parts += [f"{raised(distant)} without the distant context"] if distant else []
        told += [f"{group} {' and '.join(parts)}"] if parts else []
    names = [f"drop-{what}-{group}" for group in ("near", "far") for what in ("target", "distant")]
    return _joined(f"Perplexity of words by where they last came: {'; '.join(told)}",
                   _printed(published, examined.corpus, names, "near +{}% and +{}%, far +{}% and +{}%"))  # fmt: skip


def replaced(examined: Examined, published: Published | None) -> str:
    """Figure 4b: what it costs when earlier occurrences of a word are another word."""
    told = []
    for group in CLASSES:
        found = [in_class(examined, "replace-target", group, replacement=r) for r in ("unknown", "similar")]
        kinds = ("by <unk>", "by a similar word")
        parts = [f"{raised(c)} {kind}" for c, kind in zip(found, kinds, strict=True) if c]
        told += [f"{group} {' and '.join(parts)}"] if parts else []
    return _joined(f"Perplexity of words whose earlier occurrences are replaced: {'; '.join(told)}",
                   _printed(published, examined.corpus, ["replace-target-near"],
                            "near up to +{}%, far next to nothing"))  # fmt: skip


def cached(examined: Examined, published: Published | None) -> str:
    """Figure 7: what a cache is worth for words that come back, and how many words it harms."""
    result = examined.results["cache"]
    (condition,) = conditions_of(result.figures, method="without-cache")[:1]
    told = [f"{g} {raised(in_class(examined, 'cache', g))}" for g in CLASSES if in_class(examined, "cache", g)]
    hurt = f"the cache harms {percent(100 * condition['hurt'])} of the words" if "hurt" in condition else ""
    names = ["without-cache-near", "without-cache-far", "hurt"]
    return _joined(f"Perplexity without the cache: {raised(condition)}, of words {', '.join(told)}", hurt,
                   _printed(published, examined.corpus, names, "near +{}%, far +{}%, {}% of the words harmed"))  # fmt: skip


def comparability(examined: Examined, published: Published) -> str:
    """What the published figures are of, and in what this examination differs."""
    result, f = examined.first, examined.first.figures
    unit, level = f["unit"], examined.results.get(TRUNCATE, result).figures["baseline"]["perplexity"]
    there = published.beside(examined.corpus, f["split"]) or published.beside(examined.corpus, "valid")
    differs = []
    if there and there.same:
        differs.append(
            f"its perplexity is {there.values[0]:g} ({there.corpus}) and this model’s {formats.perplexity(level)}"
        )
    else:
        differs.append(f"the text is {examined.corpus}, which it was not measured on")
    if unit != "word":
        differs.append(f"it reads words, and this model {plural(unit)}")
    if f["split"] not in ("valid", "validation"):
        differs.append(f"this is the {f['split']} split")
    if result.reader != "static":
        differs.append(f"this is read by {result.reader}")
    models = len(f.get("models", []))
    differs.append(f"here {count(f['targets'])} {plural(unit, f['targets'])} are scored"
                   + (f", by {models} models" if models > 1 else ", by one model"))  # fmt: skip
    return f"Published figures are of {published.model}: {'; '.join(differs)}. Directions compare, sizes only roughly."
