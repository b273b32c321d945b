"""`backstory examine RUN [RUN ...] --experiment NAME`: measure how a model uses its context."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from backstory.cli.parse import parse
from backstory.cli.run_arguments import CORPUS, RUN
from backstory.config import UserError
from backstory.config.fields import between


@dataclass(frozen=True)
class Arguments:
    """Score the same tokens under changed contexts and tell what the changes cost.

    Several runs are taken as one set, for models that differ in their seed. A stopped examination goes on where it was with the
    same command.
    """

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...", help=f"{RUN} Or several.")]
    experiment: str = "truncate"
    """What is done to the context: `backstory ls experiments`."""
    targets: int = between(2000, 2)
    """Tokens that are scored under every condition, drawn at random; a number beyond all takes all."""
    split: str = "valid"
    """train, valid or test."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """How it is read: static (the default) or cache; no reader whose weights move."""
    maximum_context: int = between(1000, 1)
    """The longest context; only tokens with so many before them are targets."""
    context: int = between(300, 2)
    """The tokens that are changed, where their number is not what varies."""
    near: int = between(50, 1)
    """How far back a token counts as near."""
    by: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Also split the targets by frequency, tag, content, class or position; may be given more than once."""
    tagger: str = "auto"
    """Who gives the part-of-speech tags: auto, gold or pattern."""
    within_documents: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let contexts end where the target's document begins."""
    seed: int = between(0, 0)
    """Seed of the draw of targets, of what is random in a change, and of the bootstrap."""
    batch_size: int = between(1, 1)
    """Rows of text read side by side for the infinite context: faster, and at least the longest context before each token."""
    word_score: Literal["corrected", "sum"] = "corrected"
    """How the pieces of a word become its score: corrected for where it begins and ends, or their plain sum."""
    memory: float = between(1.0, 0.0, above=True)
    """GiB that a batch of contexts may take."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products, of the baseline too."""
    device: str = "auto"
    """auto, cpu or cuda."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    corpus: Annotated[str | None, tyro.conf.arg(help=CORPUS)] = None
    out: Path | None = None
    """Where result.json goes (else RUN/examine-EXPERIMENT-SPLIT, and the reader if not static); of several: of the set."""
    again: tyro.conf.FlagCreatePairsOff[bool] = False
    """Take nothing over from an examination that was made or stopped there."""
    allow_unknown: tyro.conf.FlagCreatePairsOff[bool] = False
    """Examine a text even where most of it is outside the vocabulary."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print the result as JSON."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "examine")
    if not given.runs:
        raise UserError("name the run's folder: `backstory examine RUN`")

    from backstory.cli.progress import progress_bar
    from backstory.config.launched import first_here
    from backstory.context import examine_run, examine_runs
    from backstory.evaluation.evaluation import as_json
    from backstory.training.distributed import joined

    with joined() as ranks, progress_bar(f"examining {given.experiment}") as progress:
        options: dict[str, Any] = {
            "split": given.split,
            "reader": given.reader,
            "targets": given.targets,
            "maximum_context": given.maximum_context,
            "context": given.context,
            "near": given.near,
            "within_documents": given.within_documents,
            "by": given.by or None,
            "tagger": given.tagger,
            "seed": given.seed,
            "batch_size": given.batch_size,
            "word_score": given.word_score,
            "precision": given.precision,
            "device": given.device,
            "data_dir": given.data_dir,
            "corpus": given.corpus,
            "memory": int(min(given.memory * 2.0**30, sys.maxsize)),
            "out": given.out,
            "again": given.again,
            "allow_unknown": given.allow_unknown,
            "ranks": ranks,
            "progress": progress if ranks.first else None,
        }
        if len(given.runs) == 1:
            found = examine_run(given.runs[0], given.experiment, **options)
        else:
            found = examine_runs(given.runs, given.experiment, **options)
    if first_here():
        print(as_json(found.result) if given.json else f"{found.table()}\n{beside(found.result)}")
    return 0


def beside(result: dict[str, Any]) -> str:
    """What was found, in sentences, beside what was published."""
    from backstory.papers.paper import published_examinations
    from backstory.reports import examinations, result_from

    lines = examinations.told(result_from(json.dumps(result), "the result"), published_examinations())
    return "\n".join(f"  {line}" for line in lines)
