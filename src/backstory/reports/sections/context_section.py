"""Experiments on context in a report: a figure for each question, and tables of every condition."""

from collections.abc import Callable, Iterator, Sequence

from backstory.reports import document as pieces
from backstory.reports.document import Piece, Section, of_kind
from backstory.reports.phrases import Examined, counted_in, published_context, text_and_unit
from backstory.reports.sections import context_plots as plots
from backstory.reports.sections import context_sentences as sentences
from backstory.reports.sections.context_sentences import Examinations, examined_models, name_of
from backstory.reports.sections.figures_section import unknown_cell
from backstory.reports.svg import Plot
from backstory.reports.tables import Table, columns, without_empty_columns
from backstory.results import ExaminationFigures, Figures, Result, RunResults, TruncationFigures
from backstory.results.examination_record import (
    CACHE,
    EXPERIMENTS,
    TRUNCATE,
    EffectRecord,
    PicturedFigures,
    conditions_with,
)
from backstory.results.published_values import Published
from backstory.utils import formats
from backstory.utils.errors import plural
from backstory.utils.formats import MISSING, count, decimal, quantity

PANELS: tuple[Callable[[Examinations, Published | None], plots.Panel | None], ...] = (
    plots.frequency,
    plots.speech,
    plots.local_order,
    plots.global_order,
    plots.dropped,
    plots.copied,
    plots.replaced,
    plots.cached,
)
"""Figures 1c, 1d, 2a, 2b, 3, 4a, 4b and 7 of the paper, for the experiments that were run."""
_SENTENCES: dict[str, sentences.Sentence] = {
    "drop": sentences.dropped,
    "drop-target": sentences.copied,
    "drop-distant": sentences.copied,
    "replace-target": sentences.replaced,
    "cache": sentences.cached,
}


def examination_plots(result: Result[Figures], published: Published | None = None) -> list[Plot]:
    """Return the figures of one examination; empty for an experiment without a picture."""
    if not isinstance(result.figures, ExaminationFigures):
        return []
    examined = Examinations(result.name, {result.figures.experiment: result})  # type: ignore[dict-item]
    truncations = [(result.name, examined.truncation)] if examined.truncation else []
    curves = plots.context_curves(truncations, "context", published)
    panels = [draw(examined, published) for draw in PANELS] + [plots.pictured(examined.first)]
    drawn = [plots.beside([("", panel)], f"figure{i}") for i, panel in enumerate(panels) if panel]
    return [curves, *drawn] if curves else drawn


def examination_sentences(result: Result[Figures], published: Published) -> list[str]:
    """Return the findings of one examination with the published figures; empty for a plugin's plain experiment."""
    f = result.figures
    if isinstance(f, PicturedFigures):
        return [str(sentences.pictured(f))]
    if not isinstance(f, ExaminationFigures) or f.experiment not in EXPERIMENTS:
        return []
    examined = Examinations(result.name, {f.experiment: result})  # type: ignore[dict-item]
    if f.experiment == TRUNCATE:
        described = [sentences.frequency] if f.groups_by("frequency") else []
        described += [sentences.speech] if f.groups_by("tag") else []
    elif f.experiment in sentences.CHANGES:
        described = [sentences.local_order] if conditions_with(f.conditions, span="local") else []
        described += [sentences.global_order] if conditions_with(f.conditions, span="global") else []
    else:
        described = [_SENTENCES[f.experiment]]
    printed = published_context(examined.corpus, published).strip() if f.experiment == TRUNCATE else ""
    findings = (str(describe(examined, published)) for describe in described)
    return [*filter(None, [printed]), *findings, sentences.comparability(examined, published)]


def _pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield a figure with 95% intervals for each question about context, and tables of all conditions."""
    yield pieces.Note(loss_note([result.figures for run in runs for result in run.of(ExaminationFigures)]))
    yield from _truncations(runs, published)
    models = examined_models(runs)
    yield from _panels(models, published)
    for examined in models:
        yield from _conditions(examined)
    if published:
        notes = [
            pieces.Note(f"{examined.name}, {_part(examined.first)}. {sentences.comparability(examined, published)}")
            for examined in models
            if any(draw(examined, published) for draw in PANELS)
        ]
        if len(notes) > 1:
            yield pieces.details("How this compares with the published figures", *notes)
        yield from notes if len(notes) == 1 else ()


SECTION = Section("Context", of_kind(ExaminationFigures), _pieces)


def _truncations(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield figures 1a and 1b, one for all truncation experiments with the same split, unit and threshold."""
    by_axes: dict[tuple[str, str, float], list[Examined]] = {}
    for run in runs:
        for result in run.of(TruncationFigures):
            f = result.figures
            key = (f.split, f.unit, f.effective_context.threshold_percent)
            # The same model with a reader that remembers gets a name of its own.
            by_axes.setdefault(key, []).append((name_of(run.name, result), result))  # type: ignore[arg-type]
    for number, group in enumerate(by_axes.values(), start=1):
        results = [result for _, result in group]
        yield pieces.figure(plots.context_curves(group, f"context{number}", published), results)
        for i, alike in enumerate(_same_targets(group)):
            plot = plots.levels(alike, published, f"levels{number}-{i}")
            yield pieces.figure(plot, (result for _, result in alike))
        yield from pieces.compact(contexts_table(group), "Effective context")
        for name, result in group:
            yield pieces.collapsed(f"Every context length: {name}, {_part(result)}", lengths_table(result.figures))
        for name, result in group:
            about = about_pieces(result.figures)
            yield pieces.Note(about and f"{name}: {about}")


def _same_targets(group: Sequence[Examined]) -> list[list[Examined]]:
    """Group the experiments whose perplexities compare: the same targets of one text in one vocabulary."""
    alike: dict[tuple[object, ...], list[Examined]] = {}
    for name, result in group:
        f = result.figures
        alike.setdefault((*text_and_unit(result), f.targets, f.maximum_context, f.seed), []).append((name, result))
    return list(alike.values())


def _panels(models: Sequence[Examinations], published: Published | None) -> Iterator[Piece | None]:
    """Yield a figure for each experiment, with a panel for each model on the same axes."""
    alike: dict[tuple[str, ...], list[tuple[str, plots.Panel]]] = {}
    of_paper = [(examined, draw(examined, published)) for draw in PANELS for examined in models]
    own = [(examined, plots.pictured(result)) for examined in models for result in examined.results.values()]
    for examined, panel in of_paper + own:
        if panel is not None:
            key = (panel.title, panel.across, panel.up, examined.first.figures.split)
            alike.setdefault(key, []).append((examined.name, panel))
    for number, panels in enumerate(alike.values(), start=1):
        yield pieces.Heading(panels[0][1].title)
        results = (result for _, panel in panels for result in panel.results)
        yield pieces.figure(plots.beside(panels, f"examined{number}"), results)


def _part(result: Result[ExaminationFigures]) -> str:
    return result.corpus.part(result.figures.split)


def _conditions(examined: Examinations) -> Iterator[Piece | None]:
    """Yield every condition of the experiments on one model."""
    f = examined.first.figures
    if TRUNCATE not in examined.results:  # else it stands with that
        yield pieces.Note(about_pieces(f))
    for experiment, result in examined.results.items():
        truncation = isinstance(result.figures, TruncationFigures)
        about = "Effective context" if truncation else f"Every condition of {experiment}"
        table = groups_table(result.figures) if truncation else conditions_table(result.figures)  # type: ignore[arg-type]
        yield pieces.collapsed(f"{about}: {examined.name}, {_part(examined.first)}", table)


def about_pieces(figures: ExaminationFigures) -> str:
    """Return a note on pieces of words and on contexts that exceed the model's window; empty for plain tokens."""
    f, parts = figures, []
    if f.pieces_per_word:
        parts.append(f"Words have {f.pieces_per_word:.2f} pieces on average")
    elif f.unit == "piece":
        parts.append("Pieces do not hold all of the text, so they are not joined into words")
    scores = {"corrected": "corrected for where they begin and end", "sum": "the plain sum over their pieces"}
    if f.word_score:
        parts.append(f"their scores are {scores[f.word_score]}")
    if f.window:
        parts.append(f"the model reads at most {count(f.window)} {'pieces' if parts else plural(f.unit, 2)}")
    if f.cut_contexts:
        targets = quantity(f.cut_contexts, "target")
        parts.append(f"contexts of {targets} were longer, and cut")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def loss_note(examinations: Sequence[ExaminationFigures]) -> str:
    """Return a note on the axis of the figures: what an added loss is, and over which context."""
    unit = counted_in(examinations)
    parts = []
    for cut, change in ((True, "cut"), (False, "changed in another way")):
        contexts = {f.baseline.context for f in examinations if isinstance(f, TruncationFigures) == cut
                    and f.experiment != CACHE}  # fmt: skip
        if len(contexts) == 1 and all(f.batch_size == 1 for f in examinations):  # rows of a batch begin afresh
            [context] = contexts
            whole = f"all {unit}s before the target" if context is None else f"the nearest {count(context)} {unit}s"
            parts.append(f"{whole} where it is {change}")
    unchanged = f" The unchanged context is {', and '.join(parts)}." if parts else ""
    return (
        f"Added loss: how much higher the mean negative log-likelihood of a {unit} is than with the unchanged context. "
        f"0.01 nats are 1% of perplexity, and 0.1 nats are 10.5%.{unchanged}"
    )


# --- tables ---


def contexts_table(examinations: Sequence[Examined]) -> Table:
    """Return the effective context of each truncation experiment (name, result)."""
    rows = []
    for name, result in examinations:
        f = result.figures
        rows.append((name, f.context_in_words(), f"{f.effective_context.threshold_percent:g}%",
                     f"{formats.perplexity(f.baseline.perplexity)} per {f.unit}", _whole_context(f),
                     quantity(f.targets, f.unit), unknown_cell(f, f.targets), result.corpus.text(f.split)))  # fmt: skip
    heads = columns("Run", "Effective context", "Threshold#", "Whole-context perplexity#", "Whole context#",
                    "Over#", "<unk>#", "Text")  # fmt: skip
    return without_empty_columns(Table(heads, tuple(rows)))


def _whole_context(figures: ExaminationFigures) -> str:
    """Return the context of the baseline."""
    if figures.baseline.context is not None:
        return quantity(figures.baseline.context, figures.counted_in)
    if figures.batch_size > 1:
        return f"at least {count(figures.maximum_context)} (read in a batch of {figures.batch_size})"
    return "all before it"


def lengths_table(figures: TruncationFigures) -> Table:
    """Return the effect of each context length of a truncation experiment, with its 95% interval."""
    f = figures
    targets = quantity(f.targets, f.unit)
    rows = [
        (quantity(c.context, f.counted_in), formats.perplexity(c.perplexity), *_effect(c), targets)
        for c in f.conditions
    ]
    if f.baseline.context is None:  # else it is one of the conditions
        rows.append(("full", formats.perplexity(f.baseline.perplexity), MISSING, MISSING, MISSING, targets))
    return Table(columns("Context", f"Perplexity per {f.unit}#", f"Increase (nats per {f.counted_in})#", "95% interval#",
                         "Increase of perplexity#", "Over#"), tuple(rows))  # fmt: skip


def _effect(c: EffectRecord) -> tuple[str, str, str]:
    interval = MISSING if c.interval is None else " to ".join(decimal(end, 3) for end in c.interval)
    return decimal(c.effect, 3), interval, formats.percent(c.effect_percent)


def groups_table(figures: TruncationFigures) -> Table:
    """Return the effective context of each group of targets in a truncation experiment."""
    rows = [
        (f"{g.by}: {g.group}", figures.context_in_words(g), formats.perplexity(g.baseline.perplexity),
         count(g.targets), formats.percent(100 * g.share))
        for g in figures.groups
    ]  # fmt: skip
    heads = columns("Words", "Effective context", "Perplexity with all context#", "Over#", "Share#")
    return Table(heads, tuple(rows))


def conditions_table(figures: ExaminationFigures) -> Table:
    """Return the effect of every condition of an experiment, for all targets and for each group."""
    f = figures
    named = [("all", c) for c in f.conditions] + [(f"{g.by}: {g.group}", c) for g in f.groups for c in g.conditions]
    rows = [
        (
            c.name,
            group,
            formats.perplexity(c.perplexity),
            *_effect(c),
            decimal(c.deviation, 3),
            quantity(c.targets or 0, f.unit),
        )
        for group, c in named
    ]
    heads = columns("Condition", "Words", "Perplexity#", f"Increase (nats per {f.counted_in})#", "95% interval#",
                    "Increase of perplexity#", "Deviation over models#", "Over#")  # fmt: skip
    return without_empty_columns(Table(heads, tuple(rows)))
