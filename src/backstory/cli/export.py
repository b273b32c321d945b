"""`backstory export RUN --out FOLDER`: a trained model as one of Hugging Face, with its tokenizer and a model card."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import parse


@dataclass(frozen=True)
class Arguments:
    """Write a trained model into a folder that transformers loads."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help="The run's folder.")]
    out: Path | None = None
    """The folder to make (else RUN/export); one that is there is left as it is."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "export")

    from backstory.interop.exporting import CARD, export

    if find_spec("transformers") is not None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # it is over in no time
    out = export(given.run, given.out)
    print(f"{out}; {out / CARD} says how it is loaded")
    return 0
