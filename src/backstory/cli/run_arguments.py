"""What every verb that reads with a trained run takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class ModelArguments:
    """A run and what it runs on."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help="The run's folder.")]
    device: str = "auto"
    """auto, cpu or cuda."""


@dataclass(frozen=True)
class RunArguments(ModelArguments):
    """A run, where it is read, and where its corpus lies."""

    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
