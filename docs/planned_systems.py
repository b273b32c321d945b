"""Systems of the suites as they are planned at each scale, and their stated cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from backstory.papers.plan import SuiteRun, runs_of
from backstory.papers.suite import HOURS, Scale, Suite, System, load

PAPERS = ("span-buffer", "localized-ntm", "dual", "context", "dynamical")
"""The papers whose systems this package implements. Their tables also contain the baselines of other papers."""


@dataclass(frozen=True)
class PlannedSystem:
    """A system of a suite at one scale."""

    suite: str
    system: System
    runs: tuple[SuiteRun, ...]
    """One for each seed."""


@cache
def suite_of(name: str) -> Suite:
    """Return a suite by its name."""
    return load(name)


@cache
def suite_runs(name: str, scale: Scale) -> list[SuiteRun]:
    """Return the runs of a suite at one scale."""
    return runs_of(suite_of(name), scale, name)


@cache
def planned_systems(name: str, scale: Scale) -> list[PlannedSystem]:
    """Return the systems of a suite at one scale."""
    suite = suite_of(name)
    if not any(system.at(scale) for system in suite.systems):
        return []
    runs = suite_runs(name, scale)
    plans = (PlannedSystem(name, s, tuple(run for run in runs if run.system == s.name)) for s in suite.systems)
    return [plan for plan in plans if plan.runs]


def not_run(plans: Sequence[PlannedSystem], scale: Scale) -> str:
    """Return the systems by their names in the suite, with the stated cost including the systems they start from."""
    if not plans:
        return "not run, and no suite has it"
    runs = {run.name: run for plan in plans for run in plan.runs}
    every = {run.name: run for plan in planned_systems(plans[0].suite, scale) for run in plan.runs}
    waiting = list(runs.values())
    while waiting:
        if (first := every.get(waiting.pop().init_from or "")) and first.name not in runs:
            runs[first.name] = first
            waiting.append(first)
    systems = list(dict.fromkeys(plan.system.name for plan in plans))
    names = " and ".join(systems) if len(systems) < 3 else f"{len(systems)} systems"
    names += "" if plans[0].suite in PAPERS else f" of {plans[0].suite}"
    names += f" of {plans[0].suite}" if len(systems) > 2 and plans[0].suite in PAPERS else ""
    return f"not run: {names}, {sum(run.minutes for run in runs.values()) / 60:,.1f} {HOURS[scale]} stated"
