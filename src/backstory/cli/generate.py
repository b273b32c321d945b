"""`backstory generate RUN --prompt TEXT`: go on with a text as a trained model would, as fast as it comes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from backstory.cli.command_line import ModelArguments, parse, typed_text
from backstory.config import UserError
from backstory.config.strict import between
from backstory.config.terminal import failure

LARGEST = 1 << 24
"""Bytes of a prompt from standard input."""


@dataclass(frozen=True)
class Arguments(ModelArguments):
    """Print a text and how a trained model goes on with it, word by word."""

    prompt: str = ""
    """The text to go on with, or - for standard input; empty: from the start."""
    tokens: int = between(100, 1)
    """The most tokens to add."""
    temperature: float = between(1.0, 0.0)
    """Below 1 the likely becomes likelier; 0 takes the likeliest token every time."""
    top_k: int | None = between(None, 1)
    """Draw from the k likeliest tokens only."""
    top_p: float = between(1.0, 0.0, 1.0, above=True)
    """Draw from the fewest likeliest tokens with this probability together; after --top-k."""
    seed: int = between(0, 0, 2**31 - 1)
    """The same seed, the same text."""
    stop: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """End before this text comes up; may be given more than once."""
    allow_unknown: tyro.conf.FlagCreatePairsOff[bool] = False
    """Let <unk> be drawn too."""
    save: tyro.conf.FlagCreatePairsOff[bool] = False
    """Keep the text in RUN/sample, where `backstory report` finds it."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """How the text is read while it is made: `backstory ls readers`; may be given more than once."""
    session: Path | None = None
    """Go on from where the session in this folder stands, with its reader (`backstory read`), and leave it there."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of matrix products."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, "generate")

    from backstory.evaluation import generate
    from backstory.evaluation.generation import SAMPLE

    prompt = given.prompt
    if prompt == "-":
        typed = typed_text().read(LARGEST + 1)
        if len(typed) > LARGEST:
            raise UserError(f"the prompt is longer than {LARGEST:,} bytes; give a shorter one")
        prompt = typed.decode("utf-8", "surrogateescape")
    texts = generate(
        given.run,
        prompt,
        tokens=given.tokens,
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        seed=given.seed,
        stop=given.stop,
        echo=True,
        allow_unknown=given.allow_unknown,
        save=given.save,
        reader=given.reader or None,
        session=given.session,
        precision=given.precision,
        device=given.device,
    )
    last = ""
    for text in texts:
        print(text, end="", flush=True)
        last = text or last
        if failure() and not given.save:  # nobody hears the rest
            break
    if not last.endswith("\n"):
        print()
    if given.save:
        print(f"saved in {given.run / SAMPLE}, for `backstory report`", file=sys.stderr)
    return 0
