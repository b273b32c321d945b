"""`backstory benchmark`: measure the speed of training and reading on this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from backstory.cli.command_line import JsonOutput, announce, parse
from backstory.config import recipes
from backstory.config.strict import between
from backstory.utils.errors import plural

if TYPE_CHECKING:
    from backstory.training.speed import MachineSpeed, RecipeSpeed


@dataclass(frozen=True)
class BenchmarkArguments(JsonOutput):
    """Measure how fast this machine trains and reads, in about a minute. The table, or --json, can be pasted into an issue.

    It trains and reads random text, writes nothing, and needs no corpus.
    """

    recipes: tuple[str, ...] = ("ptb-small", "ptb-awd-lstm")
    """Recipes to measure, by name or path: a small model, and one of a published size."""
    types: int = between(10_000, 2)
    """Word types of the random text."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products."""
    device: str = "auto"
    """auto, cpu or cuda."""


def main(arguments: Sequence[str]) -> int:
    args = parse(BenchmarkArguments, arguments, "benchmark")
    configs = {Path(name).stem: recipes.load(name) for name in args.recipes}
    announce("measuring the speed of training and reading; this takes about a minute on idle cores")
    from backstory.training.speed import measure_speed
    from backstory.utils.terminal import progress_bar

    with progress_bar("benchmark", "measurements") as progress:
        speed = measure_speed(configs, args.types, args.device, args.precision, progress)
    args.show(speed, lambda: "\n".join([*_machine(speed), "", *_table(speed.recipes)]))
    return 0


def _machine(speed: "MachineSpeed") -> Iterator[str]:
    """Yield the lines above the table."""
    names = ", ".join(f"{name} {version}" for name, version in speed.versions.items())
    yield f"{names}, commit {speed.commit or 'unknown'}"
    yield f"{speed.device}, {speed.cores} {plural('core', speed.cores)}; {speed.precision}: {speed.precision_reason}"
    if speed.load is not None and speed.load > speed.cores / 2:
        yield f"other programs kept this machine busy (load average {speed.load:.1f}): on idle cores it is faster"


def _table(speeds: Sequence["RecipeSpeed"]) -> Iterator[str]:
    """Yield a Markdown table: a row for each measurement, a column for each recipe."""
    counts = sorted({count for speed in speeds for count in speed.training})
    rows = [["", *(speed.recipe for speed in speeds)]]
    for count in counts:
        label = f"training, {count} {plural('thread', count)}, tokens/s"
        rows.append([label, *(_shown(speed.training.get(count)) for speed in speeds)])
    rows.append(["its matrix products alone, 1 thread, tokens/s", *(_shown(speed.products) for speed in speeds)])
    rows.append(["evaluation, tokens/s", *(_shown(speed.evaluation) for speed in speeds)])
    rows.append(["training, most threads : one", *(_shown(speed.scaling, ".2f") for speed in speeds)])
    rows.append(["training, 1 thread : its products", *(_shown(speed.share, ".2f") for speed in speeds)])
    rows.append(["parameters", *(_shown(speed.parameters) for speed in speeds)])
    rows.append(["peak memory, GiB", *(_shown(speed.peak_gib, ".2f") for speed in speeds)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        yield f"| {' | '.join(cells)} |"


def _shown(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)
