"""`backstory reader audit RUN`: test on the real object that a reader's scores are honest."""

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from backstory.cli.parse import parse
from backstory.cli.run_arguments import RunArguments
from backstory.cli.verbs import dispatch
from backstory.config import plural
from backstory.config.schema import between


@dataclass(frozen=True)
class AuditArguments(RunArguments):
    """Read a split and test at random places that scores are causal, whole distributions, and taken before learning."""

    split: str = "valid"
    """train, valid or test."""
    reader: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Which reader: `backstory ls readers`; may be given more than once."""
    places: int = between(8, 1)
    """Random places of the text that are tested."""
    rows: int = between(1, 1)
    """Rows read side by side."""


def main(arguments: Sequence[str]) -> int:
    return dispatch("reader", {"audit": audit}, arguments)


def audit(arguments: Sequence[str]) -> int:
    """Exit code 1 when the reader fails."""
    given = parse(AuditArguments, arguments, "reader audit")

    from backstory.cli.progress import progress_bar
    from backstory.reading.evaluation import Count, read_audited
    from backstory.reading.kinds import parse_stack, stack_name
    from backstory.reading.opening import open_run

    reader = given.reader or "static"
    opened = open_run(given.run, given.split, reader=reader, device=given.device, data_dir=given.data_dir)
    with progress_bar(f"auditing on {given.split}") as progress:
        _, report = read_audited(opened, given.rows, given.places, [Count(progress, len(opened.split.ids))])
    places = f"{report.places} {plural('place', report.places)}"
    print(f"{given.run}, {stack_name(parse_stack(reader))} reader, {given.split} split, {places}")
    for check, passed in report.checks.items():
        print(f"  {check.replace('_', ' '):<22} {'passed' if passed else 'FAILED'}")
    for failure in report.failures:
        print(f"  {failure}")
    return 0 if report.passed else 1
