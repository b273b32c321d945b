"""`backstory completion bash|zsh|fish`: print a script that completes commands, flags and names in a shell."""

import re
import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import backstory
from backstory.cli import (
    benchmark,
    check,
    compress,
    data,
    decompress,
    demo,
    evaluate,
    examine,
    explain,
    export,
    generate,
    ls,
    read,
    reader,
    recipe,
    referee,
    report,
    reproduce,
    sweep,
    train,
    verify,
)
from backstory.cli.command_line import parse
from backstory.cli.flags import Setting, settings
from backstory.cli.help_page import field_doc
from backstory.config import recipes

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class CompletionArguments:
    """Print a script that completes commands, flags and names. Load it where your shell starts.

    bash: `eval "$(backstory completion bash)"` in ~/.bashrc

    zsh: `eval "$(backstory completion zsh)"` in ~/.zshrc

    fish: `backstory completion fish > ~/.config/fish/completions/backstory.fish`
    """

    shell: Annotated[tyro.conf.Positional[Shell], tyro.conf.arg(metavar="SHELL", help="A shell: bash, zsh or fish.")]


COMMANDS: Mapping[str, tuple[type, Any]] = {
    "demo": (demo.DemoArguments, None),
    "train": (train.TrainArguments, train.TrainArguments()),
    "evaluate": (evaluate.EvaluateArguments, None),
    "referee": (referee.RefereeArguments, None),
    "read": (read.ReadArguments, None),
    "generate": (generate.GenerateArguments, None),
    "compress": (compress.CompressArguments, None),
    "decompress": (decompress.DecompressArguments, None),
    "verify": (verify.VerifyArguments, None),
    "examine": (examine.ExamineArguments, None),
    "explain": (explain.ExplainArguments, None),
    "explain reading": (explain.CompareReadersArguments, None),
    "sweep run": (sweep.SweepArguments, sweep.SweepArguments()),
    "sweep show": (sweep.ShowSweepArguments, None),
    "reproduce": (reproduce.ReproduceArguments, None),
    "export": (export.ExportArguments, None),
    "report": (report.ReportArguments, None),
    "reader statistics": (reader.StatisticsArguments, None),
    "reader tune": (reader.TuneReaderArguments, None),
    "reader train": (reader.TrainReaderArguments, None),
    "reader audit": (reader.AuditReaderArguments, None),
    "data show": (data.ShowCorpusArguments, None),
    "data prepare": (data.PrepareCorpusArguments, None),
    "data tokenizer": (data.TokenizerArguments, None),
    "recipe show": (recipe.ShowRecipeArguments, None),
    "recipe copy": (recipe.CopyRecipeArguments, None),
    "recipe check": (recipe.CheckRecipeArguments, None),
    "benchmark": (benchmark.BenchmarkArguments, None),
    "check": (check.CheckArguments, None),
    "ls": (ls.ListArguments, None),
    "completion": (CompletionArguments, None),
}
"""Commands with the dataclass of their arguments, and with defaults if these choose the parts of a model."""


REGISTRIES = {
    "corpora": ("data/*/*.py", r'"([\w-]+)": (?:NamedCorpus|_published|Task)\('),
    "explanations": ("explanations/*.py", r'"([\w-]+)": Explainer\('),
    "experiments": ("context/*.py", r'"([\w-]+)": Experiment\('),
    "readers": ("readers/*.py", r'ReaderKind\(\s*"([\w-]+)"'),
}
"""Source files of registries, with the pattern of an entry, because loading them takes seconds."""


@cache
def registered(kind: str) -> tuple[str, ...]:
    """Return the names of a registry from its source, because a starting shell waits for them."""
    files, entry = REGISTRIES[kind]
    sources = (file.read_text(encoding="utf-8") for file in Path(backstory.__file__).parent.glob(files))
    return tuple(sorted(name for source in sources for name in re.findall(entry, source)))


_NAMED = {"--experiment": "experiments", "--reader": "readers"}
"""Flags that take a name of a registry."""


def main(arguments: Sequence[str]) -> int:
    args = parse(CompletionArguments, arguments, "completion")
    print("\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]()))
    return 0


def _bash() -> Iterator[str]:
    """Yield a function that completes the word at the cursor from those before it; files where nothing else fits."""
    yield "_backstory() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words='
    yield '  case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[2]}" in'
    for typed, following in _next_words().items():
        pattern = f"{len(typed) + 1} {' '.join(typed)}".rstrip().replace(" ", "\\ ") + (
            "" if len(typed) == 2 else "\\ *"
        )
        yield f"    {pattern}) words={shlex.quote(' '.join(following))} ;;"
    yield "  esac"
    yield '  if [[ "$word" == -* ]]; then'
    yield '    case "${COMP_WORDS[1]} ${COMP_WORDS[2]}" in'
    # The longer name first: `explain reading` before `explain`.
    for command in sorted(COMMANDS, key=len, reverse=True):
        pattern = command.replace(" ", "\\ ") + ("*" if " " in command else "\\ *")
        yield f"      {pattern}) words={shlex.quote(' '.join(_flags(command)))} ;;"
    yield "    esac"
    yield "  fi"
    yield '  case "$before" in'
    for flag, choices in _values().items():
        yield f"    {flag}) words={shlex.quote(' '.join(choices))} ;;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _backstory backstory"


def _zsh() -> Iterator[str]:
    """Yield the script of bash, which zsh can run."""
    yield "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }"
    yield "autoload -Uz bashcompinit && bashcompinit"
    yield from _bash()


def _fish() -> Iterator[str]:
    from backstory.cli.main import VERBS

    yield "function __backstory_after -d 'The words before the cursor are these'"
    yield "    set -l words (commandline -opc)"
    yield '    test "$words[2..]" = "$argv"'
    yield "end"
    yield "function __backstory_in -d 'The words before the cursor begin with these'"
    yield "    set -l words (commandline -opc)"
    yield '    test "$words[2..$(math 1 + (count $argv))]" = "$argv"'
    yield "end"
    for verb, phrase in VERBS.items():
        yield f"complete -c backstory -f -n __backstory_after -a {verb} -d {shlex.quote(phrase)}"
    for typed, following in _next_words().items():
        if typed:
            files = "" if typed in _OR_FILES else " -f"
            words = shlex.quote(" ".join(following))
            yield f"complete -c backstory{files} -n '__backstory_after {' '.join(typed)}' -a {words}"
    for command, (kind, default) in COMMANDS.items():
        longer = [f"; and not __backstory_in {name}" for name in COMMANDS if name.startswith(f"{command} ")]
        condition = f"__backstory_in {command}{''.join(longer)}"
        for setting in settings(kind, default):
            choices = _choices(setting)
            value = f" -x -a {shlex.quote(' '.join(choices))}" if choices else "" if setting.kind is bool else " -r"
            sentence = " ".join(field_doc(setting.owner, setting.field).split()).partition(". ")[0].rstrip(".")
            for flag in () if setting.positional else (*setting.short, *setting.flags()):
                long = flag.removeprefix("--")
                yield f"complete -c backstory -n '{condition}' -l {long}{value} -d {shlex.quote(sentence)}"


def _next_words() -> dict[tuple[str, ...], Sequence[str]]:
    """Return what may follow the words of a command: verbs, actions, or names that come with the package."""
    from backstory.cli.main import VERBS

    # Their folder's own module would load numpy.
    suites = sorted(file.stem for file in (Path(backstory.__file__).parent / "papers" / "suites").glob("*.yaml"))
    following: dict[tuple[str, ...], Sequence[str]] = {
        (): list(VERBS),
        ("train",): recipes.names(),
        ("explain",): registered("explanations"),
        ("reproduce",): suites,
        ("data", "show"): registered("corpora"),
        ("data", "prepare"): registered("corpora"),
        ("recipe", "show"): recipes.names(),
        ("recipe", "copy"): recipes.names(),
        ("ls",): [*ls.KINDS, "runs"],
        ("completion",): list(typing.get_args(Shell)),
        ("help",): list(VERBS),
    }
    return following | {(verb,): list(module.ACTIONS) for verb, module in _WITH_ACTIONS.items()}


_OR_FILES = {("train",), ("reproduce",), ("data", "show"), ("recipe", "show"), ("recipe", "copy")}
"""Words after which a file may stand in the place of a name."""

_WITH_ACTIONS = {"sweep": sweep, "reader": reader, "data": data, "recipe": recipe}


def _flags(command: str) -> list[str]:
    """Return the flags of a command, short names first."""
    known = [s for s in settings(*COMMANDS[command]) if not s.positional]
    return [*(name for s in known for name in s.short), *(flag for s in known for flag in s.flags()), "--help"]


def _values() -> dict[str, list[str]]:
    """Return the values of the flags that take one of a few."""
    values: dict[str, list[str]] = {}
    for kind, default in COMMANDS.values():
        for setting in settings(kind, default):
            for flag in () if setting.positional else (*setting.short, setting.name):
                if choices := _choices(setting):
                    values[flag] = list(dict.fromkeys([*values.get(flag, []), *choices]))
    return values


def _choices(setting: Setting) -> Sequence[str]:
    if setting.name in _NAMED:
        return registered(_NAMED[setting.name])
    return setting.options()
