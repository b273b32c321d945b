"""`backstory data show | prepare NAME`: tokens per split, types and documents of a corpus, downloaded first if asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from backstory.cli.command_line import dispatch, parse
from backstory.config import TextConfig

if TYPE_CHECKING:
    from backstory.data import Dataset


@dataclass(frozen=True)
class ShowArguments(TextConfig):
    """Show what a corpus holds once it is split into tokens."""

    # `field()` takes the default of TextConfig away: here the corpus must be named.
    corpus: Annotated[
        tyro.conf.Positional[str], tyro.conf.arg(metavar="CORPUS", help="A corpus by name, a text file, or a folder.")
    ] = field()
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""


@dataclass(frozen=True)
class PrepareArguments(ShowArguments):
    """Download a corpus if it is not there, split it into tokens, and show what it holds."""

    data_dir: Path | None = None
    """Folder that is to hold the corpora."""


def main(arguments: Sequence[str]) -> int:
    return dispatch("data", {"show": show, "prepare": prepare}, arguments)


def show(arguments: Sequence[str]) -> int:
    """Prepare the corpus from what is there and print its figures."""
    return _figures(parse(ShowArguments, arguments, "data show"))


def prepare(arguments: Sequence[str]) -> int:
    """Download the corpus if need be, prepare it and print its figures."""
    given = parse(PrepareArguments, arguments, "data prepare")

    from backstory.cli.command_line import progress_bar
    from backstory.data import CORPORA, fetch

    files = CORPORA[given.corpus].files if given.corpus in CORPORA else None
    if files is not None:
        with progress_bar(f"downloading {files}", "MB", 1_000_000) as told:
            folder = fetch(files, given.data_dir, told)
        if folder is not None:
            print(f"downloaded {files} into {folder}")
    return _figures(given)


def _figures(given: ShowArguments) -> int:
    from backstory.cli.command_line import progress_bar
    from backstory.data import check_synthetic, gold_file, prepare

    check_synthetic(given)
    with progress_bar(f"preparing {given.corpus}", "MB", 1_000_000) as told:
        dataset = prepare(given, given.data_dir, told)
    words = dataset.vocabulary
    print(f"{dataset.corpus}: {dataset.provenance}")
    print(f"  tokenizer {words.tokenizer.name}, {len(words):,} types, fingerprint {dataset.fingerprint[:16]}")
    print(f"  {'split':<6} {'tokens':>13} {'documents':>10} {'characters':>13} {'bytes':>13}")
    for name, split in dataset.splits.items():
        sizes = f"{len(split.ids):>13,} {len(split.documents):>10,} {split.characters:>13,} {split.bytes:>13,}"
        print(f"  {name:<6} {sizes}")
    if tagged := [name for name in dataset.splits if gold_file(dataset, name, given.data_dir)]:
        print(f"  files of part-of-speech tags for {', '.join(tagged)}")
    for name in dataset.splits if dataset.source else ():
        print(f"  {name:<6} {_asked(dataset, name) or _truth(dataset, name)}")
    return 0


def _asked(dataset: "Dataset", split: str) -> str | None:
    """What is asked in a split of a task, with its shortest document; None where nothing is."""
    answers = dataset.answers(split)
    if answers is None:
        return None
    place = int(answers.lengths.argmin())
    ids = dataset.splits[split].ids[answers.document == place]
    shown = dataset.vocabulary.tokens(ids[:40])
    return (
        f"{answers.mask.mean():.1%} of the tokens are asked, lengths {answers.lengths.min()} to {answers.lengths.max()}; "
        f"for example {' '.join(shown)}{' ...' if len(ids) > 40 else ''}"
    )


def _truth(dataset: "Dataset", split: str) -> str:
    """What is known of a split whose source is known: its entropy, and how far what comes back is behind."""
    import numpy as np

    truth = dataset.truth(split)
    assert truth is not None
    told = [f"exact perplexity {np.exp(truth.exact.mean()):.3f}"]
    for kind in truth.forgotten:
        behind = truth.distance[truth.kind == truth.kinds.index(kind)]
        if len(behind):
            half, most = np.quantile(behind, (0.5, 0.9))
            told.append(
                f"{kind} {len(behind) / len(truth.exact):.1%}, last seen {half:.0f} (90%: {most:.0f}) tokens ago"
            )
    return "; ".join(told)
