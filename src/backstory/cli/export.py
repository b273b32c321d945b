"""`backstory export RUN --out FOLDER`: write a trained model for Hugging Face, with its tokenizer and a model card."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import JsonOutput, announce, parse
from backstory.storage.run_files import check_run_exists


@dataclass(frozen=True)
class ExportArguments(JsonOutput):
    """Write a trained model to a folder that transformers can load."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN", help="The run's folder.")]
    out: Path | None = None
    """The folder to create (else RUN/export); an existing one is not changed."""


def main(arguments: Sequence[str]) -> int:
    args = parse(ExportArguments, arguments, "export")

    check_run_exists(args.run, trained_here=True)
    announce(f"exporting {args.run}", args.run)
    from backstory.interop.exporting import CARD, export

    if find_spec("transformers") is not None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # it takes a moment
    out = export(args.run, args.out)
    args.show({"folder": str(out), "card": str(out / CARD)}, f"{out}; {out / CARD} says how to load it")
    return 0
