"""`backstory verify FILE`: decode the proof of an evaluation, and compare its text and score with what was reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from backstory.cli.command_line import JsonOutput, announce, parse
from backstory.cli.compress import source, title
from backstory.utils.formats import quantity
from backstory.utils.scores import format_score
from backstory.utils.terminal import one_line, progress_bar

if TYPE_CHECKING:
    from backstory.evaluation.proving import Verification

PROOF = "A file of `backstory evaluate --proof`, or - for standard input."


@dataclass(frozen=True)
class VerifyArguments(JsonOutput):
    """Decode the proof of an evaluation: the model alone must restore the text, from as many bits as the score says.

    The exit code is 0 if text and figure are as reported, 1 if one is not, and 2 if the file does not decode.
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE", help=PROOF)]
    model: Path | None = None
    """The model that was evaluated, a run's folder or hf:PATH_OR_NAME (else the run that the proof names)."""
    text: Path | None = None
    """The text to compare with (else the split of the corpus, if it is here)."""
    corpus: str | None = None
    """The corpus that was read, by its name or path (else the run's)."""
    data_dir: Path | None = None
    """Folder that holds the corpora (else BACKSTORY_DATA)."""
    field: Annotated[str | None, tyro.conf.arg(name="text.field")] = None
    """Field or column of --text or --corpus that holds the texts (else that of the run's corpus)."""
    device: str = "auto"
    """auto, cpu or cuda."""


def main(arguments: Sequence[str]) -> int:
    """Verify; return exit code 1 if the text or the figure is another."""
    args = parse(VerifyArguments, arguments, "verify")
    announce(f"decoding {title(args.file)}", *([] if args.model is None else [args.model]))
    from backstory.evaluation.proving import verify

    with progress_bar(f"decoding {title(args.file)}") as progress:
        verified = verify(
            source(args.file),
            args.model,
            text=args.text,
            corpus=args.corpus,
            data_dir=args.data_dir,
            field=args.field,
            device=args.device,
            progress=progress,
        )
    args.show(verified, lambda: describe(verified))
    return 0 if verified.holds else 1


def describe(verified: "Verification") -> str:
    """Return what was decoded as lines of text."""
    from backstory.evaluation.proving import UNCOUNTED

    of = f"the {verified.split} split of {verified.corpus}" if verified.split != "text" else verified.corpus
    text = {
        True: f"the same as {verified.compared}",
        False: f"NOT {verified.compared}",
        None: f"{of}, it says; name the text with --text, or its corpus with --corpus, to compare",
    }[verified.same_text]
    claim = "as reported"
    if not verified.as_reported:
        more = f"{verified.nats_per_token / verified.reported - 1:.1%} " if verified.reported > 0 else ""
        claim = f"{more}more than reported"
    if verified.uncounted > UNCOUNTED:
        claim += (
            f", but the last tokens of its {verified.rows:,} rows, which the decoder has before their turn, take "
            f"{verified.uncounted:.0%} more: NOT proved; read it in fewer rows"
        )
    tokens = quantity(verified.tokens, verified.unit)
    lines = "" if verified.lines is None else f" in {quantity(verified.lines, 'line')}, each by itself"
    after = "" if verified.after is None else f", read after {verified.after}"
    return "\n".join(
        [
            f"{one_line(verified.file)}: decoded with {one_line(verified.model)}, {verified.reader} reader",
            f"  score       {format_score(verified.nats_per_token, verified.unit)}, "
            f"{verified.nats_per_token:.4f} nats per token, {claim}",
            f"  text        {tokens}{lines}, {one_line(text)}{one_line(after)}",
        ]
    )
