"""Figures of an experiment from the losses of its targets, of one model or several, and the result that holds them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.examination_options import ExaminationSettings
from backstory.config.scores import bounded, perplexity
from backstory.context.bootstrap import (
    EffectiveContext,
    Interval,
    effective_context,
    over_seeds,
    paired_intervals,
    resampled_means,
)
from backstory.context.examination import Groups
from backstory.context.losses import LOSSES, Losses
from backstory.reports.sections.context_section import examination_plots
from backstory.reports.svg import FILES
from backstory.results.effective_context import ContextRecord, ThresholdContext
from backstory.results.examination_record import (
    EFFECTS,
    TRUNCATE,
    BaselineRecord,
    CacheEffect,
    EffectRecord,
    ExaminationFigures,
    ExaminedModel,
    GroupRecord,
    PicturedEffect,
    PicturedFigures,
    TruncationFigures,
    TruncationGroup,
)
from backstory.results.result_file import OtherFigures, Result, result_at, write_result
from backstory.storage.atomic import write_atomically
from backstory.storage.provenance import check_place
from backstory.storage.run_files import RESULT

# --- figures ---

THRESHOLD = 0.01


@dataclass(frozen=True)
class Effects:
    """The fields of `ExaminationFigures` that follow from the losses."""

    targets: int
    baseline: BaselineRecord
    conditions: tuple[Any, ...]
    """An EffectRecord each, of the experiment's own kind."""
    groups: tuple[Any, ...] = ()
    """A GroupRecord each."""
    effective_context: ThresholdContext | None = None
    """Of truncations alone."""

    def figures(self, settings: Mapping[str, Any]) -> ExaminationFigures[Any]:
        """Return the figures of an examination: these, and its fields of these names."""
        own = {name: value for name, value in vars(self).items() if value is not None}
        if self.effective_context is not None:
            return TruncationFigures(**settings, **own)
        return (PicturedFigures if "picture" in settings else ExaminationFigures)(**settings, **own)


@checked(seed=0)
def figures(models: Sequence[Losses], by: Sequence[str] = (), seed: int = 0) -> Effects:
    """Return the effects of the conditions on the targets: baseline, conditions, groups and effective context.

    For several models, examined on the same targets and conditions, return means with the deviation over the models. `by` names
    splits that the losses hold. Raises UserError.
    """
    if not models:
        raise UserError("models must be the losses of one or more, not none")
    _check_alike(models)
    first = models[0]
    if missing := next((name for name in by if name not in first.splits), None):
        raise UserError(f"the losses hold no split by {missing}; there are {', '.join(first.splits)}")
    groups = tuple(group for name in by for group in _groups(models, name, first.splits[name], seed))
    return replace(_effects(models, np.ones(len(first.positions), bool), seed), groups=groups)


def _kind(losses: Losses) -> type[EffectRecord]:
    """Return the type of record for the experiment's conditions; the general one if the losses name no experiment."""
    pictured = all("series" in condition for condition in losses.conditions)
    return EFFECTS.get(losses.settings.get("experiment", ""), PicturedEffect if pictured else EffectRecord)


def _check_alike(models: Sequence[Losses]) -> None:
    """Raise UserError unless the losses are of the same targets under the same conditions."""

    def settings(losses: Losses) -> tuple[Any, ...]:
        measured = ("dropped",)
        conditions = [{k: v for k, v in condition.items() if k not in measured} for condition in losses.conditions]
        return conditions, losses.baseline_context, losses.positions.tolist()

    first = models[0]
    for other in models[1:]:
        if settings(other) != settings(first):
            raise UserError(
                "the models were examined on other targets or under other conditions; use the same settings"
            )
        if not np.array_equal(first.targets, other.targets):
            raise UserError("the models were examined on other text; compare models of one corpus")


def _groups(models: Sequence[Losses], by: str, groups: Groups, seed: int) -> list[GroupRecord[Any]]:
    records = []
    for code, name in enumerate(groups.names):
        inside = groups.codes == code
        if inside.any():
            effects = _effects(models, inside, seed)
            fields: dict[str, Any] = {"by": by, "group": name, "share": effects.targets / len(inside)}
            fields |= {name: getattr(effects, name) for name in ("targets", "baseline", "conditions")}
            if effects.effective_context is None:
                records.append(GroupRecord(**fields))
            else:
                context = ContextRecord(**vars(effects.effective_context))
                records.append(TruncationGroup(**fields, effective_context=context))
    return records


def _effects(models: Sequence[Losses], inside: np.ndarray, seed: int) -> Effects:
    """Return baseline, conditions and effective context of the targets in a mask (N,) bool."""
    kind, several, count = _kind(models[0]), len(models) > 1, int(inside.sum())
    baselines = np.stack([m.baseline[inside] for m in models])
    nats = np.stack([m.nats[:, inside] for m in models])  # (models, C, n)
    effects = (nats - baselines[:, None]).mean(2)
    baseline, mean = baselines.mean(0), nats.mean(0)
    clusters = None if models[0].clusters is None else models[0].clusters[inside]
    differences = (mean - baseline).T
    resamples = resampled_means(differences, seed, clusters=clusters)
    intervals = paired_intervals(differences, seed, clusters, resamples)
    if several:
        intervals = [over_seeds(effects[:, i].tolist(), [one]) for i, one in enumerate(intervals)]
    conditions = []
    for i, (condition, interval) in enumerate(zip(models[0].conditions, intervals, strict=True)):
        values: dict[str, Any] = {**condition, "targets": count, **_level(mean[i]), "effect": interval.value}
        values |= {"low": interval.low, "high": interval.high, "effect_percent": _percent(interval)}
        if condition["method"] == "without-cache":
            values["hurt"] = float((nats[:, i] < baselines).mean())
        if several:
            values |= {"deviation": float(effects[:, i].std(ddof=1)), "effects": tuple(effects[:, i].tolist())}
        conditions.append(kind.of(values))
    deviation = float(baselines.mean(1).std(ddof=1)) if several else None
    level = BaselineRecord(context=models[0].baseline_context, **_level(baseline), deviation=deviation)
    used = None
    if models[0].conditions[0]["method"] == TRUNCATE:
        contexts = [c["context"] for c in models[0].conditions]
        same: dict[str, Any] = {"threshold": THRESHOLD, "seed": seed, "clusters": clusters}
        of_set = {"effects": intervals, "models": effects if several else None, "resamples": resamples}
        used = _context_record(effective_context(contexts, baseline, mean.T, **of_set, **same))
        if several:
            each = [effective_context(contexts, b, n.T, **same) for b, n in zip(baselines, nats, strict=True)]
            used = replace(used, models=tuple(one.context for one in each))
    return Effects(count, level, tuple(conditions), (), used)


def _context_record(used: EffectiveContext) -> ThresholdContext:
    """Return an effective context as results record it."""
    best: dict[str, Any] = {}
    if used.best is not None:
        effect = used.best.effect
        best = {"best_length": used.best.length, "best_effect": effect.value, "best_low": effect.low}
        best |= {"best_high": effect.high, "best_effect_percent": _percent(effect)}
    return ThresholdContext(
        context=used.context,
        low=used.low,
        high=used.high,
        threshold_percent=100 * THRESHOLD,
        more_context_hurts=used.best is not None,
        **best,
    )


def _percent(effect: Interval) -> float:
    """Return an effect in percent of perplexity, bounded so that it does not overflow."""
    return 100 * float(np.expm1(min(effect.value, 700)))


def _level(nats: np.ndarray) -> dict[str, float]:
    mean = float(nats.mean())
    return {"nats": mean, "perplexity": perplexity(mean)}


@checked(seed=0)
def regroup(
    folder: Path | str,
    by: Sequence[str] = (),
    labels: Mapping[str, tuple[np.ndarray, Sequence[str]]] | None = None,
    seed: int = 0,
) -> Effects:
    """Return the effects of a finished examination with its targets split in other ways; nothing is run again.

    `folder` holds `losses.npz`. `by` names splits that are saved there, or those of `labels`: a name with the group of each
    target (N,), in the order of the targets' positions, and the names of the groups. Raises UserError.
    """
    losses = Losses.load(Path(folder) / LOSSES)
    added = {name: Groups(np.asarray(codes, np.int16), tuple(names)) for name, (codes, names) in (labels or {}).items()}
    for name, groups in added.items():
        if groups.codes.shape != losses.positions.shape:
            raise UserError(
                f"the split {name} has {groups.codes.size:,} labels for {len(losses.positions):,} targets; give one for each"
            )
    return figures([replace(losses, splits={**losses.splits, **added})], by, seed)


# --- results ---


@dataclass(frozen=True, eq=False, repr=False)
class ExaminationResult(Result[ExaminationFigures[Any]]):
    """Result of an experiment on one model, or on a set of models that differ in their seed."""

    losses: tuple[Losses, ...] = ()
    """Losses of every target, by model."""

    @staticmethod
    def of(result: Result[Any], losses: Sequence[Losses]) -> "ExaminationResult":
        """Return a result with its losses."""
        return ExaminationResult(**vars(result), losses=tuple(losses))

    def table(self) -> str:
        """Return the conditions as lines for a person, and those of every group."""
        return "\n".join(table(self))

    @checked()
    def plot(self, path: Path | str) -> Path:
        """Draw the experiment as an SVG, PDF or PNG file, in the style of the reports; a second figure is `NAME-2` beside it.

        Raises UserError for a name with another ending, and where there is no plot of it: of experiments on words that came
        before, without the split `class`.
        """
        first = Path(path)
        if (ending := first.suffix[1:].lower()) not in FILES:
            kinds = f"{', '.join(FILES[:-1])} or {FILES[-1]}"
            raise UserError(
                f"a plot is written as {kinds}, and {first.name} is named otherwise; name it {first.stem}.svg"
            )
        plots = examination_plots(self)
        if not plots:
            raise UserError(f"there is no plot of {self.figures.experiment}; use .table(), or .figures")
        for number, plot in enumerate(plots, start=1):
            write_atomically(
                first if number == 1 else first.with_stem(f"{first.stem}-{number}"),
                plot.svg if ending == "svg" else plot.drawn(ending),
            )
        return first

    @checked()
    def save(self, folder: Path | str) -> Path:
        """Write result.json into a folder, and the losses: of several models as `losses-1.npz` and so on. Raises UserError."""
        folder = Path(folder)
        check_place(folder, "examination")
        for older in folder.glob("losses*.npz"):
            older.unlink()
        for number, losses in enumerate(self.losses, 1):
            losses.save(folder / (LOSSES if len(self.losses) == 1 else f"losses-{number}.npz"))
        write_result(folder, self.name, self.figures, self.provenance)
        return folder / RESULT


@checked()
def combine(models: Sequence[ExaminationResult]) -> ExaminationResult:
    """Combine examinations of several models on the same targets: means, with the deviation over the models.

    Raises UserError where they do not compare.
    """
    if not models:
        raise UserError("models must be one examination or more, not none")
    for model in models:
        if missing := _missing(model):
            raise UserError(f"the examination of {model.name} has no {missing}; examine again")
    first = models[0]
    for other in models[1:]:
        _check_comparable(first, other)
    by = list(dict.fromkeys(group.by for group in first.figures.groups))
    losses = [loss for model in models for loss in model.losses]
    origins = [model.provenance for model in models]
    named = [
        ExaminedModel(name=model.name, seed=model.provenance.seed, nats=model.figures.baseline.nats) for model in models
    ]
    effects = figures(losses, by, int(first.figures.seed or 0))
    combined = replace(first.figures, **{k: v for k, v in vars(effects).items() if v is not None}, models=tuple(named))
    origin = replace(
        origins[0],
        seconds=round(sum(one.seconds or 0.0 for one in origins), 1),
        taken_over=sum(one.taken_over or 0 for one in origins),
        **{key: [getattr(one, key) for one in origins] for key in ("seed", "weights", "weights_file")},
    )
    return ExaminationResult.of(
        write_result(None, _set_name([model.name for model in models]), combined, origin), losses
    )


def _missing(examination: ExaminationResult) -> str | None:
    """Return the first field that a set of models needs and this examination lacks: it is older, or of a model in memory."""
    figures, origin = examination.figures, examination.provenance
    needed = {
        "figures.reader": figures.reader,
        "figures.seed": figures.seed,
        "provenance.corpus": origin.corpus,
        "provenance.seconds": origin.seconds,
    }
    return next((name for name, value in needed.items() if value is None), None)


def _check_comparable(first: ExaminationResult, other: ExaminationResult) -> None:
    """Raise UserError unless two examinations have the same settings and the same text."""
    settings = [*ExaminationSettings().recorded(whole=True), "split", "reader", "unit"]
    differing = [key for key in settings if getattr(other.figures, key) != getattr(first.figures, key)]
    if _word_score(other.figures) != _word_score(first.figures):
        differing.append("word_score")
    if differing:
        raise UserError(f"the examinations differ in {differing[0]}; examine the models with the same settings")
    if first.corpus.fingerprint != other.corpus.fingerprint:
        raise UserError("the models were examined on other text; compare models of one corpus")


def _word_score(figures: ExaminationFigures[Any]) -> str | None:
    """Return how words of pieces were scored. Older results do not record it: it was always the plain sum."""
    return figures.word_score or ("sum" if figures.pieces_per_word else None)


def _set_name(names: Sequence[str]) -> str:
    """Return the name of a set of models: their common prefix, and their number."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = re.sub(r"[-_. ]*(seed)?[-_. ]*$", "", "".join(letters[0] for letters in alike))
    return f"{shared} ({len(names)} models)" if shared not in ("", "hf:") else " + ".join(names)


@checked()
def read_examination(folder: Path | str) -> ExaminationResult:
    """Return the saved examination of one model. Raises UserError."""
    path = Path(folder)
    losses, result = Losses.load(path / LOSSES), result_at(path / RESULT)
    if result.kind != ExaminationFigures.kind:
        raise UserError(f"{path / RESULT} is no examination; name the folder of one")
    if isinstance(result.figures, OtherFigures):  # an experiment from outside, without a picture
        record = ExaminationFigures[EffectRecord].read(result.figures.values, str(path / RESULT), "figures")
        result = replace(result, figures=record)
    return ExaminationResult.of(result, [losses])


# --- tables ---


def table(result: Result[ExaminationFigures[Any]]) -> list[str]:
    """Return a result as lines: its heading, every condition, and the effects in every group of a split."""
    f, baseline, unit = result.figures, result.figures.baseline, result.figures.counted_in
    reader = "" if f.read_by == "static" else f", {f.read_by} reader"
    batch = f" in a batch of {f.batch_size}" if f.batch_size > 1 else ""
    read = "all" if baseline.context is None else f"{baseline.context:,} {unit}s of"
    lines = [
        f"{result.name}, {f.split} split{reader}, {f.targets:,} targets; "
        f"with {read} context{batch} perplexity {bounded(baseline.perplexity, ',.2f')} per {f.unit}"
    ]
    if (unknown := f.unknown_among(f.targets)).unknown:
        lines[0] += f", {unknown.phrase('the targets')}"
    if f.models:
        lines.append(f"  means over {len(f.models)} models; +- is the standard deviation over them")
    if f.unknown_tag_share is not None:
        share = f"{f.unknown_tag_share:.1%}"
        lines.append(f"  tags: {f.tagger}; {share} of the words are unknown, neither content nor function")
    lines += _conditions(f.conditions, bool(f.models))
    if isinstance(f, TruncationFigures):
        words, within = f.context_in_words(), f"within {f.effective_context.threshold_percent:g}% of perplexity"
        answer = f"{words}, {within}" if f.effective_context.best is None else f"none; {words}"
        lines.append(f"  effective context: {answer}")
    if f.pieces_per_word:
        lines.append(f"  contexts are in words, of {f.pieces_per_word:.2f} pieces on average")
    if f.window:
        cut = (
            f"; the contexts of {f.cut_contexts:,} of {f.targets:,} targets were longer, and cut"
            if f.cut_contexts
            else ""
        )
        lines.append(f"  the model reads at most {f.window:,} {'pieces' if f.pieces_per_word else 'tokens'}{cut}")
    for by in dict.fromkeys(group.by for group in f.groups):
        lines += _split(by, [group for group in f.groups if group.by == by])
    return lines


def label(condition: EffectRecord) -> str:
    """Return the name of a condition in a table: of truncations the number of tokens."""
    return f"{condition.context:,}" if condition.method == TRUNCATE else condition.name


def _hurt(condition: EffectRecord) -> float | None:
    return condition.hurt if isinstance(condition, CacheEffect) else None


def _conditions(conditions: Sequence[EffectRecord], several: bool) -> list[str]:
    head = "context" if conditions[0].method == TRUNCATE else "condition"
    width = max(len(head) + 1, *(len(label(c)) for c in conditions))
    deviation = f"  {'+-':>7}" if several else ""
    lines = [f"  {head:>{width}}  {'perplexity':>10}  {'effect, nats':>12}{deviation}  {'percent':>8}  95% interval"]
    for c in conditions:
        spread = f"  {c.deviation:>7.4f}" if several else ""
        hurt = "" if _hurt(c) is None else f"; the cache makes {_hurt(c):.1%} of the targets worse"
        lines.append(
            f"  {label(c):>{width}}  {bounded(c.perplexity, ',.2f'):>10}  {c.effect:>+12.4f}{spread}"
            f"  {bounded(c.effect_percent, '+.1f'):>7}%"
            f"  {c.low:+.4f} to {c.high:+.4f}{hurt}"
        )
    return lines


def _split(by: str, groups: Sequence[GroupRecord[Any]]) -> list[str]:
    """Return the effects in the groups of a split as lines, a column for each."""
    names = [label(c) for c in groups[0].conditions]
    left = max(len("share of targets"), *map(len, names))
    widths = [max(9, len(group.group)) for group in groups]

    def line(name: str, cells: Sequence[str]) -> str:
        shown = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"  {name:>{left}}{shown}".rstrip()

    lines = [f"  by {by}, effects in nats:", line("", [group.group for group in groups])]
    lines.append(line("share of targets", [f"{group.share:.1%}" for group in groups]))
    lines.append(line("perplexity", [bounded(group.baseline.perplexity, ",.2f") for group in groups]))
    for i, name in enumerate(names):
        lines.append(line(name, [f"{group.conditions[i].effect:+.4f}" for group in groups]))
    if _hurt(groups[0].conditions[0]) is not None:
        lines.append(line("cache hurts", [f"{_hurt(group.conditions[0]):.1%}" for group in groups]))
    return lines
