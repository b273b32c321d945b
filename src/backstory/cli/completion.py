"""`backstory completion bash|zsh|fish`: print a script that completes commands, flags and names in a shell."""

import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import backstory
from backstory.cli import (
    check,
    data,
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
    report,
    reproduce,
    sweep,
    train,
)
from backstory.cli.command_line import parse
from backstory.cli.help_page import field_doc
from backstory.cli.mistakes import Setting, settings
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
    "read": (read.ReadArguments, None),
    "generate": (generate.GenerateArguments, None),
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
    "check": (check.CheckArguments, None),
    "ls": (ls.ListArguments, None),
    "completion": (CompletionArguments, None),
}
"""Every command with the dataclass of its arguments, and their defaults where these choose the parts of a model."""


def main(arguments: Sequence[str]) -> int:
    args = parse(CompletionArguments, arguments, "completion")
    print("\n".join({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell]()))
    return 0


def _bash() -> Iterator[str]:
    """Yield a function that completes the word at the cursor from those before it; files where nothing else fits."""
    yield "_backstory() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words='
    yield '  case "$COMP_CWORD ${COMP_WORDS[1]} ${COMP_WORDS[2]}" in'
    yield f"    1\\ *) words={shlex.quote(' '.join(_verbs()))} ;;"
    for verb, names in _first_words().items():
        yield f"    2\\ {verb}\\ *) words={shlex.quote(' '.join(names))} ;;"
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
    yield "autoload -Uz compinit bashcompinit && compinit && bashcompinit"
    yield from _bash()


def _fish() -> Iterator[str]:
    from backstory.cli.main import VERBS

    for verb, phrase in VERBS.items():
        yield f"complete -c backstory -n __fish_use_subcommand -a {verb} -d {shlex.quote(phrase)}"
    for verb, names in _first_words().items():
        names = shlex.quote(" ".join(names))
        yield f"complete -c backstory -n '__fish_seen_subcommand_from {verb}' -a {names}"
    for command, (kind, default) in COMMANDS.items():
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.split())
        for setting in settings(kind, default):
            choices = _choices(setting)
            value = f" -x -a {shlex.quote(' '.join(choices))}" if choices else "" if setting.kind is bool else " -r"
            sentence = " ".join(field_doc(setting.owner, setting.field).split()).partition(". ")[0].rstrip(".")
            for flag in () if setting.positional else (*setting.short, *setting.flags()):
                long = flag.removeprefix("--")
                yield f"complete -c backstory -n '{seen}' -l {long}{value} -d {shlex.quote(sentence)}"


def _verbs() -> list[str]:
    from backstory.cli.main import VERBS

    return list(VERBS)


def _first_words() -> dict[str, list[str]]:
    """Return what may follow a verb: its actions, or the names that come with the package and need no torch."""
    # Their folder's own module would load numpy.
    suites = sorted(file.stem for file in (Path(backstory.__file__).parent / "papers" / "suites").glob("*.yaml"))
    actions = {verb: list(module.ACTIONS) for verb, module in _WITH_ACTIONS.items()}
    names = {"train": recipes.names(), "ls": list(ls.KINDS), "reproduce": suites, "help": _verbs()}
    return actions | names | {"completion": list(typing.get_args(Shell))}


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


def _choices(setting: Setting) -> list[str]:
    if setting.choices:
        return list(setting.choices)
    return [str(v) for kind in setting.kinds() if typing.get_origin(kind) is Literal for v in typing.get_args(kind)]
