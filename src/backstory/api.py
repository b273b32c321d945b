"""What `import backstory as bs` offers: the verbs of the command line as functions over run folders."""

from collections.abc import Sequence
from pathlib import Path

from backstory.context import examine_run as examine
from backstory.explanations import explain_run as explain
from backstory.models import LanguageModel
from backstory.models.loading import load_run
from backstory.papers.published.context import BESIDE
from backstory.reading import evaluate, generate
from backstory.reports import write
from backstory.text import Vocabulary
from backstory.training import train

__all__ = ["evaluate", "examine", "explain", "generate", "load", "report", "train"]


def load(run: Path | str) -> tuple[LanguageModel, Vocabulary]:
    """The model of a run with its best weights, in evaluation mode on the CPU, and its vocabulary. Raises UserError."""
    loaded = load_run(Path(run))
    return loaded.model, loaded.vocabulary


def report(runs: Sequence[Path | str], out: Path | str, overwrite: bool = False) -> None:
    """Write one self-contained page of the results in run folders.

    A page of ours that is there is replaced, another file only with `overwrite`. Raises UserError.
    """
    write([Path(run) for run in runs], Path(out), overwrite, BESIDE)
