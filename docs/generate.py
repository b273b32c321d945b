"""Fill the tables of README and docs from the files in results/, which the program wrote: `python docs/generate.py`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backstory.reports import Column, Result, Table, fill, result_from

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def result(name: str) -> Result:
    """A result file by its name."""
    path = RESULTS / f"{name}.json"
    return result_from(path.read_text(encoding="utf-8"), path.name)


def learning() -> Table:
    """Validation perplexity of ptb-small after every epoch, a row per epoch and a column per run."""
    runs = [result(path.stem) for path in sorted(RESULTS.glob("ptb-small-*-seed*.json"))]
    heads = [f"{run.provenance['precision']}, seed {run.provenance['seed']}" for run in runs]
    curves = [run.figures["curve"] for run in runs]
    rows = [
        (str(epochs[0]["epoch"]), *(f"{epoch['valid_perplexity']:.2f}" for epoch in epochs))
        for epochs in zip(*curves, strict=True)
    ]
    return Table((Column("epoch", numeric=True), *(Column(head, numeric=True) for head in heads)), tuple(rows))


def reading() -> Table:
    """Test perplexity and effective context of the runs of ptb-small that were read and examined."""
    rows = []
    for path in sorted(RESULTS.glob("read-ptb-small-*.json")):
        read = result(path.stem)
        context = result(path.stem.replace("read-", "examine-")).figures
        found, figures = context["effective_context"], read.figures
        audit = f"passed at {figures['audit']['places']} places" if figures["audit"]["passed"] else "failed"
        rows.append(
            (
                read.name,
                f"{figures['perplexity']:.2f}",
                f"{figures['tokens']:,}",
                audit,
                f"{found['context']} ({found['low']} to {found['high']})",
                f"{context['targets']:,}",
            )
        )
    heads = ("run", "test perplexity", "words", "audit", "effective context, words (95%)", "targets")
    return Table(tuple(Column(head, numeric=i in (1, 2, 5)) for i, head in enumerate(heads)), tuple(rows))


def speed() -> Table:
    """Tokens per second and peak memory of a training step against the plain one."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "benchmark-training.json").read_text())["rows"]
    rows = tuple(
        (
            size,
            f"{row['reference']['tokens_per_second']:,.0f}",
            f"{row['backstory']['tokens_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['reference']['peak_gib']:.2f}",
            f"{row['backstory']['peak_gib']:.2f}",
        )
        for size, row in found.items()
    )
    heads = ("step", "plain, tokens/s", "Backstory, tokens/s", "ratio", "plain, GiB", "Backstory, GiB")
    return Table(tuple(Column(head, numeric=i > 0) for i, head in enumerate(heads)), rows)


TABLES: dict[str, dict[str, Callable[[], Table]]] = {
    "README.md": {"ptb-small": learning, "ptb-small-read": reading, "speed": speed},
}


def filled(document: str) -> str:
    """A document's text with its tables made anew."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for name, table in TABLES[document].items():
        text = fill(text, name, table())
    return text


if __name__ == "__main__":
    for document in TABLES:
        (ROOT / document).write_text(filled(document), encoding="utf-8")
        print(document)
