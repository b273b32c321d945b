"""`backstory evaluate RUN`: read a split once, audited, and score it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from backstory.cli.parse import parse
from backstory.cli.run_arguments import RunArguments
from backstory.config.schema import between


@dataclass(frozen=True)
class Arguments(RunArguments):
    """Read a split once with a trained model and score every token of it."""

    split: str = "test"
    """train, valid or test."""
    reader: str = "static"
    """How it is read: `backstory ls readers`."""
    rows: int = between(1, 1)
    """Rows read side by side; more than one is faster and a little worse, since each starts with an empty state."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of matrix products."""
    out: Path | None = None
    """Where result.json goes (else RUN/evaluate-SPLIT)."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "evaluate")

    from backstory.cli.progress import progress_bar
    from backstory.reading.evaluation import as_json, evaluate

    with progress_bar(f"reading {given.split}") as progress:
        result = evaluate(
            given.run,
            given.split,
            reader=given.reader,
            rows=given.rows,
            precision=given.precision,
            device=given.device,
            data_dir=given.data_dir,
            out=given.out,
            progress=progress,
        )
    print(as_json(result) if given.json else describe(result))
    return 0


def describe(result: dict[str, Any]) -> str:
    """A result of `evaluate` in lines for a person."""
    figures = result["figures"]
    bits = [
        f"{figures[key]:.4f} bits per {unit}"
        for key, unit in (
            ("bits_per_token", figures["unit"]),
            ("bits_per_character", "character"),
            ("bits_per_byte", "byte"),
        )
        if figures[key] is not None and not (key != "bits_per_token" and unit == figures["unit"])
    ]
    audit = figures["audit"]
    places = f"{audit['places']} place{'s' if audit['places'] > 1 else ''}"
    verdict = f"passed at {places}" if audit["passed"] else "FAILED: " + "; ".join(audit["failures"])
    return "\n".join(
        [
            f"{result['name']}, {figures['split']} split, {figures['reader']} reader",
            f"  perplexity  {figures['perplexity']:.2f} per {figures['unit']}  ({', '.join(bits)})",
            f"  tokens      {figures['tokens']:,}, all scored, in {figures['rows']} row{'s' if figures['rows'] > 1 else ''}",
            f"  audit       {verdict}",
        ]
    )
