"""`backstory data show NAME`: tokens per split, types and documents of a corpus."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.parse import parse
from backstory.cli.verbs import dispatch
from backstory.config import TextConfig


@dataclass(frozen=True)
class ShowArguments(TextConfig):
    """Show what a corpus holds once it is split into tokens."""

    # `field()` takes the default of TextConfig away: here the corpus must be named.
    corpus: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="CORPUS", help="A corpus by name, a text file, or a folder.")
    ] = field()
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""


def main(arguments: Sequence[str]) -> int:
    return dispatch("data", {"show": show}, arguments)


def show(arguments: Sequence[str]) -> int:
    """Prepare the corpus and print its figures."""
    given = parse(ShowArguments, arguments, "data show")

    from backstory.text import prepare

    dataset = prepare(given, given.data_dir)
    words = dataset.vocabulary
    print(f"{dataset.corpus}: {dataset.provenance}")
    print(f"  tokenizer {words.tokenizer.name}, {len(words):,} types, fingerprint {dataset.fingerprint[:16]}")
    print(f"  {'split':<6} {'tokens':>13} {'documents':>10} {'characters':>13} {'bytes':>13}")
    for name, split in dataset.splits.items():
        sizes = f"{len(split.ids):>13,} {len(split.documents):>10,} {split.characters:>13,} {split.bytes:>13,}"
        print(f"  {name:<6} {sizes}")
    return 0
