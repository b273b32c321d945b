"""An examination as lines of text: its heading, every condition, and the effects in every group of a split."""

from collections.abc import Sequence
from typing import Any

from backstory.results.common import OWN_TEXT
from backstory.results.examination_record import (
    TRUNCATE,
    CacheEffect,
    EffectRecord,
    ExaminationFigures,
    GroupRecord,
    TruncationFigures,
)
from backstory.results.result_file import Result
from backstory.utils.formats import MISSING, signed, signed_percent
from backstory.utils.scores import bounded
from backstory.utils.terminal import TABLE_WIDTH


def table(result: Result[ExaminationFigures[Any]], width: int = TABLE_WIDTH) -> list[str]:
    """Return a result as lines: its heading, every condition, and the effects in every group of a split.

    Columns of a table that do not fit into the `width` follow below.
    """
    f, baseline, unit = result.figures, result.figures.baseline, result.figures.counted_in
    reader = "" if f.read_by == "static" else f", {f.read_by} reader"
    batch = f" in a batch of {f.batch_size}" if f.batch_size > 1 else ""
    read = "all" if baseline.context is None else f"{baseline.context:,} {unit}s of"
    text = result.corpus.title() if f.split == OWN_TEXT else f"{f.split} split"
    lines = [
        f"{result.name}, {text}{reader}, {f.targets:,} targets; "
        f"with {read} context{batch} perplexity {bounded(baseline.perplexity, ',.2f')} per {f.unit}"
    ]
    if (unknown := f.unknown_among(f.targets)).unknown:
        lines[0] += f", {unknown.phrase('the targets')}"
    if f.models:
        lines.append(f"  means over {len(f.models)} models; +- is the standard deviation over them")
    if f.unknown_tag_share is not None:
        share = f"{f.unknown_tag_share:.1%}"
        lines.append(f"  tags: {f.tagger}; {share} of the words are <unk>, neither content nor function words")
    lines += _conditions(f.conditions, bool(f.models), width)
    if isinstance(f, TruncationFigures):
        words, within = f.context_in_words(), f"within {f.effective_context.threshold_percent:g}% of perplexity"
        answer = f"{words}, {within}" if f.effective_context.best is None else f"none; {words}"
        lines.append(f"  effective context: {answer}")
    if f.pieces_per_word:
        lines.append(f"  contexts are in words, of {f.pieces_per_word:.2f} pieces on average")
    elif f.unit == "piece":
        lines.append("  targets and contexts are in pieces: these do not hold all of the text, so no words are joined")
    if f.window:
        cut = (
            f"; the contexts of {f.cut_contexts:,} of {f.targets:,} targets were longer, and cut"
            if f.cut_contexts
            else ""
        )
        lines.append(f"  the model reads at most {f.window:,} {'pieces' if f.pieces_per_word else 'tokens'}{cut}")
    for by in dict.fromkeys(group.by for group in f.groups):
        lines += _split(by, [group for group in f.groups if group.by == by], width)
    return lines


def label(condition: EffectRecord) -> str:
    """Return the name of a condition in a table: of truncations the number of tokens."""
    return f"{condition.context:,}" if condition.method == TRUNCATE else condition.name


def _hurt(condition: EffectRecord) -> float | None:
    return condition.hurt if isinstance(condition, CacheEffect) else None


def _conditions(conditions: Sequence[EffectRecord], several: bool, width: int) -> list[str]:
    """Return a line for each condition; where these are too wide, first the perplexities and then the effects."""
    head = "context" if conditions[0].method == TRUNCATE else "condition"
    left = max(len(head) + 1, *(len(label(c)) for c in conditions))
    names = [f"{name:>{left}}" for name in (head, *map(label, conditions))]
    perplexity = ["perplexity", *(f"{bounded(c.perplexity, ',.2f'):>10}" for c in conditions)]
    effect = ["effect, nats", *(f"{signed(c.effect, 4):>12}" for c in conditions)]
    spread = [f"{'+-':>7}", *(f"{c.deviation:>7.4f}" for c in conditions)] if several else None
    percent = [f"{'percent':>8}", *(f"{signed_percent(c.effect_percent):>8}" for c in conditions)]
    interval = ["95% interval", *map(_interval, conditions)]

    def lines(*columns: list[str] | None) -> list[str]:
        return [f"  {'  '.join(cells)}" for cells in zip(names, *filter(None, columns), strict=True)]

    shown = lines(perplexity, effect, spread, percent, interval)
    if max(map(len, shown)) > width:
        shown = [*lines(perplexity, percent), *lines(effect, spread, interval)]
    hurts = [hurt for c in conditions if (hurt := _hurt(c)) is not None]
    return shown + [f"  the cache makes {hurt:.1%} of the targets worse" for hurt in hurts]


def _interval(condition: EffectRecord) -> str:
    return MISSING if condition.interval is None else " to ".join(signed(end, 4) for end in condition.interval)


def _split(by: str, groups: Sequence[GroupRecord[Any]], width: int) -> list[str]:
    """Return the effects in the groups of a split as lines, a column for each."""
    names = [label(c) for c in groups[0].conditions]
    left = max(len("share of targets"), *map(len, names))
    parts: list[list[GroupRecord[Any]]] = []
    for group in groups:
        if not parts or left + 2 + sum(2 + _width(one) for one in [*parts[-1], group]) > width:
            parts.append([])
        parts[-1].append(group)
    return [f"  by {by}, effects in nats:", *(line for part in parts for line in _columns(part, names, left))]


def _width(group: GroupRecord[Any]) -> int:
    return max(9, len(group.group))


def _columns(groups: Sequence[GroupRecord[Any]], names: Sequence[str], left: int) -> list[str]:
    """Return the effects in some groups, after the names of the conditions."""

    def line(name: str, cells: Sequence[str]) -> str:
        shown = "".join(f"  {cell:>{_width(group)}}" for cell, group in zip(cells, groups, strict=True))
        return f"  {name:>{left}}{shown}".rstrip()

    lines = [line("", [group.group for group in groups])]
    lines.append(line("share of targets", [f"{group.share:.1%}" for group in groups]))
    lines.append(line("perplexity", [bounded(group.baseline.perplexity, ",.2f") for group in groups]))
    for i, name in enumerate(names):
        lines.append(line(name, [signed(group.conditions[i].effect, 4) for group in groups]))
    if _hurt(groups[0].conditions[0]) is not None:
        lines.append(line("cache hurts", [f"{_hurt(group.conditions[0]):.1%}" for group in groups]))
    return lines
