"""What every verb that reads with a trained run takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

RUN = "The run's folder; or hf:PATH_OR_NAME, a causal language model of Hugging Face."

CORPUS = "For hf:... alone: the corpus, by its name or the path of a file or folder."


@dataclass(frozen=True)
class ModelArguments:
    """A run and what it runs on."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help=RUN)]
    device: str = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True)
class RunArguments(ModelArguments):
    """A run, where it is read, and where its corpus lies."""

    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""


@dataclass(frozen=True)
class CorpusArguments(RunArguments):
    """A run, or a model that has no corpus of its own."""

    corpus: Annotated[str | None, tyro.conf.arg(help=CORPUS)] = None
