"""One-line messages for arguments that tyro refuses, from the dataclass of the verb."""

import shlex
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from backstory.cli.flags import Setting, other_kinds, reads, settings
from backstory.config.renamed import present_flag
from backstory.utils.errors import pasted

_TRUTH = ("true", "false", "yes", "no", "on", "off", "1", "0")
ELSEWHERE: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("--text", "--data", "--dataset", "--file", "--input"), ("--corpus", "--text")),
    **dict.fromkeys(("--output", "--output-dir", "--save", "--save-dir", "-o", "--html"), ("--out",)),
    **dict.fromkeys(("--seq-len", "--seq-length", "--sequence-length", "--block-size", "--bptt"), ("--segment",)),
    **dict.fromkeys(("--learning-rate", "-lr"), ("--lr",)),
    **dict.fromkeys(("--vocab-size", "--vocabulary-size", "--max-vocab"), ("--text.maximum-size", "--maximum-size")),
    **dict.fromkeys(("--num-layers", "--n-layers", "--nlayers", "--n-layer"), ("--layers",)),
    **dict.fromkeys(("--hidden-size", "--nhid", "--hidden-dim", "--n-embd", "--d-model"), ("--hidden",)),
    **dict.fromkeys(("--emsize", "--emb-size", "--embedding-dim"), ("--embedding-size",)),
    **dict.fromkeys(("--wd", "--wdecay"), ("--weight-decay",)),
    **dict.fromkeys(("--max-steps", "--iterations", "--iters"), ("--steps",)),
    **dict.fromkeys(("--gpu", "--cuda", "--cpu"), ("--device",)),
    **dict.fromkeys(("--dtype", "--fp16", "--bf16", "--amp"), ("--precision",)),
    **dict.fromkeys(
        ("--n", "-n", "--length", "--max-new-tokens", "--max-tokens", "--num-tokens"), ("--tokens", "--trials")
    ),
    **dict.fromkeys(("--temp", "-t"), ("--temperature",)),
    **dict.fromkeys(("--checkpoint", "--load", "--pretrained", "--from"), ("--init-from",)),
    **dict.fromkeys(("--continue", "--resume-from"), ("--resume",)),
    **dict.fromkeys(("--force", "-f"), ("--overwrite",)),
    **dict.fromkeys(("--model", "--arch", "--architecture", "--rnn"), ("--core",)),
    **dict.fromkeys(("--num-trials", "--n-trials"), ("--trials",)),
    **dict.fromkeys(("--jobs", "--workers", "--num-workers", "-j"), ("--processes",)),
    **dict.fromkeys(("--experiments", "--ablation", "--perturbation"), ("--experiment",)),
    **dict.fromkeys(("--bs", "-b"), ("--batch-size",)),
}
"""Flags of other programs -> the flags here that do the same, for suggestions: the first one that a command has."""


def explain(kind: type, arguments: Sequence[str], verb: str, default: Any = None) -> str:
    """Return a message for the first mistake in arguments that tyro refused."""
    known = list(settings(kind, default))
    flags = {flag: s for s in known if not s.positional for flag in (*s.flags(), *s.short)}
    positional: list[str] = []
    rest = deque(arguments)
    while rest:
        token = rest.popleft()
        if not _is_flag(token):
            positional.append(token)
            continue
        name, attached, value = token.partition("=")
        name = name.replace("_", "-")
        if name not in flags:
            if others := list(other_kinds(kind, name, default)):
                return f"there is no flag {name} for these parts; it comes with {' or '.join(others)}"
            if present := present_flag(verb, name):
                return f"{name} is now called {present}; use that flag"
            if Path(token).exists():
                return f"there is no flag {name}; a file or folder of that name is given as {pasted(Path(token))}"
            if name == "--text" and any(s.positional and "TEXT" in s.name for s in known):
                return f"there is no flag --text; the text follows the run: `{_usage(verb, known)}`"
            if verb == "read" and name in ("--text", "--corpus"):
                return f"there is no flag {name}; it reads standard input: `{_usage(verb, known)} < FILE`"
            same = next((flag for flag in ELSEWHERE.get(name, ()) if flag in flags), None)
            hint = f" (did you mean '{same}'?)" if same else _other_commands(name) or nearest_flag(name, flags)
            return f"there is no flag {name}{hint}; `backstory {verb} --help-all` lists them"
        values = [value] if attached else _values(flags[name], rest)
        if problem := _mistake(name, flags[name], values):
            if not values and rest and rest[0].partition("=")[0].replace("_", "-") not in flags:
                problem += f"; one that begins with a hyphen is given as {name}={shlex.quote(rest[0])}"
            return problem
    return _misplaced([s for s in known if s.positional], positional, verb)


def _other_commands(name: str) -> str:
    """Return ` here, but `examine` has it` for a flag of one or two other commands, or an empty string."""
    from backstory.cli.completion import COMMANDS  # imports every command

    having = [
        f"`{command}`"
        for command, (kind, default) in COMMANDS.items()
        if any(name in setting.flags() for setting in settings(kind, default) if not setting.positional)
    ]
    if not 1 <= len(having) <= 2:
        return ""
    return f" here, but {' and '.join(having)} {'has' if len(having) == 1 else 'have'} it"


def _usage(verb: str, known: Iterable[Setting]) -> str:
    """Return the command with its positional arguments."""
    return " ".join(["backstory", verb, *(s.name for s in known if s.positional)])


def repetition(kind: type, arguments: Sequence[str], default: Any = None) -> str:
    """Return a message for a flag that takes one value and is typed more than once; else an empty string."""
    names = Counter(a.partition("=")[0].replace("_", "-") for a in arguments if _is_flag(a))
    repeated = {name for name, count in names.items() if count > 1}
    for setting in settings(kind, default) if repeated else ():
        if setting.name in repeated and not setting.repeated and setting.kind is not bool:
            return (
                f"{setting.name} is given {names[setting.name]} times; give it once"
                + ", with all values" * setting.listed
            )
    return ""


def nearest_flag(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean '--x'?)` for the most similar flag, or an empty string.

    Flags of one group share a long prefix, so the similarity of the last part counts as much as that of the whole.
    """

    def similarity(flag: str) -> float:
        last, other = (f.rpartition(".")[2].lstrip("-") for f in (name, flag))
        return (SequenceMatcher(None, name, flag).ratio() + SequenceMatcher(None, last, other).ratio()) / 2

    best = max(known, key=similarity, default="")
    return f" (did you mean '{best}'?)" if best and similarity(best) > 0.7 else ""


def _is_flag(token: str) -> bool:
    return token.startswith("-") and token != "-" and not reads(float, token)


def _values(setting: Setting, rest: deque[str]) -> list[str]:
    """Take the values that follow a flag; for a switch, which takes none, only a truth value."""
    most = len(rest) if setting.listed and not setting.repeated else 1
    values: list[str] = []
    while rest and len(values) < most and not _is_flag(rest[0]):
        if setting.kind is bool and rest[0].lower() not in _TRUTH:
            break
        values.append(rest.popleft())
    return values


def _mistake(name: str, setting: Setting, values: list[str]) -> str:
    if setting.kind is bool:
        forms = " or ".join(setting.flags()) + ("" if len(setting.flags()) > 1 else ", or leave it out")
        return f"{name} takes no value, so not '{values[0]}'; give {forms}" if values else ""
    if not values and (setting.repeated or not setting.listed):
        return f"{name} needs a value: {setting.expected()}"
    for value in values:
        if not setting.accepts(value):
            return f"{name} must be {setting.expected()}, not '{value}'{setting.hint(value)}"
    return ""


def _misplaced(positions: list[Setting], values: list[str], verb: str) -> str:
    usage = _usage(verb, positions)
    if len(values) < len([s for s in positions if not s.name.startswith("[")]):
        missing = positions[len(values)]
        what = next(m.help for m in missing.marks if getattr(m, "help", None))
        return f"name {what[0].lower()}{what[1:].rstrip('.').split(';')[0]}: `{usage}`"
    entries = chain(positions, repeat(positions[-1])) if positions and positions[-1].listed else positions
    for setting, value in zip(entries, values, strict=False):
        if not setting.accepts(value):
            name = setting.name.removesuffix("...")
            return f"{name} must be {setting.expected()}, not '{value}'; the command is `{usage}`"
    if len(values) > len(positions) and not any(s.listed for s in positions):
        extra = values[len(positions)]
        if verb == "generate":
            return f'unexpected argument {extra!r}; put the prompt in quotes: `{usage} --prompt "THE WORDS"`'
        if verb == "read":
            return f"unexpected argument {extra!r}; it reads standard input: `{usage} < {pasted(extra)}`"
        if verb == "explain" and (extra == "-" or Path(extra).exists()):
            return (
                f"unexpected argument {extra!r}; a text is given as --text {extra if extra == '-' else pasted(extra)}"
            )
        if verb.endswith(" RECIPE") and Path(extra).exists():
            return f"unexpected argument {extra!r}; a text is given as --corpus {pasted(extra)}"
        if verb.startswith("explain") and Path(extra).is_file():
            return f"unexpected argument {extra!r}; a text is given as --text {pasted(extra)}"
        if verb.startswith("reader ") and Path(extra).is_dir() and not Path(values[0]).exists():
            return f"a reader is given as a flag: `backstory {verb} {pasted(extra)} --reader {values[0]}`"
        if verb in ("demo", "export") or (verb.endswith(" RECIPE") and "/" in extra):
            return f"unexpected argument '{extra}'; the folder to write is given as --out {pasted(extra)}"
        return f"unexpected argument '{extra}'; the command is `{usage}`, and `backstory {verb} --help` lists its flags"
    if len(values) > 1 and any(s.listed for s in positions):
        return f"unexpected argument '{values[-1]}'; a flag takes one value, and other arguments go together: `{usage}`"
    return f"the command line cannot be read; `backstory {verb} --help` explains"
