"""`backstory compress FILE --model RUN`: compress any file, token by token, with a trained model."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import tyro
from tyro.conf import UseAppendAction

from backstory.cli.command_line import RUN, JsonOutput, announce, parse, print_json, typed_text
from backstory.config.options import SAVE_EVERY, LoadOptions, Precision, ReadingOptions
from backstory.config.strict import between
from backstory.utils.errors import UserError
from backstory.utils.small_file import user_path
from backstory.utils.terminal import ProgressCallback, failure, one_line, plain, progress_bar

if TYPE_CHECKING:
    from backstory.codec import Compressed

FILE = "A file of any kind, or - for standard input."


@dataclass(frozen=True)
class CompressArguments(JsonOutput, LoadOptions):
    """Compress a file, token by token, with a trained model; `backstory decompress` restores every byte.

    The compressed size is about the model's total surprisal, in bits. Words outside the vocabulary are spelled out.
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE", help=FILE)]
    model: Annotated[Path | None, tyro.conf.arg(help=f"Required. {RUN}")] = None
    out: str | None = None
    """The file for the code, or - for standard output (else FILE.bks; standard output for standard input)."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace a file that exists."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Continue the same compression where it was stopped or killed, from its last checkpoint in OUT.part."""
    save_every: float = between(SAVE_EVERY, 0.0)
    """Seconds between checkpoints; 0: never."""
    reader: UseAppendAction[tuple[str, ...]] = ()
    """The reader (`backstory ls readers`; else static); may be given more than once: readers wrap each other."""
    batch_size: int = between(1, 1)
    """Rows of the file read side by side: faster to decode, and a little longer, as each begins at the model's start."""
    precision: Precision = "float32"
    """Precision of matrix products."""
    overrides: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set")] = ()
    """Settings of the model that may change after training, as core.addressing=window:257; may be given more than once."""


def main(arguments: Sequence[str]) -> int:
    args = parse(CompressArguments, arguments, "compress")
    model = named(args.model)
    changes = ReadingOptions(overrides=args.overrides).inference_overrides()
    out = output(args.out, args.file, f"{args.file}.bks")
    if out is None and args.json:
        raise UserError("--json and the code cannot both go to standard output; name a file with --out")

    with coding("compressing", args.file, model, args.reader) as progress:
        from backstory.codec import compress

        code = compress(
            source(args.file),
            model,
            out,
            reader=args.reader or "static",
            batch_size=args.batch_size,
            precision=args.precision,
            overrides=changes,
            overwrite=args.overwrite,
            resume=args.resume,
            save_every=args.save_every,
            progress=progress,
            **vars(args.load_options()),
        )
    hand_over(code.data, out, None if args.json else summary(args.file, code))
    if args.json:
        print_json(code)
    return 0


def summary(file: str, code: "Compressed") -> str:
    """Return the lengths of a code in two lines."""
    bits = {"tokens": code.model_bits, "spelling": code.spelling_bits, "checksums": code.check_bits}
    parts = [f"{name} {length / 8:,.0f}" for name, length in bits.items()]
    rate = (
        "" if code.bits_per_byte is None else f", {code.bits_per_byte:.4f} bits per byte without header and checksums"
    )
    return (
        f"{one_line(title(file))}: {code.size:,} bytes in {code.code_size:,}{rate}\n"
        f"  of these    {', '.join(parts)}, header {code.header_size:,}"
    )


def named(model: Path | None) -> Path:
    """Return the model. Raises UserError if none is named."""
    if model is None:
        raise UserError("name the model with --model: a run's folder, or hf:PATH_OR_NAME")
    return model


@contextmanager
def coding(verb: str, file: str, model: Path, readers: Sequence[str] = ()) -> Iterator[ProgressCallback]:
    """Say what is coded, and show the progress of the block."""
    announce(f"{verb} {title(file)} with {model}", model, readers=readers)
    with progress_bar(f"{verb} {title(file)}") as progress:
        yield progress


def title(file: str) -> str:
    """Return what messages call a file."""
    return "standard input" if file == "-" else file


def source(file: str) -> Path | BinaryIO:
    """Return what is read: a path, or standard input. Raises UserError."""
    return typed_text() if file == "-" else user_path(file)


def output(out: str | None, file: str, default: str) -> Path | None:
    """Return the file that is written, or None for standard output. Raises UserError where that is a terminal."""
    named = ("-" if file == "-" else default) if out is None else out
    if named != "-":
        return user_path(named)
    if sys.stdout.isatty():
        raise UserError("standard output is a terminal; name a file with --out, or send it elsewhere with >")
    return None


def hand_over(data: bytes, out: Path | None, line: str | None) -> None:
    """Write data without a file to standard output, and then a line, if there is one, where it is not in their way."""
    if out is None:
        plain(sys.stdout).write_bytes(data)
    if line is not None and failure() is None:
        print(line, file=sys.stderr if out is None else sys.stdout)
