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
from backstory.config.options import ExaminationSettings
from backstory.config.scores import UnknownShare, perplexity
from backstory.config.small_file import read_small
from backstory.context.bootstrap import EffectiveContext, Interval, effective_context, over_seeds, paired_intervals
from backstory.context.examination import Groups
from backstory.context.losses import LOSSES, Losses
from backstory.reports.sections.context_section import examination_plots
from backstory.results.result_file import figures_from, result_of, write_result
from backstory.results.validation import Amount, Count, Json, Name, Record, WrongValue, convert
from backstory.storage.atomic import write_atomically
from backstory.storage.documents import parse
from backstory.storage.provenance import RESULT, check_place

# --- figures ---

THRESHOLD = 0.01


@checked(seed=0)
def figures(models: Sequence[Losses], by: Sequence[str] = (), seed: int = 0) -> dict[str, Any]:
    """Return the fields `targets`, `baseline`, `conditions`, `groups` and `effective_context` of a result (docs/results.md).

    Of several models, which had the same targets and conditions: means with the deviation over the models. `by` names splits
    that the losses hold. Raises UserError.
    """
    if not models:
        raise UserError("models must be the losses of one or more, not none")
    _check_alike(models)
    first = models[0]
    if missing := next((name for name in by if name not in first.splits), None):
        raise UserError(f"the losses hold no split by {missing}; there are {', '.join(first.splits)}")
    return {
        "targets": len(first.positions),
        **_figures_of(models, np.ones(len(first.positions), bool), seed),
        "groups": [group for name in by for group in _groups(models, name, first.splits[name], seed)],
    }


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


def _groups(models: Sequence[Losses], by: str, groups: Groups, seed: int) -> list[dict[str, Any]]:
    records = []
    for code, name in enumerate(groups.names):
        inside = groups.codes == code
        if count := int(inside.sum()):
            head = {"by": by, "group": name, "targets": count, "share": count / len(inside)}
            records.append(head | _figures_of(models, inside, seed))
    return records


def _figures_of(models: Sequence[Losses], inside: np.ndarray, seed: int) -> dict[str, Any]:
    """Return baseline, conditions and effective context of the targets in a mask (N,) bool."""
    baselines = np.stack([m.baseline[inside] for m in models])
    nats = np.stack([m.nats[:, inside] for m in models])  # (models, C, n)
    effects = (nats - baselines[:, None]).mean(2)
    baseline, mean = baselines.mean(0), nats.mean(0)
    clusters = None if models[0].clusters is None else models[0].clusters[inside]
    intervals = paired_intervals((mean - baseline).T, seed, clusters)
    if len(models) > 1:
        intervals = [over_seeds(effects[:, i].tolist(), [one]) for i, one in enumerate(intervals)]
    conditions = []
    for i, (condition, interval) in enumerate(zip(models[0].conditions, intervals, strict=True)):
        record = {**condition, "targets": int(inside.sum()), **_level(mean[i]), "effect": interval.value}
        record |= {"low": interval.low, "high": interval.high, "effect_percent": _percent(interval)}
        if condition["method"] == "without-cache":
            record["hurt"] = float((nats[:, i] < baselines).mean())
        if len(models) > 1:
            record |= {"deviation": float(effects[:, i].std(ddof=1)), "effects": effects[:, i].tolist()}
        conditions.append(record)
    level = {"context": models[0].baseline_context, **_level(baseline)}
    if len(models) > 1:
        level["deviation"] = float(baselines.mean(1).std(ddof=1))
    record = {"baseline": level, "conditions": conditions}
    if models[0].conditions[0]["method"] == "truncate":
        contexts = [c["context"] for c in models[0].conditions]
        same: dict[str, Any] = {"threshold": THRESHOLD, "seed": seed, "clusters": clusters}
        used = _context_record(effective_context(contexts, baseline, mean.T, effects=intervals, **same))
        if len(models) > 1:
            each = [effective_context(contexts, b, n.T, **same) for b, n in zip(baselines, nats, strict=True)]
            used["models"] = [one.context for one in each]
        record["effective_context"] = used
    return record


def _context_record(used: EffectiveContext) -> dict[str, Any]:
    """Return an effective context as results record it (docs/results.md)."""
    record: dict[str, Any] = {"context": used.context, "low": used.low, "high": used.high}
    record |= {"threshold_percent": 100 * THRESHOLD, "more_context_hurts": used.best is not None}
    if used.best is not None:
        effect = used.best.effect
        record |= {"best_length": used.best.length, "best_effect": effect.value}
        record |= {"best_low": effect.low, "best_high": effect.high}
        record["best_effect_percent"] = _percent(effect)
    return record


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
) -> dict[str, Any]:
    """Return the figures of a finished examination with its targets split in other ways; nothing is run again.

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


@dataclass(frozen=True, kw_only=True)
class _Group(Record):
    by: Name


@dataclass(frozen=True, kw_only=True)
class _Figures(Record):
    reader: Name
    seed: Count
    groups: tuple[_Group, ...]


@dataclass(frozen=True, kw_only=True)
class _Provenance(Record):
    corpus: Json
    seed: Count
    seconds: Amount


@dataclass(frozen=True, kw_only=True)
class _Combined(Record):
    """Fields of an examination that a set of models needs, beside its losses."""

    figures: _Figures
    provenance: _Provenance


@dataclass(frozen=True, eq=False)
class ExaminationResult:
    """Result of an experiment on one model, or on a set of models that differ in their seed."""

    result: dict[str, Any]
    """The content of result.json (docs/results.md)."""
    losses: tuple[Losses, ...]
    """Losses of every target, by model."""

    @property
    def figures(self) -> dict[str, Any]:
        """Return the measured figures."""
        return self.result["figures"]

    def table(self) -> str:
        """Return the conditions as lines for a person, and those of every group."""
        return "\n".join(table(self.result))

    @checked()
    def plot(self, path: Path | str) -> Path:
        """Draw the experiment as an SVG file, in the style of the reports; a second figure is `NAME-2.svg` beside it.

        Raises UserError for a name that is not one of SVG files, and where there is no plot of it: of experiments on words that
        came before, without the split `class`.
        """
        first = Path(path)
        if first.suffix != ".svg":
            raise UserError(f"a plot is written as SVG, and {first} is named otherwise; name it {first.stem}.svg")
        plots = examination_plots(result_of(self.result, "the result"))
        if not plots:
            raise UserError(f"there is no plot of {self.figures['experiment']}; use .table(), or .figures")
        for number, plot in enumerate(plots, start=1):
            write_atomically(first if number == 1 else first.with_stem(f"{first.stem}-{number}"), plot.svg)
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
        write_result(folder, "examination", self.result["name"], self.figures, self.result["provenance"])
        return folder / RESULT


@checked()
def combine(models: Sequence[ExaminationResult]) -> ExaminationResult:
    """Combine examinations of several models on the same targets: means, with the deviation over the models.

    Raises UserError where they do not compare.
    """
    if not models:
        raise UserError("models must be one examination or more, not none")
    for model in models:
        try:
            convert(_Combined, model.result, "")
        except WrongValue as wrong:
            name = model.result.get("name")
            raise UserError(f"the examination of {name} has no {wrong.path}; examine again") from None
    first = models[0]
    for other in models[1:]:
        _check_comparable(first, other)
    by = list(dict.fromkeys(group["by"] for group in first.figures["groups"]))
    losses = tuple(loss for model in models for loss in model.losses)
    origins = [model.result["provenance"] for model in models]
    combined = {
        **first.figures,
        **figures(losses, by, first.figures["seed"]),
        "models": [
            {"name": model.result["name"], "seed": origin["seed"], "nats": model.figures["baseline"]["nats"]}
            for model, origin in zip(models, origins, strict=True)
        ],
    }
    origin = {
        **origins[0],
        "seconds": round(sum(one["seconds"] for one in origins), 1),
        "taken_over": sum(one.get("taken_over", 0) for one in origins),
        **{key: [one.get(key) for one in origins] for key in ("seed", "weights", "weights_file")},
    }
    name = _set_name([model.result["name"] for model in models])
    return ExaminationResult(write_result(None, "examination", name, combined, origin), losses)


def _check_comparable(first: ExaminationResult, other: ExaminationResult) -> None:
    """Raise UserError unless two examinations have the same settings and the same text."""
    settings = [*ExaminationSettings().recorded(whole=True), "split", "reader", "unit"]
    differing = [key for key in settings if other.figures.get(key, 1) != first.figures.get(key, 1)]
    if _word_score(other.figures) != _word_score(first.figures):
        differing.append("word_score")
    if differing:
        raise UserError(f"the examinations differ in {differing[0]}; examine the models with the same settings")
    corpora = [model.result["provenance"]["corpus"].get("fingerprint") for model in (first, other)]
    if corpora[0] != corpora[1]:
        raise UserError("the models were examined on other text; compare models of one corpus")


def _word_score(figures: Mapping[str, Any]) -> str | None:
    """Return how words of pieces were scored: older results do not say so, as it was always the plain sum."""
    return figures.get("word_score") or ("sum" if figures.get("pieces_per_word") else None)


def _set_name(names: Sequence[str]) -> str:
    """Return the name of a set of models: what their names begin with, and how many they are."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    shared = re.sub(r"[-_. ]*(seed)?[-_. ]*$", "", "".join(letters[0] for letters in alike))
    return f"{shared} ({len(names)} models)" if shared else " + ".join(names)


@checked()
def read_examination(folder: Path | str) -> ExaminationResult:
    """Return an examination of one model that was written before. Raises UserError."""
    path = Path(folder)
    losses = Losses.load(path / LOSSES)
    try:
        result = parse(read_small(path / RESULT, inside=path))
    except (OSError, ValueError):
        raise UserError(f"{path / RESULT} is absent or damaged; examine again") from None
    if not isinstance(result, dict) or result.get("kind") != "examination":
        raise UserError(f"{path / RESULT} is no examination; name the folder of one")
    result_of(result, str(path / RESULT))
    return ExaminationResult(result, (losses,))


# --- tables ---


def table(result: dict[str, Any]) -> list[str]:
    """Return a result as lines: its heading, every condition, and the effects in every group of a split."""
    figures = result["figures"]
    models, baseline = figures.get("models"), figures["baseline"]
    reader = "" if figures["reader"] == "static" else f", {figures['reader']} reader"
    record: Any = figures_from("examination", figures)
    unit = getattr(record, "counted_in", figures["unit"])  # a plugin's experiment without a picture has no record
    batch = f" in a batch of {figures['batch_size']}" if figures.get("batch_size", 1) > 1 else ""
    read = "all" if baseline["context"] is None else f"{baseline['context']:,} {unit}s of"
    lines = [
        f"{result['name']}, {figures['split']} split{reader}, {figures['targets']:,} targets; "
        f"with {read} context{batch} perplexity {baseline['perplexity']:,.2f} per {figures['unit']}"
    ]
    if (unknown := UnknownShare.of(figures, figures["targets"])).unknown:
        lines[0] += f", {unknown.phrase('the targets')}"
    if models:
        lines.append(f"  means over {len(models)} models; +- is the standard deviation over them")
    if figures.get("unknown_tag_share") is not None:
        share = f"{figures['unknown_tag_share']:.1%}"
        lines.append(f"  tags: {figures['tagger']}; {share} of the words are unknown, neither content nor function")
    lines += _conditions(figures["conditions"], bool(models))
    if "effective_context" in figures:
        within = f"within {figures['effective_context']['threshold_percent']:g}% of perplexity"
        words = record.context_in_words()
        answer = f"{words}, {within}" if record.effective_context.best is None else f"none; {words}"
        lines.append(f"  effective context: {answer}")
    if figures.get("pieces_per_word"):
        lines.append(f"  contexts are in words, of {figures['pieces_per_word']:.2f} pieces on average")
    if figures.get("window"):
        pieces = "pieces" if figures.get("pieces_per_word") else "tokens"
        lines.append(f"  the model reads at most {figures['window']:,} {pieces}")
    for by in dict.fromkeys(group["by"] for group in figures["groups"]):
        lines += _split(by, [group for group in figures["groups"] if group["by"] == by])
    return lines


def label(condition: dict[str, Any]) -> str:
    """Return the name of a condition in a table: of truncations the number of tokens."""
    return f"{condition['context']:,}" if condition["method"] == "truncate" else condition["name"]


def _conditions(conditions: Sequence[dict[str, Any]], several: bool) -> list[str]:
    head = "context" if conditions[0]["method"] == "truncate" else "condition"
    width = max(len(head) + 1, *(len(label(c)) for c in conditions))
    deviation = f"  {'+-':>7}" if several else ""
    lines = [f"  {head:>{width}}  {'perplexity':>10}  {'effect, nats':>12}{deviation}  {'percent':>8}  95% interval"]
    for c in conditions:
        spread = f"  {c['deviation']:>7.4f}" if several else ""
        hurt = f"; the cache makes {c['hurt']:.1%} of the targets worse" if "hurt" in c else ""
        lines.append(
            f"  {label(c):>{width}}  {c['perplexity']:>10,.2f}  {c['effect']:>+12.4f}{spread}  {c['effect_percent']:>+7.1f}%"
            f"  {c['low']:+.4f} to {c['high']:+.4f}{hurt}"
        )
    return lines


def _split(by: str, groups: Sequence[dict[str, Any]]) -> list[str]:
    """Return the effects in the groups of a split as lines, a column for each."""
    names = [label(c) for c in groups[0]["conditions"]]
    left = max(len("share of targets"), *map(len, names))
    widths = [max(9, len(group["group"])) for group in groups]

    def line(name: str, cells: Sequence[str]) -> str:
        shown = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"  {name:>{left}}{shown}".rstrip()

    lines = [f"  by {by}, effects in nats:", line("", [group["group"] for group in groups])]
    lines.append(line("share of targets", [f"{group['share']:.1%}" for group in groups]))
    lines.append(line("perplexity", [f"{group['baseline']['perplexity']:,.2f}" for group in groups]))
    for i, name in enumerate(names):
        lines.append(line(name, [f"{group['conditions'][i]['effect']:+.4f}" for group in groups]))
    if "hurt" in groups[0]["conditions"][0]:
        lines.append(line("cache hurts", [f"{group['conditions'][0]['hurt']:.1%}" for group in groups]))
    return lines
