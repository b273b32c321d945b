"""`backstory data show | prepare | tokenizer CORPUS`: show a corpus, download it first, or train a tokenizer on it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from backstory.cli.command_line import JsonOutput, dispatch, parse, print_json
from backstory.config import TextConfig
from backstory.config.strict import between
from backstory.utils.errors import UserError, pasted
from backstory.utils.terminal import progress_bar, shown_progress

if TYPE_CHECKING:
    from backstory.data import Dataset


@dataclass(frozen=True)
class ShowCorpusArguments(JsonOutput, TextConfig):
    """Show the tokens, types and documents of a corpus."""

    # `field()` removes the default of TextConfig: here the corpus is required.
    corpus: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="CORPUS", help="A corpus by name, or a file or folder of texts."),
    ] = field()
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""


@dataclass(frozen=True)
class PrepareCorpusArguments(ShowCorpusArguments):
    """Download a corpus if it is missing, tokenize it, and show its tokens, types and documents."""

    data_dir: Path | None = None
    """Folder for the corpora (else BACKSTORY_DATA)."""


@dataclass(frozen=True)
class TokenizerArguments(JsonOutput):
    """Train a sub-word tokenizer on a corpus's training split, and write it as a tokenizer.json."""

    corpus: Annotated[
        tyro.conf.Positional[str],
        tyro.conf.arg(metavar="CORPUS", help="A corpus by name, or a file or folder of texts."),
    ] = field()
    out: Path = Path("tokenizer.json")
    """The file to write, for `--text.tokenizer FILE`."""
    kind: Literal["bpe", "unigram"] = "bpe"
    """The kind of pieces."""
    size: int = between(8000, 257)
    """Number of pieces."""
    field: str = "text"
    """Field or column that holds the texts of records."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""


def main(arguments: Sequence[str]) -> int:
    return dispatch("data", ACTIONS, _short(arguments))


def _short(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `--text.field` as `--field`: other commands and messages call the settings so."""
    return [f"--{a.removeprefix('--text.')}" if a.startswith("--text.") else a for a in arguments]


def show(arguments: Sequence[str]) -> int:
    """Tokenize the corpus and print its figures."""
    return _figures(parse(ShowCorpusArguments, arguments, "data show"))


def prepare(arguments: Sequence[str]) -> int:
    """Download the corpus if it is missing, tokenize it and print its figures."""
    args = parse(PrepareCorpusArguments, arguments, "data prepare")

    from backstory.data import CORPORA, fetch

    files = CORPORA[args.corpus].files if args.corpus in CORPORA else None
    if files is not None:
        with progress_bar(f"downloading {files}", "MB", 1_000_000) as progress:
            folder = fetch(files, args.data_dir, progress)
        if folder is not None:
            print(f"downloaded {files} into {folder}", file=sys.stderr if args.json else sys.stdout)
    return _figures(args)


def tokenizer(arguments: Sequence[str]) -> int:
    """Train a tokenizer on the corpus and write it."""
    args = parse(TokenizerArguments, arguments, "data tokenizer")
    from backstory.storage.atomic import check_new, check_writable, write_atomically

    check_new(args.out, "another file with --out")
    if not args.out.parent.is_dir():
        raise UserError(f"there is no folder {args.out.parent} to write {args.out.name} into; make it, or change --out")
    check_writable(args.out.parent)  # before minutes of training
    text = TextConfig(corpus=args.corpus, tokenizer=f"{args.kind}:{args.size}", field=args.field)

    from backstory.data import prepare
    from backstory.data.tokenizers.pieces import Pieces

    with shown_progress():
        dataset = prepare(text, args.data_dir)
    pieces = dataset.vocabulary.tokenizer
    assert isinstance(pieces, Pieces)
    write_atomically(args.out, pieces.json)
    text = f"{args.out}: {len(dataset.vocabulary):,} pieces; train with --text.tokenizer {pasted(args.out)}"
    args.show({"file": str(args.out), "pieces": len(dataset.vocabulary)}, text)
    return 0


def _figures(args: ShowCorpusArguments) -> int:
    from backstory.data import check_synthetic, gold_file, prepare

    check_synthetic(args)
    with shown_progress():
        dataset = prepare(args, args.data_dir)
    if args.json:
        print_json(_facts(dataset, args.data_dir))
        return 0
    words = dataset.vocabulary
    print(f"{dataset.corpus}: {dataset.provenance}")
    print(f"  tokenizer {words.tokenizer.name}, {len(words):,} types, fingerprint {dataset.fingerprint[:16]}")
    print(f"  {'split':<6} {'tokens':>13} {'documents':>10} {'characters':>13} {'bytes':>13}")
    for name, split in dataset.splits.items():
        sizes = f"{len(split.ids):>13,} {len(split.documents):>10,} {split.characters:>13,} {split.bytes:>13,}"
        print(f"  {name:<6} {sizes}")
    if tagged := [name for name in dataset.splits if gold_file(dataset, name, args.data_dir)]:
        print(f"  files of part-of-speech tags for {', '.join(tagged)}")
    for name in dataset.splits if dataset.source else ():
        print(f"  {name:<6} {_answers(dataset, name) or _truth(dataset, name)}")
    return 0


def _facts(dataset: "Dataset", data_dir: Path | None) -> dict[str, Any]:
    """Return what is printed of a corpus, as JSON."""
    from backstory.data import gold_file

    splits: dict[str, dict[str, Any]] = {}
    for name, split in dataset.splits.items():
        splits[name] = {"tokens": len(split.ids), "documents": len(split.documents)}
        splits[name] |= {"characters": split.characters, "bytes": split.bytes}
        splits[name]["tags"] = gold_file(dataset, name, data_dir) is not None
        if dataset.source:
            splits[name]["about"] = _answers(dataset, name) or _truth(dataset, name)
    vocabulary = dataset.vocabulary
    return {
        "corpus": dataset.corpus,
        "provenance": dataset.provenance,
        "tokenizer": vocabulary.tokenizer.name,
        "types": len(vocabulary),
        "fingerprint": dataset.fingerprint,
        "splits": splits,
    }


def _answers(dataset: "Dataset", split: str) -> str | None:
    """Return a line on the answers in a split of a task, with its shortest document; None without answers."""
    answers = dataset.answers(split)
    if answers is None:
        return None
    shortest = int(answers.lengths.argmin())
    ids = dataset.splits[split].ids[answers.document == shortest]
    shown = dataset.vocabulary.tokens(ids[:40])
    return (
        f"{answers.mask.mean():.1%} of the tokens are answers, lengths {answers.lengths.min()} to {answers.lengths.max()}; "
        f"for example {' '.join(shown)}{' ...' if len(ids) > 40 else ''}"
    )


def _truth(dataset: "Dataset", split: str) -> str:
    """Return a line on a synthetic split: its exact perplexity, and how far back its recurring tokens were seen."""
    import numpy as np

    truth = dataset.truth(split)
    assert truth is not None
    parts = [f"exact perplexity {np.exp(truth.exact.mean()):.3f}"]
    for kind in truth.forgotten:
        behind = truth.distance[truth.kind == truth.kinds.index(kind)]
        if len(behind):
            half, most = np.quantile(behind, (0.5, 0.9))
            parts.append(
                f"{kind} {len(behind) / len(truth.exact):.1%}, last seen {half:.0f} (90%: {most:.0f}) tokens ago"
            )
    return "; ".join(parts)


ACTIONS = {
    "show": ("show the splits, tokens, types and documents of a corpus", show),
    "prepare": ("download a corpus if it is missing, encode it, and show the same", prepare),
    "tokenizer": ("train a sub-word tokenizer on a corpus, and write it to a file", tokenizer),
}
