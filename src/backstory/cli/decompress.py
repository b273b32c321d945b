"""`backstory decompress FILE --model RUN`: restore a compressed file, byte for byte."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from backstory.cli.command_line import RUN, parse
from backstory.cli.compress import coding, hand_over, named, output, source, title
from backstory.utils.errors import UserError
from backstory.utils.terminal import one_line

CODE = "A file of `backstory compress`, or - for standard input."


@dataclass(frozen=True)
class DecompressArguments:
    """Restore a compressed file, byte for byte, with the model that compressed it."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE", help=CODE)]
    model: Annotated[Path | None, tyro.conf.arg(help=f"Required. {RUN}")] = None
    out: str | None = None
    """The file to write, or - for standard output (else FILE without .bks; standard output for standard input)."""
    overwrite: tyro.conf.FlagCreatePairsOff[bool] = False
    """Replace a file that exists."""
    keep: tyro.conf.FlagCreatePairsOff[bool] = False
    """For a damaged file, write what comes before the damage; the exit code is still 2."""
    device: str = "auto"
    """auto, cpu or cuda."""


def main(arguments: Sequence[str]) -> int:
    args = parse(DecompressArguments, arguments, "decompress")
    model = named(args.model)
    default = args.file.removesuffix(".bks")
    if args.out is None and args.file != "-" and default == args.file:
        raise UserError(f"{args.file} does not end in .bks; name the file to write with --out")
    out = output(args.out, args.file, default)
    if out is None and args.keep:
        raise UserError("--keep writes a file; name it with --out")

    with coding("decompressing", args.file, model) as progress:
        from backstory.codec import decompress

        data = decompress(
            source(args.file),
            model,
            out,
            keep=args.keep,
            overwrite=args.overwrite,
            device=args.device,
            progress=progress,
        )
    hand_over(data, out, f"{one_line(title(args.file))}: {len(data):,} bytes, as they were")
    return 0
