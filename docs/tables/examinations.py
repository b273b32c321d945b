"""Tables on models' use of context."""

import math
from typing import Any

from tables.sources import benchmark_rows, effective_context, figures_of, files, headed, measured, result

from backstory.papers.findings import NOT_MEASURED
from backstory.papers.paper import paper
from backstory.reports import Table
from backstory.reports.sections.evaluation_section import Named
from backstory.results.evaluation_record import MemoryRecord
from backstory.utils.formats import MISSING, signed, signed_percent

MEMORIES = {"lstm": "LSTM", "cache": "with a neural cache", "pointer": "with a pointer buffer"}
"""Names of the systems whose use of up to 4,000 words was examined (results/examine-memory-*.json)."""


def remembering() -> Table:
    """Perplexity by words of context, without a memory and with two kinds of memory."""
    examinations = [figures_of(f"examine-memory-{name}") for name in MEMORIES]
    rows = [
        (f"{these[0]['context']:,}", *(f"{condition['perplexity']:.2f}" for condition in these))
        for these in zip(*(figures["conditions"] for figures in examinations), strict=True)
    ]
    rows.append(("all", *(f"{figures['baseline']['perplexity']:.2f}" for figures in examinations)))
    rows.append(("effective context", *(effective_context(figures) for figures in examinations)))
    return headed(("words of context", *MEMORIES.values()), rows, texts=0)


REMEMBERED = (
    ("lstm", "static"),
    ("lstm", "cache"),
    ("auxiliary-softmax", "static"),
    ("snb-t1", "static"),
    ("following", "static"),
)
"""Systems and readers of the suite `recall` in docs/memory.png."""


def remembered_curves() -> list[Named[MemoryRecord]]:
    """Return the memory records of these systems' first seeds by name, from results/reproduce-recall.json."""
    suite = result("reproduce-recall")
    runs = {run.run: run.readings for run in suite.figures.runs}
    curves = []
    for row, reader in REMEMBERED:
        (reading,) = (one for one in runs[f"{row}-seed1"] if one.reader == reader)
        assert reading.memory is not None
        curves.append(Named(f"{row}, {reader}", suite, reading.memory))
    return curves


WITH_CACHE = "examine-cache-ptb-small"
"""Figure 7 on one seed of ptb-small."""

PLACES = {"near": "among the last 50 words", "far": "farther back, in the window", "none": "not in the window"}


def with_cache() -> Table:
    """Gain of a neural cache by a word's last occurrence, with the published values; empty until it is measured."""
    heads = ("words", "share", "perplexity with the cache", "without it", "95% interval", "published")
    if not files(WITH_CACHE):
        return headed(heads, [("all", *[NOT_MEASURED] * (len(heads) - 1))])
    figures = figures_of(WITH_CACHE)
    groups = {g["group"]: g for g in figures["groups"] if g["by"] == "cache"}
    rows = []
    for name, group in {**groups, "all": {**figures, "share": 1.0}}.items():
        [condition] = group["conditions"]
        printed = paper("context").values.get(f"ptb-without-cache-{name}")
        low, high = (signed_percent(100 * math.expm1(condition[end])) for end in ("low", "high"))
        rows.append(
            (
                PLACES.get(name, name),
                f"{group['share']:.1%}",
                f"{group['baseline']['perplexity']:.2f}",
                signed_percent(condition["effect_percent"]),
                f"{low} to {high}",
                MISSING if printed is None else f"+{printed.value:g}%",
            )
        )
    return headed(heads, rows)


def harmed() -> Table:
    """Share of words outside the cache's window, and share that it harms."""
    heads = ("of all words", "ours", "published")
    printed = paper("context").values["ptb-outside-window"].value
    shares = [NOT_MEASURED] * 2
    if files(WITH_CACHE):
        [condition] = figures_of(WITH_CACHE)["conditions"]
        shares = [f"{condition[key]:.2%}" for key in ("outside_window", "hurt")]
    return headed(heads, [("not in the window", shares[0], f"{printed:g}%"), ("harmed", shares[1], MISSING)])


def sampled() -> Table:
    """Share of samples of targets whose 95% interval contains the figure for all."""
    coverage: list[dict[str, Any]] = measured("benchmark-sampling")["coverage"]
    rows = tuple(
        (
            row["condition"],
            f"{row['all']} tokens" if row["width"] is None else f"{signed(row['all'], 4)} nats",
            MISSING if row["width"] is None else f"{row['width']:.4f}",
            f"{row['covered']:.1%}",
        )
        for row in coverage
    )
    heads = ("condition", "of all targets", "width of the interval", "intervals that hold it")
    return headed(heads, rows)


def precisions() -> Table:
    """Distance between the means of examinations in bfloat16 and in float32."""
    experiments: list[dict[str, Any]] = measured("benchmark-sampling")["precision"]
    rows = tuple(
        (row["experiment"], f"{row['conditions']}", f"{row['mean']:.5f}", f"{row['effect']:.5f}") for row in experiments
    )
    heads = ("experiment", "conditions", "means apart, nats", "effects apart, nats")
    return headed(heads, rows)


def tags() -> Table:
    """Agreement of PatternTagger with the published tags of a corpus."""
    corpora: dict[str, dict[str, Any]] = benchmark_rows("tags")
    shares = ("tag", "class", "content", "function")
    rows = tuple(
        (f"{corpus}, {row['split']}", f"{row['words']:,}", *(f"{100 * row[share]:.1f}%" for share in shares))
        for corpus, row in corpora.items()
    )
    heads = ("text", "words", "same tag", "same class", "content words found", "function words found")
    return headed(heads, rows)
