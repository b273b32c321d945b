"""Suites, plans and results about one paper, and the departures of their runs from its protocol: for the table of evidence."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from planned_systems import PlannedSystem, planned_systems, suite_of, suite_runs
from protocols import NOT_RECORDED, differences, length, size

from backstory.config import RunConfig
from backstory.config.strict import from_saved
from backstory.jobs.runner import DONE
from backstory.papers.paper import Paper, paper
from backstory.papers.plan import fingerprints
from backstory.papers.suite import PlannedReading, Scale, Suite, System, names
from backstory.papers.suite_result import protocol_of, protocols
from backstory.results import EvaluationFigures, ReproductionFigures, Result, TruncationFigures
from backstory.results.reproduction_record import ProtocolRecord
from backstory.utils.errors import UserError, plural

SCALES: tuple[Scale, ...] = ("small", "full")


@dataclass(frozen=True)
class PaperRuns:
    """Runs about one paper, planned and done."""

    name: str
    """The paper's name."""
    results: Sequence[Result]

    @cached_property
    def paper(self) -> Paper:
        return paper(self.name)

    @cached_property
    def suites(self) -> dict[str, Suite]:
        """Return the suites about the paper, then those about others with a reading beside one of its values."""
        suites = {name: suite_of(name) for name in names()}
        about = {name: suite for name, suite in suites.items() if self.name in suite.papers}
        return about | {name: suite for name, suite in suites.items() if any(map(self.printed_readings, suite.systems))}

    @cached_property
    def plans(self) -> dict[tuple[str, Scale], list[PlannedSystem]]:
        """Return the systems of each suite at each scale."""
        return {(name, scale): planned_systems(name, scale) for name in self.suites for scale in SCALES}

    @cached_property
    def reproductions(self) -> dict[tuple[str, str], ReproductionFigures]:
        figures = [result.figures for result in self.results if isinstance(result.figures, ReproductionFigures)]
        return {(f.suite, f.scale): f for f in figures if f.suite in self.suites}

    def is_about(self, suite: str) -> bool:
        """Return True if a suite is about the paper, not only beside one of its values."""
        return self.name in self.suites[suite].papers

    @cached_property
    def _single_runs(self) -> list[tuple[Result, RunConfig]]:
        """Return the readings and truncations outside of suites, with the settings of their runs."""
        runs = []
        for result in self.results:
            if isinstance(result.figures, EvaluationFigures | TruncationFigures) and result.provenance.config:
                with contextlib.suppress(UserError):
                    runs.append((result, from_saved(RunConfig, result.provenance.config, "the result")))
        return runs

    def single_runs_of(self, plan: PlannedSystem) -> Iterator[tuple[Result, RunConfig]]:
        """Yield the results of single runs that have the model and the text of a system, whatever their training."""
        published = plan.runs[0].config
        for result, config in self._single_runs:
            if (config.model, config.text) == (published.model, published.text):
                yield result, config

    def departures(
        self,
        suite: str,
        scale: Scale,
        plan: PlannedSystem,
        protocol: ProtocolRecord | None,
        parameters: int | None,
        seeds: int,
    ) -> list[str]:
        """Return the departures of runs from the paper's protocol, taken from the settings of the published size."""
        twin, departures = self._twin(suite, plan.system), []
        systems = [plan.system, *([twin.system] if twin else [])]
        printed = [self.paper.values[key] for system in systems for key in self.printed_readings(system)]
        if parameters is not None:
            departures += size(parameters, next((value.parameters for value in printed if value.parameters), ""), scale)
        if protocol is None:
            departures.append(NOT_RECORDED)
        elif twin is not None:
            departures += differences(protocol, protocol_of(twin.runs[0].config, None))
        elif scale == "small":
            epochs = f"{length(protocol)} {plural('epoch', protocol.epochs)} of {protocol.optimizer}"
            departures += [epochs, *([f"from the trained {protocol.init_from}"] if protocol.init_from else [])]
        if seeds < (models := max((value.runs or 0 for value in printed), default=self.paper.runs or 0)):
            departures.append(f"{seeds} {plural('seed', seeds)} for {models}")
        if scale == "small" and not departures:
            departures.append("small scale")
        setup = plan.system.at(scale)
        return departures + [text for text in (plan.system.protocol, setup.protocol if setup else "") if text]

    def protocol(self, suite: str, scale: Scale, plan: PlannedSystem) -> ProtocolRecord | None:
        """Return the protocol of a system: from its result, or from the suite if all runs have the suite's settings.

        Results of older versions lack a part of it, but a run's fingerprint covers all its settings.
        """
        figures = self.reproductions[suite, scale]
        record = next(s.protocol for s in figures.systems if s.system == plan.system.name)
        finished = [run for run in figures.runs if run.system == plan.system.name and run.state == DONE]
        planned = fingerprints(suite_runs(suite, scale))
        by_suite = all(run.settings and run.settings == planned.get(run.run) for run in finished)
        if finished and by_suite and (record is None or not record.whole):
            return protocols(suite_runs(suite, scale))[plan.system.name]
        return record

    def printed_readings(self, system: System) -> dict[str, PlannedReading]:
        """Return the readings of a system that correspond to printed values, by the names of the values."""
        return {
            name: reading
            for reading in system.readings
            for figure in (reading.published.figures if reading.published else ())
            for source, _, name in [figure.partition("/")]
            if source == self.name
        }

    def _twin(self, suite: str, system: System) -> PlannedSystem | None:
        """Return the full-size system that a system stands for: itself, or one with the same printed value."""
        full = self.plans[suite, "full"]
        others = (plan for name in self.suites if name != suite for plan in self.plans[name, "full"])
        values = self.printed_readings(system).keys()
        beside = [plan for plan in (*full, *others) if values & self.printed_readings(plan.system).keys()]
        return next(iter([p for p in full if p.system.name == system.name] + beside), None)
