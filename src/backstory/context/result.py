"""Results of examinations in Python: figures, a table, a plot and files; several models combined into a set."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.options import ExaminationSettings
from backstory.config.scores import UnknownShare
from backstory.config.small_file import read_small
from backstory.context.figures import figures as figures_of
from backstory.context.losses import LOSSES, Losses
from backstory.results.result_file import figures_from, result_of, write_result
from backstory.results.validation import Amount, Count, Json, Name, Record, WrongValue, convert
from backstory.storage.documents import parse
from backstory.storage.provenance import RESULT, check_place


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
        from backstory.reports.sections.context_section import examination_plots
        from backstory.storage.atomic import write_atomically

        first = Path(path)
        if first.suffix != ".svg":
            raise UserError(f"a plot is written as SVG, and {first} is named otherwise; name it {first.stem}.svg")
        drawn = examination_plots(result_of(self.result, "the result"))
        if not drawn:
            raise UserError(f"there is no plot of {self.figures['experiment']}; use .table(), or .figures")
        for number, plot in enumerate(drawn, start=1):
            write_atomically(first if number == 1 else first.with_stem(f"{first.stem}-{number}"), plot.svg)
        return first

    @checked()
    def save(self, folder: Path | str) -> Path:
        """Write result.json into a folder, and the losses: of several models as `losses-1.npz` and so on. Raises UserError."""
        place = Path(folder)
        check_place(place, "examination")
        alone = len(self.losses) == 1
        for older in place.glob("losses*.npz"):
            older.unlink()
        for number, losses in enumerate(self.losses, 1):
            losses.save(place / (LOSSES if alone else f"losses-{number}.npz"))
        write_result(place, "examination", self.result["name"], self.figures, self.result["provenance"])
        return place / "result.json"


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
            raise UserError(f"the examination of {name} does not tell its {wrong.path}; examine again") from None
    first = models[0]
    for other in models[1:]:
        _check_comparable(first, other)
    by = list(dict.fromkeys(group["by"] for group in first.figures["groups"]))
    losses = tuple(loss for model in models for loss in model.losses)
    origins = [model.result["provenance"] for model in models]
    figures = {
        **first.figures,
        **figures_of(losses, by, first.figures["seed"]),
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
    return ExaminationResult(write_result(None, "examination", name, figures, origin), losses)


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
    for place, name in enumerate(names):
        lines.append(line(name, [f"{group['conditions'][place]['effect']:+.4f}" for group in groups]))
    if "hurt" in groups[0]["conditions"][0]:
        lines.append(line("cache hurts", [f"{group['conditions'][0]['hurt']:.1%}" for group in groups]))
    return lines
