"""`backstory read RUN`: score standard input line by line as it arrives, with any reader, in a session that can be saved."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from backstory.cli.command_line import JsonOutput, ModelArguments, announce, parse, standard_input
from backstory.config.options import SAVE_EVERY, Precision
from backstory.config.strict import between
from backstory.utils.errors import UserError, plural
from backstory.utils.formats import quantity
from backstory.utils.scores import UnknownShare, advice, bounded, perplexity
from backstory.utils.terminal import cell, failure, make_console, printable_json

if TYPE_CHECKING:
    from backstory.evaluation.session import Line, Session

ENOUGH = 20
"""Tokens before a warning that most are outside the vocabulary."""


@dataclass(frozen=True)
class ReadArguments(JsonOutput, ModelArguments):
    """Score standard input line by line as it arrives: each line, and all lines so far.

    A session can be saved (`--session FOLDER`) and resumed later (`--resume`). It ends with the input, or with Ctrl-C. With
    `--json` each line is a JSON object.
    """

    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Reader (`backstory ls readers`; else static); may be given more than once. A resumed session keeps its own."""
    session: Path | None = None
    """Save the session in this folder, at the end and in between."""
    resume: tyro.conf.FlagCreatePairsOff[bool] = False
    """Resume the session in that folder."""
    save_every: float = between(SAVE_EVERY, 0.0)
    """Seconds between saves; 0: at the end only."""
    per_token: tyro.conf.FlagCreatePairsOff[bool] = False
    """Show the tokens too, each with its surprisal in nats."""
    precision: Precision = "float32"
    """Precision of matrix products."""


def main(arguments: Sequence[str]) -> int:
    """Read; on a signal, save and exit with 128 + its number."""
    args = parse(ReadArguments, arguments, "read")
    if args.resume and args.session is None:
        raise UserError("--resume needs a saved session; say which with --session")

    announce(f"loading {args.run}", args.run, readers=args.reader)
    from backstory.evaluation.session import session
    from backstory.utils.process import StopRequest

    typed = standard_input()
    console, listening = make_console(highlight=False, soft_wrap=True), StopRequest()
    printers: list[Callable[[Line], None]] = []
    options: dict[str, Any] = {"resume": args.resume, "precision": args.precision, **vars(args.load_options())}
    options |= {"reader": args.reader or None, "save_every": args.save_every}
    with (
        listening.listening(),
        session(args.run, args.session, on_line=lambda line: printers[0](line), **options) as opened,
    ):
        printers.append(_printer(args, opened, console))
        if typed.isatty():
            note = f"from line {opened.state.lines + 1} on; " if args.resume else ""
            print(f"backstory: {note}type a line, and Ctrl-D to end", file=sys.stderr)
        elif args.resume:
            print(f"backstory: continuing after line {opened.state.lines}", file=sys.stderr)
        # Nothing more is read once nobody reads the output; the session keeps what was read.
        opened.read(typed.fileno(), stopped=lambda: listening.requested or failure() is not None)
    if not args.json:
        print(_summary(opened))
    where = ""
    if args.session is not None:
        saved = f" and saved in {args.session}; continue with --resume"
        where = saved if opened.state.tokens else "; without text there is no session to save"
    if listening.signal is not None:
        print(f"backstory: stopped{where}", file=sys.stderr)
        return 128 + listening.signal
    if where:
        print(f"backstory: read{where}", file=sys.stderr)
    return 0


def _printer(args: ReadArguments, opened: "Session", console: Any) -> "Callable[[Line], None]":
    """Return a function that prints a scored line."""
    from rich.text import Text

    from backstory.explanations.explained_text import shown, text_of

    vocabulary = opened.vocabulary
    unit, unknown, noted, warned = vocabulary.tokenizer.unit, vocabulary.unknown, False, False

    def show(line: "Line") -> None:
        nonlocal noted, warned
        if unknown in line.ids and not noted:
            print(f"backstory: words outside the vocabulary are read as {vocabulary.words[unknown]}", file=sys.stderr)
            noted = True
        if not warned and line.all_tokens >= ENOUGH and opened.unknown_share().meaningless:
            print(f"backstory: {_warning(opened)}", file=sys.stderr)
            warned = True
        tokens = [[vocabulary.words[i], round(nats, 4)] for i, nats in zip(line.ids, line.nats, strict=True)]
        if args.json:
            record = _record(line) | ({"each": tokens} if args.per_token else {})
            print(printable_json(json.dumps(record)), flush=True)
            return
        if not any(text_of(vocabulary, i).strip() for i in line.ids):
            return  # an empty line: its end is scored, and there is nothing to show
        scores = f"line {line.number}: {quantity(len(tokens), unit)}, perplexity {bounded(line.perplexity)}"
        share = UnknownShare(len(tokens), line.unknown).phrase()
        text = Text(f"{scores}, {bounded(line.running_perplexity)} so far{share and f', {share}'}", style="dim")
        if args.per_token:
            words = [shown(vocabulary, i) if unit == "piece" else vocabulary.words[i] for i in line.ids]
            scored = zip(words, line.nats, strict=True)
            text = Text.assemble(
                *((f"{_visible(word)} {nats:.2f}  ", _style(nats)) for word, nats in scored), "\n", text
            )
        console.print(text)
        console.file.flush()

    return show


def _record(line: "Line") -> dict[str, Any]:
    return {
        "line": line.number,
        "tokens": len(line.nats),
        "unknown_tokens": line.unknown,
        "unknown_share": UnknownShare(len(line.nats), line.unknown).share,
        "nats": sum(line.nats),
        "perplexity": line.perplexity,
        "all_tokens": line.all_tokens,
        "all_nats": line.all_nats,
        "all_unknown_tokens": line.all_unknown,
        "all_unknown_share": UnknownShare(line.all_tokens, line.all_unknown).share,
        "running_perplexity": line.running_perplexity,
    }


def _visible(word: str) -> str:
    """Return a token as text; an invisible one, such as a space, as Python writes it."""
    return cell(word) if word.strip() else repr(word)


def _style(nats: float) -> str:
    """Return the style of a token on a terminal: the more surprising, the brighter."""
    return "dim" if nats < 2 else "" if nats < 6 else "yellow" if nats < 10 else "bold red"


def _summary(opened: "Session") -> str:
    at, unit = opened.state, opened.vocabulary.tokenizer.unit
    if not at.tokens:
        return "nothing was read: standard input held no text"
    unknown, warning = opened.unknown_share().phrase(), _warning(opened)
    return (
        f"{quantity(at.lines, 'line')}, {quantity(at.tokens, unit)}{unknown and f', {unknown}'}, "
        f"{opened.reader.name} reader: perplexity {bounded(perplexity(at.nats / at.tokens))} per {unit}"
        + ("" if warning is None else f"\n  unknown     {warning}")
    )


def _warning(opened: "Session") -> str | None:
    """Return a warning if much of the text is outside the vocabulary."""
    unit, share = opened.vocabulary.tokenizer.unit, opened.unknown_share()
    return share.warning(f"the {plural(unit)}", advice(share.cause, unit, *opened.cuts))
