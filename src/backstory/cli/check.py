"""`backstory check FILE`: test the parts that a plugin registers against the contract."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from backstory.cli.command_line import JsonOutput, announce, parse, print_json
from backstory.config.plugin_files import load_plugin, where
from backstory.utils.errors import UserError

if TYPE_CHECKING:
    from backstory.plugins import Registered

Check = tuple[str, Callable[[], None]]
"""The property that must hold, and the function that tests it."""


@dataclass(frozen=True)
class CheckArguments(JsonOutput):
    """Test the cores, readers, metrics and experiments of a plugin against the contract that the built-in ones keep."""

    file: Annotated[
        tyro.conf.Positional[Path],
        tyro.conf.arg(metavar="FILE", help="A Python file that calls bs.register (docs/extending.md), or a module."),
    ]


def main(arguments: Sequence[str]) -> int:
    """Print a line for each check; the exit code is 2 where one fails."""
    args = parse(CheckArguments, arguments, "check")
    file = args.file
    announce(f"checking {file}")
    source = load_plugin(file, "`backstory check`")
    from backstory.plugins import registered_by

    parts = registered_by(source.files)
    if not parts:
        raise UserError(f"{file} registers nothing; call bs.register in it (docs/extending.md)")
    failed, outcomes = 0, []
    for part in parts:
        for sentence, problem in results(part, source.files):
            failed += problem is not None
            outcomes.append({"kind": part.kind, "name": part.name, "check": sentence, "problem": problem})
            if not args.json:
                print(f"{part.kind} {part.name}: {sentence} ... {'ok' if problem is None else 'FAILED'}")
            if problem is not None:
                print(f"backstory: {problem}", file=sys.stderr)
    if args.json:
        print_json({"file": str(file), "passed": not failed, "checks": outcomes})
    if failed:
        count = f"{failed} checks" if failed > 1 else "a check"
        raise UserError(f"{file.name} fails {count}; correct it, and run `backstory check {file}` again")
    return 0


def results(part: "Registered", files: Sequence[Path]) -> Iterator[tuple[str, str | None]]:
    """Yield each check's sentence, and what is wrong, with the file, one of these, and line; None where it holds."""
    from backstory.plugins.model_contract import ContractError
    from backstory.plugins.registration import source_line

    defined = source_line(part.part) or part.origin.where
    for sentence, check in checks(part):
        try:
            check()
            yield sentence, None
        except ContractError as error:
            yield sentence, f"{defined}: {part.kind} {part.name}: {error}"
        except Exception as error:
            yield (
                sentence,
                f"{where(error, files, files[0].name)}: {part.kind} {part.name}: {type(error).__name__}: {error}",
            )
            if sentence == "it can be built":
                return


def checks(part: "Registered") -> Iterator[Check]:
    """Yield the checks of a part; the first builds it."""
    from backstory.plugins import measuring_contract, model_contract, reader_contract

    made: list[Any] = []

    def later(check: Callable[[Any], None]) -> Callable[[], None]:
        return lambda: check(made[0])

    if part.kind == "core":
        assert part.settings is not None
        settings = part.settings()
        yield "it can be built", lambda: made.append(model_contract.model_with(settings))
        for sentence, check in model_contract.MODEL_CHECKS.items():
            yield sentence, later(check)
        yield "a saved model predicts the same", lambda: model_contract.is_what_is_saved(settings)
        yield "a step of training can be taken", lambda: model_contract.takes_a_step(settings)
    elif part.kind == "reader":
        yield "it can be built", lambda: made.append(reader_contract.reader_of(part.part))
        for sentence, check in reader_contract.READER_CHECKS.items():
            yield sentence, later(check)
    elif part.kind == "experiment":
        yield "it can be built", lambda: made.append(measuring_contract.conditions_of(part.part))
        yield "its conditions keep the contract", later(measuring_contract.check_conditions)
    else:
        for sentence, check in measuring_contract.METRIC_CHECKS.items():
            yield sentence, partial(check, part.part)
