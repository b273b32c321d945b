"""`backstory read RUN`: read standard input as it arrives, score every line, and learn from it if the reader does."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from backstory.cli.parse import parse
from backstory.cli.run_arguments import ModelArguments
from backstory.config import UserError, plural
from backstory.config.fields import between

if TYPE_CHECKING:
    from backstory.reading.session import Line, Session
    from backstory.text import Vocabulary


@dataclass(frozen=True)
class Arguments(ModelArguments):
    """Read standard input line by line as it arrives, and say how surprising each line is and all of them so far.

    A session can be saved and gone on with: `--session FOLDER`, and later `--resume`. It ends with the input, or with Ctrl-C.
    """

    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """How it is read: `backstory ls readers`; may be given more than once. Of a session: the one it began with."""
    session: Path | None = None
    """Save what was read and learned in this folder, at the end and while it goes on."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Go on with the session in that folder."""
    save_every: float = between(60.0, 0.0)
    """Seconds between two savings while it goes on; 0: at the end only."""
    per_token: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the tokens too, each with its surprisal in nats."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object for every line."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of matrix products."""


def main(arguments: Sequence[str]) -> int:
    """Read; on a signal, save and exit with 128 + its number."""
    given = parse(Arguments, arguments, "read")

    from rich.console import Console

    from backstory.reading.session import session
    from backstory.training.stopping import StopRequest

    if sys.stdin is None:
        raise UserError("there is no standard input to read; give some: `backstory read RUN < TEXT`")
    console, listening = Console(highlight=False, soft_wrap=True), StopRequest()
    told: list[Callable[[Line], None]] = []
    options: dict[str, Any] = {"resume": given.resume, "precision": given.precision, "device": given.device}
    options |= {"reader": given.reader or None, "save_every": given.save_every}
    with (
        listening.listening(),
        session(given.run, given.session, told=lambda line: told[0](line), **options) as opened,
    ):
        told.append(_printer(given, opened.vocabulary, console))
        if sys.stdin.isatty():
            note = f"from line {opened.at.lines + 1} on; " if given.resume else ""
            print(f"backstory: {note}type a line, and Ctrl-D to end", file=sys.stderr)
        opened.read(sys.stdin.fileno(), stopped=lambda: listening.requested)
    if not given.json:
        print(_summary(opened))
    where = "" if given.session is None else f" and saved in {given.session}; --resume goes on with it"
    if listening.signal is not None:
        print(f"backstory: stopped{where}", file=sys.stderr)
        return 128 + listening.signal
    if where:
        print(f"backstory: read{where}", file=sys.stderr)
    return 0


def _printer(given: Arguments, vocabulary: "Vocabulary", console: Any) -> "Callable[[Line], None]":
    """What prints a line that was read."""
    from rich.text import Text

    unit, unknown, said = vocabulary.tokenizer.unit, vocabulary.unknown, False

    def told(line: "Line") -> None:
        nonlocal said
        if unknown in line.ids and not said:
            print(f"backstory: what the vocabulary lacks is read as {vocabulary.words[unknown]}", file=sys.stderr)
            said = True
        tokens = [[vocabulary.words[i], round(nats, 4)] for i, nats in zip(line.ids, line.nats, strict=True)]
        if given.json:
            print(json.dumps(_record(line) | ({"each": tokens} if given.per_token else {})), flush=True)
            return
        shown = f"line {line.number}: {len(tokens):,} {plural(unit, len(tokens))}, perplexity {line.perplexity:.2f}"
        text = Text(f"{shown}, {line.running_perplexity:.2f} so far", style="dim")
        if given.per_token:
            text = Text.assemble(*((f"{_seen(word)} {nats:.2f}  ", _style(nats)) for word, nats in tokens), "\n", text)
        console.print(text)
        console.file.flush()

    return told


def _record(line: "Line") -> dict[str, Any]:
    return {
        "line": line.number,
        "tokens": len(line.nats),
        "nats": sum(line.nats),
        "perplexity": line.perplexity,
        "all_tokens": line.all_tokens,
        "all_nats": line.all_nats,
        "running_perplexity": line.running_perplexity,
    }


def _seen(word: str) -> str:
    """A token that would not be seen, such as a space, as Python writes it."""
    return word if word.isprintable() and word.strip() else repr(word)


def _style(nats: float) -> str:
    """The colour of a token on a terminal: the more surprising, the brighter."""
    return "dim" if nats < 2 else "" if nats < 6 else "yellow" if nats < 10 else "bold red"


def _summary(opened: "Session") -> str:
    from backstory.reading.session import perplexity

    at, unit = opened.at, opened.vocabulary.tokenizer.unit
    unknown = (
        f", {at.unknown:,} of them {opened.vocabulary.words[opened.vocabulary.unknown or 0]}" if at.unknown else ""
    )
    return (
        f"{at.lines:,} {plural('line', at.lines)}, {at.tokens:,} {plural(unit, at.tokens)}{unknown}, "
        f"{opened.reader.name} reader: perplexity {perplexity(at.nats, at.tokens):.2f} per {unit}"
    )
