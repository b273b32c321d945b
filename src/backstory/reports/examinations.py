"""Experiments on context in a report: a figure for each question, and tables of every condition."""

from collections.abc import Callable, Sequence
from html import escape

from backstory.config import plural
from backstory.reports import examination_plots as plots
from backstory.reports import examination_words as words
from backstory.reports import formats, tables
from backstory.reports import html_pieces as pieces
from backstory.reports.examination_words import comparability
from backstory.reports.examined import EXPERIMENTS, TRUNCATE, Examinations, conditions_of, grouped, groups_of, name_of
from backstory.reports.formats import MISSING, count, decimal
from backstory.reports.phrases import effective_context, effective_context_printed, measured_in, reading
from backstory.reports.plots import Plot, context_curves
from backstory.reports.published_section import Published
from backstory.reports.results import Record, Result, RunResults
from backstory.reports.tables import Table, columns

FIGURES: tuple[Callable[[Examinations, Published | None, str], Plot | None], ...] = (
    plots.frequency,
    plots.speech,
    lambda examined, published, prefix: plots.order(examined, "local", published, prefix),
    lambda examined, published, prefix: plots.order(examined, "global", published, prefix),
    plots.dropped,
    plots.copied,
    plots.replaced,
    plots.cached,
)
"""Figures 1c, 1d, 2a, 2b, 3, 4a, 4b and 7 of the paper, of whatever was examined."""


def plots_of(result: Result, published: Published | None = None) -> list[Plot]:
    """The figures of one examination alone, from the first on; none of an experiment that there is none of."""
    if result.figures["experiment"] not in EXPERIMENTS:
        return []
    examined = Examinations(result.name, {result.figures["experiment"]: result})
    curves = [context_curves([(result.name, result)], "context", published)] if TRUNCATE in examined.results else []
    made = [*curves, *(draw(examined, published, f"figure{i}") for i, draw in enumerate(FIGURES))]
    return [plot for plot in made if plot is not None]


def told(result: Result, published: Published) -> list[str]:
    """What one examination found beside the published figures, in sentences."""
    experiment = result.figures["experiment"]
    if experiment not in EXPERIMENTS:
        return []
    examined = Examinations(result.name, {experiment: result})
    if experiment == TRUNCATE:
        found = [effective_context_printed(examined.corpus, published).strip()]
        found += [words.frequency(examined, published)] if groups_of(result, "frequency") else []
        found += [words.speech(examined, published)] if groups_of(result, "tag") else []
    elif experiment in words.DONE:
        spans = [s for s in ("local", "global") if conditions_of(result.figures, span=s)]
        found = [words.order(examined, span, published) for span in spans]
    else:
        found = [_SAID[experiment](examined, published)]
    return [*(sentence for sentence in found if sentence), comparability(examined, published)]


_SAID: dict[str, plots.Sentence] = {
    "drop": words.dropped,
    "drop-target": words.copied,
    "drop-distant": words.copied,
    "replace-target": words.replaced,
    "cache": words.cached,
}


def body(runs: Sequence[RunResults], published: Published | None = None) -> str:
    """Everything about experiments on context in HTML; empty where there were none."""
    found = grouped(runs)
    parts = _truncations(runs, published)
    for number, examined in enumerate(found, start=1):
        parts += _examined(examined, published, f"examined{number}", len(found) > 1)
    return "\n".join(part for part in parts if part)


def _truncations(runs: Sequence[RunResults], published: Published | None) -> list[str]:
    """Figures 1a and 1b: truncation experiments, those on the same axes (split, unit and threshold) in one figure."""
    axes: dict[tuple[str, str, float], list[tuple[str, Result]]] = {}
    for run in runs:
        for result in run.of_kind("examination"):
            f = result.figures
            if f["experiment"] == TRUNCATE:
                key = (f["split"], f["unit"], f["effective_context"]["threshold_percent"])
                # What a reader remembers is beside what the model alone does, under a name of its own.
                axes.setdefault(key, []).append((name_of(run.name, result), result))
    parts = []
    for number, group in enumerate(axes.values(), start=1):
        parts += [
            pieces.plot(context_curves(group, f"context{number}", published)),
            *(
                pieces.plot(plots.levels(g, published, f"levels{number}-{i}"))
                for i, g in enumerate(_same_targets(group))
            ),
            pieces.table(tables.contexts(group), "Effective context"),
        ]
        for name, result in group:
            heading = f"Every context length: {name}, {result.figures['split']}"
            parts.append(pieces.details(heading, pieces.table(tables.conditions(result), heading)))
        for name, result in group:
            if about := pieces_of(result):
                parts.append(f'<p class="note">{escape(f"{name}: {about}")}</p>')
    return parts


def _same_targets(group: Sequence[tuple[str, Result]]) -> list[list[tuple[str, Result]]]:
    """Those whose perplexities compare: of the same targets of one text in one vocabulary."""
    found: dict[tuple[object, ...], list[tuple[str, Result]]] = {}
    for name, result in group:
        f = result.figures
        key = (*reading(result), f["targets"], f["maximum_context"], f.get("seed"))
        found.setdefault(key, []).append((name, result))
    return list(found.values())


def _examined(examined: Examinations, published: Published | None, prefix: str, several: bool) -> list[str]:
    """The other figures of one model on one text, and what of the published figures does not compare."""
    f = examined.first.figures
    made = [plot for i, draw in enumerate(FIGURES) if (plot := draw(examined, published, f"{prefix}-{i}"))]
    parts = [f"<h3>{escape(examined.name)}, {escape(f['split'])}</h3>"] if several and made else []
    level = "h4" if several else "h3"
    for plot in made:
        parts += [f"<{level}>{escape(plot.title)}</{level}>", pieces.plot(plot)]
    if TRUNCATE not in examined.results and (about := pieces_of(examined.first)):  # else it stands with that
        parts.append(f'<p class="note">{escape(about)}</p>')
    if published and made:
        parts.append(f'<p class="note">{escape(comparability(examined, published))}</p>')
    for experiment, result in examined.results.items():
        table = by_group(result) if experiment == TRUNCATE else conditions(result)
        about = "Context that is used" if experiment == TRUNCATE else f"Every condition of {experiment}"
        heading = f"{about}: {examined.name}, {f['split']}"
        parts.append(pieces.details(heading, pieces.table(table, heading)) if table.rows else "")
    return parts


def pieces_of(result: Result) -> str:
    """What words of pieces are, and how many contexts were longer than the model reads; empty for tokens without a window."""
    f = result.figures
    window = f.get("window")
    said = [f"Words are of {f['pieces_per_word']:.2f} pieces on average"] if f.get("pieces_per_word") else []
    scores = {"corrected": "corrected for where they begin and end", "sum": "the plain sum over their pieces"}
    said += [f"their scores are {scores[f['word_score']]}"] if f.get("word_score") in scores else []
    said += [f"the model reads {count(window)} {'pieces' if said else plural(f['unit'], 2)} at most"] if window else []
    if f.get("cut_contexts"):
        said.append(
            f"contexts of {count(f['cut_contexts'])} {plural('target', f['cut_contexts'])} were longer, and cut"
        )
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}." if said else ""


def by_group(result: Result) -> Table:
    """The effective context of every group of the targets of a truncation experiment."""
    f = result.figures
    rows = [
        (f"{g['by']}: {g['group']}", effective_context({**f, **g}),
         formats.perplexity(g["baseline"]["perplexity"]), count(g["targets"]), formats.percent(100 * g["share"]))
        for g in f.get("groups", [])
    ]  # fmt: skip
    headings = ("Words", "Effective context", "Perplexity with all context#", "Over#", "Share#")
    return Table(columns(*headings), tuple(rows))


def conditions(result: Result) -> Table:
    """Every condition of an experiment, of all targets and of each group of them, with its effect."""
    f = result.figures
    rows = [_row("all", c, f["unit"]) for c in f["conditions"]]
    for g in f.get("groups", []):
        rows += [_row(f"{g['by']}: {g['group']}", c, f["unit"]) for c in g["conditions"]]
    headings = ("Condition", "Words", "Perplexity#", f"Increase (nats per {measured_in(f)})#", "95% interval#",
                "Increase of perplexity#", "Deviation over models#", "Over#")  # fmt: skip
    return tables.without_empty_columns(Table(columns(*headings), tuple(rows)))


def _row(group: str, c: Record, unit: str) -> tuple[str, ...]:
    deviation = c.get("deviation")
    return (c["name"], group, formats.perplexity(c["perplexity"]), decimal(c["effect"], 3),
            f"{decimal(c['low'], 3)} to {decimal(c['high'], 3)}", formats.percent(c["effect_percent"]),
            decimal(deviation, 3) if isinstance(deviation, int | float) else MISSING,
            f"{count(c['targets'])} {plural(unit, c['targets'])}")  # fmt: skip
