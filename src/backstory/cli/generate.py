"""`backstory generate RUN --prompt TEXT`: continue a prompt with a trained model, printing each word as it is sampled."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from backstory.cli.command_line import JsonOutput, ModelArguments, announce, parse, print_json, typed_text
from backstory.config.options import Precision
from backstory.config.strict import between
from backstory.utils.errors import UserError, pasted
from backstory.utils.terminal import failure

LARGEST = 1 << 24
"""Bytes of a prompt from standard input."""


@dataclass(frozen=True)
class GenerateArguments(JsonOutput, ModelArguments):
    """Continue a prompt with a trained model, word by word."""

    prompt: str = ""
    """The prompt, or - for standard input; empty: start a new text."""
    tokens: int = between(100, 1)
    """Largest number of tokens to add."""
    temperature: float = between(1.0, 0.0)
    """Below 1, likely tokens become more likely; 0 always takes the most likely token."""
    top_k: int | None = between(None, 1)
    """Sample only from the k most likely tokens."""
    top_p: float = between(1.0, 0.0, 1.0, above=True)
    """Sample from the smallest set of most likely tokens with this total probability; applied after --top-k."""
    seed: int = between(0, 0, 2**31 - 1)
    """Seed of the sampling."""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Stop before this text; may be given more than once."""
    allow_unknown: tyro.conf.FlagCreatePairsOff[bool] = False
    """Allow <unk> to be sampled."""
    save: tyro.conf.FlagCreatePairsOff[bool] = False
    """Save the text in RUN/sample, for `backstory report`."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Reader of the text as it is generated (`backstory ls readers`; else static); may be given more than once."""
    session: Path | None = None
    """Continue from the session in this folder, with its reader (`backstory read`); the session is not changed."""
    precision: Precision = "float32"
    """Precision of matrix products."""


def main(arguments: Sequence[str]) -> int:
    args = parse(GenerateArguments, arguments, "generate")

    announce(f"loading {args.run}", args.run, readers=args.reader)
    from backstory.data.tokenizers.built_in import UNKNOWN
    from backstory.evaluation import generate
    from backstory.evaluation.generation import SAMPLE

    prompt, stop = typed_as_utf8(args.prompt), tuple(map(typed_as_utf8, args.stop))
    if prompt == "-":
        data = typed_text().read(LARGEST + 1)
        if len(data) > LARGEST:
            raise UserError(f"the prompt is longer than {LARGEST:,} bytes; give a shorter one")
        prompt = data.decode("utf-8", "surrogateescape")
    elif len(prompt) < 256 and "\0" not in prompt and Path(prompt).is_file():
        line = f"the prompt is the name of a file; `--prompt - < {pasted(prompt)}` takes its text"
        print(f"backstory: {line}", file=sys.stderr)
    options: dict[str, Any] = vars(args) | {"prompt": prompt, "stop": stop, "reader": args.reader or None}
    del options["json"]
    if args.json:
        text = "".join(generate(**options))
        print_json({"run": str(args.run), "prompt": prompt, "text": text, "seed": args.seed})
    last, prompted = "\n" if args.json else "", bool(prompt)
    for text in () if args.json else generate(**options, echo=True):
        if prompted and UNKNOWN in text:  # the first text is the prompt as it is read
            what = f"{UNKNOWN} in the prompt stands for" if UNKNOWN in prompt else f"{UNKNOWN} takes the place of"
            print(f"backstory: {what} a word that the vocabulary lacks", file=sys.stderr)
        print(text, end="", flush=True)
        prompted = False
        last = text or last
        if failure() and not args.save:  # nobody reads the rest
            break
    if not last.endswith("\n"):
        print()
    if args.save:
        print(f"saved in {args.run / SAMPLE}, for `backstory report`", file=sys.stderr)
    return 0


def typed_as_utf8(text: str) -> str:
    """Return an argument that is a text as a terminal sends it, in UTF-8, also where Python took it for ASCII (LC_ALL=C)."""
    try:
        return os.fsencode(text).decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # it was not typed
        return text
