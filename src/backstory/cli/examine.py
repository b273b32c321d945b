"""`backstory examine RUN --experiment NAME`: measure how a model uses its context."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from backstory.cli.parse import parse
from backstory.cli.run_arguments import CorpusArguments
from backstory.config.schema import between


@dataclass(frozen=True)
class Arguments(CorpusArguments):
    """Score the same tokens under changed contexts and tell what the changes cost."""

    experiment: str = "truncate"
    """What is done to the context: `backstory ls experiments`."""
    targets: int = between(2000, 2)
    """Tokens that are scored under every condition, drawn at random."""
    split: str = "valid"
    """train, valid or test."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """How it is read: static (the default) or cache; no reader whose weights move."""
    maximum_context: int = between(1000, 1)
    """The longest context; only tokens with so many before them are targets."""
    seed: int = between(0, 0)
    """Seed of the draw of targets and of the bootstrap."""
    memory: float = between(1.0, 0.0, above=True)
    """GiB that a batch of contexts may take."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products, of the baseline too."""
    out: Path | None = None
    """Where result.json goes (else RUN/examine-EXPERIMENT-SPLIT, and the reader if not static)."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "examine")

    from backstory.cli.progress import progress_bar
    from backstory.context import examine_run
    from backstory.reading.evaluation import as_json

    with progress_bar(f"examining {given.experiment}") as progress:
        result = examine_run(
            given.run,
            given.experiment,
            split=given.split,
            reader=given.reader,
            targets=given.targets,
            maximum_context=given.maximum_context,
            seed=given.seed,
            precision=given.precision,
            device=given.device,
            data_dir=given.data_dir,
            corpus=given.corpus,
            memory=int(given.memory * 2**30),
            out=given.out,
            progress=progress,
        )
    print(as_json(result) if given.json else describe(result))
    return 0


def describe(result: dict[str, Any]) -> str:
    """A result of `truncate` in lines for a person."""
    from backstory.reports.words import effective_context

    figures = result["figures"]
    unit = figures["unit"]
    reader = "" if figures["reader"] == "static" else f", {figures['reader']} reader"
    lines = [
        f"{result['name']}, {figures['split']} split{reader}, {figures['targets']:,} targets; "
        f"with all context perplexity {figures['baseline']['perplexity']:.2f} per {unit}",
        f"  {'context':>8}  {'perplexity':>10}  {'effect, nats':>12}  95% interval",
    ]
    for condition in figures["conditions"]:
        interval = f"{condition['low']:+.4f} to {condition['high']:+.4f}"
        lines.append(
            f"  {condition['context']:>8,}  {condition['perplexity']:>10.2f}  {condition['effect']:>+12.4f}  {interval}"
        )
    if figures.get("pieces_per_word"):
        lines.append(f"  contexts are in words, of {figures['pieces_per_word']:.2f} pieces on average")
    if figures.get("window"):
        lines.append(f"  the model reads at most {figures['window']:,} tokens: for all context a window of them slides")
    threshold = f"within {figures['effective_context']['threshold_percent']:g}% of perplexity"
    return "\n".join([*lines, f"  effective context: {effective_context(figures)}, {threshold}"])
