"""The result of an experiment in Python: figures, a table, a plot, and files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.unknown_share import UnknownShare
from backstory.context.losses import LOSSES, Losses
from backstory.reports.phrases import context_hurts, effective_context, measured_in
from backstory.storage.provenance import check_place, write_result


@dataclass(frozen=True, eq=False)
class Examined:
    """What an experiment found, of one model or of a set."""

    result: dict[str, Any]
    """The content of result.json (docs/results.md)."""
    losses: tuple[Losses, ...]
    """What each model paid for every target."""

    @property
    def figures(self) -> dict[str, Any]:
        """What was measured."""
        return self.result["figures"]

    def table(self) -> str:
        """The conditions as lines for a person, and those of every group."""
        return "\n".join(table(self.result))

    @checked()
    def plot(self, path: Path | str) -> Path:
        """Draw the experiment as an SVG file, in the style of the reports; a second figure is `NAME-2.svg` beside it.

        Raises UserError for a name that is not one of SVG files, and where there is no plot of it: of experiments on words that
        came before, without the split `class`.
        """
        from backstory.reports.examinations import plots_of
        from backstory.reports.results import Result
        from backstory.storage.atomic import write_atomically

        first = Path(path)
        if first.suffix != ".svg":
            raise UserError(f"a plot is written as SVG, and {first} is named otherwise; name it {first.stem}.svg")
        result = Result(
            self.result["kind"], self.result["name"], self.figures, self.result["provenance"], "result.json"
        )
        drawn = plots_of(result)
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


def table(result: dict[str, Any]) -> list[str]:
    """A result in lines: its heading, every condition, and the effects in every group of a split."""
    figures = result["figures"]
    models, baseline = figures.get("models"), figures["baseline"]
    reader = "" if figures["reader"] == "static" else f", {figures['reader']} reader"
    unit = measured_in(figures)
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
        answer = (
            f"none; {effective_context(figures)}"
            if context_hurts(figures)
            else f"{effective_context(figures)}, {within}"
        )
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
    """What a condition is called in a table: of truncations the number of tokens."""
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
    """The effects in the groups of a split, a column for each."""
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
