"""The table of evidence: our measurement and protocol for each table row, figure and claim of the papers.

The verdict on a run with another protocol than the paper's says so, and is never "no".
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from evidence_cells import (
    SCORES,
    claim_verdict,
    gain_cell,
    measure_words,
    printed_cell,
    protocol_cell,
    score_verdict,
    scores_cell,
    seeds_cell,
)
from paper_runs import SCALES, PaperRuns
from planned_systems import PAPERS, PlannedSystem, not_run, planned_systems
from protocols import depends_on_tags, other_tags

from backstory.config import RunConfig
from backstory.papers.claims import AUDIT_FAILED, published_gain
from backstory.papers.effect_sizes import CONTEXT, SPLIT, context_cost
from backstory.papers.findings import NO, NOT_MEASURED, NOT_RUN, check_finding, examines
from backstory.papers.paper import PrintedItem, PublishedValue
from backstory.papers.suite import Claim, FindingCheck, PlannedReading, Scale, Suite
from backstory.papers.suite_result import protocol_of
from backstory.results import EvaluationFigures, TruncationFigures, result_or_none
from backstory.results.examination_record import CACHE
from backstory.results.reproduction_record import ClaimRecord, FindingRecord, SystemRecord
from backstory.results.suite_run_record import MeasuredRecord, RunRecord
from backstory.utils.formats import MISSING


@dataclass(frozen=True)
class EvidenceRow:
    """One line of the table."""

    paper: str
    item: str
    """Table, figure or section, and its content."""
    protocol: str
    """`yes` if it was run as published, else the departures."""
    scale: Scale | Literal[""]
    seeds: str
    published: str
    ours: str
    verdict: str


def evidence(folder: Path) -> list[EvidenceRow]:
    """Return the table from the result files of a folder: `reproduce-*.json`, and single runs of published models."""
    results = [result for path in sorted(folder.glob("*.json")) if (result := result_or_none(path))]
    return [row for name in PAPERS for row in _Evidence(PaperRuns(name, results)).rows()]


@dataclass(frozen=True)
class _Evidence:
    """The rows of one paper."""

    runs: PaperRuns

    def rows(self) -> Iterator[EvidenceRow]:
        yield from self._table_rows()
        for name, suite in self.runs.suites.items():
            for claim in (c for c in suite.claims if c.where and c.paper in ("", self.runs.name)):
                yield from self._claim_rows(name, suite, claim)
        yield from self._finding_rows()
        yield from map(self._item_row, self.runs.paper.items)

    # --- rows of tables ---

    def _table_rows(self) -> Iterator[EvidenceRow]:
        """Yield a line for each row of a printed table, at each scale of a suite and for other runs of its model."""
        judged = {value for finding in self.runs.paper.findings.values() for value in finding.values}
        printed: dict[tuple[str, str], dict[str, PublishedValue]] = {}
        for key, value in self.runs.paper.values.items():
            if key not in judged:
                name = value.row if value.metric in SCORES else key
                printed.setdefault((value.where, name), {})[key] = value
        for (where, name), values in printed.items():
            item, in_suite = f"{where}: {re.sub(r'table-[0-9]-', '', name)}", False
            for (suite, scale), plans in self.runs.plans.items():
                for plan in plans:
                    if readings := {k: r for k, r in self.runs.printed_readings(plan.system).items() if k in values}:
                        row = self._table_row(item, values, suite, scale, plan, readings)
                        about = self.runs.is_about(suite)
                        # What a suite about another paper has not run is not listed: one about this paper has it, too.
                        if about or row.ours != MISSING:
                            in_suite = True
                            yield row
                        if about:
                            yield from self._single_readings(item, values, suite, scale, plan, readings)
            if not in_suite:
                yield self._unplanned(item, values)

    def _table_row(
        self, item: str, values: Mapping[str, PublishedValue], suite: str, scale: Scale, plan: PlannedSystem,
        readings: Mapping[str, PlannedReading],
    ) -> EvidenceRow:  # fmt: skip
        figures = self.runs.reproductions.get((suite, scale))
        systems = figures.systems if figures else ()
        records: dict[str, SystemRecord] = {}
        for key, reading in readings.items():
            for record in systems:
                if record.system == plan.system.name and record.place == reading.reading() and record.mean is not None:
                    records[key] = record
        if not records:
            return self._row(item, "", scale, "", printed_cell(values), "", not_run([plan], scale))
        first = next(iter(records.values()))
        protocol = self.runs.protocol(suite, scale, plan)
        departures = self.runs.departures(suite, scale, plan, protocol, first.parameters, len(first.seeds))
        departures += _of_readings(readings[key] for key in records)
        ours = {key: (record.mean, record.deviation) for key, record in records.items()}
        seeds = seeds_cell(first.seeds, first.planned_seeds)
        verdict = score_verdict(values, {key: record.mean for key, record in records.items()}, bool(departures))
        if any(record.audited is False for record in records.values()):
            verdict = AUDIT_FAILED
        return self._row(
            item, protocol_cell(departures), scale, seeds, printed_cell(values), scores_cell(values, ours), verdict
        )

    def _single_readings(
        self, item: str, values: Mapping[str, PublishedValue], suite: str, scale: Scale, plan: PlannedSystem,
        readings: Mapping[str, PlannedReading],
    ) -> Iterator[EvidenceRow]:  # fmt: skip
        """Yield a line for each run outside of suites that has the model of a system and one of its readings."""
        runs: dict[str, dict[str, EvaluationFigures]] = {}
        configs: dict[str, RunConfig] = {}
        for result, config in self.runs.single_runs_of(plan) if scale == "full" else ():
            if isinstance(figures := result.figures, EvaluationFigures):
                run = f"{config} {result.provenance.weights}"
                for key in (key for key, reading in readings.items() if _is_reading(figures, reading, config)):
                    runs.setdefault(run, {})[key] = figures
                    configs[run] = config
        for run, read in runs.items():
            scores = {
                k: f.perplexity if values[k].metric == "perplexity" else f.bits_per_token for k, f in read.items()
            }
            departures = self.runs.departures(suite, scale, plan, protocol_of(configs[run], None), None, 1)
            departures += _of_readings(readings[key] for key in read)
            verdict = score_verdict(values, scores, bool(departures))
            if any(figures.audit is not None and not figures.audit.passed for figures in read.values()):
                verdict = AUDIT_FAILED
            ours = scores_cell(values, {key: (score, None) for key, score in scores.items()})
            yield self._row(item, protocol_cell(departures), scale, "1", printed_cell(values), ours, verdict)

    def _unplanned(self, item: str, values: Mapping[str, PublishedValue]) -> EvidenceRow:
        """Return the line of a printed row that no suite has."""
        first = next(iter(values.values()))
        verdict = "quoted by the paper from others" if first.quoted else self._unplanned_cost(first.costs_as)
        if first.trained_apart:
            verdict = verdict.replace("not run: ", "not run, and no suite has it: as long as ")
        return self._row(item, "", "" if first.quoted else "full", "", printed_cell(values), "", verdict)

    def _unplanned_cost(self, *costs_as: str) -> str:
        pairs = [one.partition("/")[::2] for one in costs_as]
        plans = [
            plan for suite, system in pairs for plan in planned_systems(suite, "full") if plan.system.name == system
        ]
        return not_run(plans, "full")

    # --- claims ---

    def _claim_rows(self, name: str, suite: Suite, claim: Claim) -> Iterator[EvidenceRow]:
        gain = published_gain(suite, claim)
        for scale in SCALES:
            sides = [
                plan
                for system in dict.fromkeys((claim.better.system, claim.than.system))
                for plan in self.runs.plans[name, scale]
                if plan.system.name == system
            ]
            if {plan.system.name for plan in sides} != {claim.better.system, claim.than.system}:
                continue
            item, published = f"{claim.where}: {claim.sentence}", "" if gain is None else f"gain {gain:g}"
            figures = self.runs.reproductions.get((name, scale))
            record = next((c for c in figures.claims if _same_claim(c, claim)), None) if figures else None
            if figures is None or record is None or record.gain is None:
                yield self._row(item, "", scale, "", published, "", not_run(sides, scale))
                continue
            departures: dict[str, None] = {}
            for plan in sides:
                of = next(s for s in figures.systems if s.system == plan.system.name)
                protocol = self.runs.protocol(name, scale, plan)
                of_side = self.runs.departures(name, scale, plan, protocol, of.parameters, len(of.seeds))
                read = [s.reading() for s in (claim.better, claim.than) if s.system == plan.system.name]
                of_side += _of_readings(r for r in plan.system.readings if r.reading() in read)
                departures |= dict.fromkeys(of_side)
            seeds = " and ".join(map(str, dict.fromkeys(record.seeds)))
            yield self._row(
                item, protocol_cell(departures), scale, seeds, published, gain_cell(record),
                claim_verdict(record, bool(departures)),
            )  # fmt: skip

    # --- findings ---

    def _finding_rows(self) -> Iterator[EvidenceRow]:
        """Yield a line for each finding, each system that it is tested on and each scale, and for other runs of its model."""
        checks = [(name, check) for name, suite in self.runs.suites.items() for check in suite.findings]
        for name, check in ((name, check) for name, check in checks if check.paper == self.runs.name):
            beside = f" ({' beside '.join(check.systems)})" if check.baseline else ""
            for key, finding in check.findings().items():
                item = f"{finding.where}: {finding.sentence}{beside}"
                for scale in SCALES:
                    plans = [p for s in check.systems for p in self.runs.plans[name, scale] if p.system.name == s]
                    examined = [plan for plan in plans if any(examines(run, finding) for run in plan.runs)]
                    if len(examined) == len(check.systems):
                        yield self._suite_finding(item, name, scale, plans, check, key)
                        if scale == "full" and not check.baseline:
                            yield from self._single_findings(item, name, plans[0], check, key)

    def _suite_finding(
        self, item: str, name: str, scale: Scale, plans: Sequence[PlannedSystem], check: FindingCheck, key: str
    ) -> EvidenceRow:
        """Return the line of a finding in a suite's result."""
        figures = self.runs.reproductions.get((name, scale))
        systems, tested = figures.systems if figures else (), (check.paper, key, check.system, check.baseline)
        for record in figures.findings if figures else ():
            if (record.paper, record.finding, record.system, record.baseline) == tested and record.verdict != NOT_RUN:
                departures: list[str] = []
                for plan in plans:
                    of = next(s for s in systems if s.system == plan.system.name)
                    examined = len(record.seeds) if plan.system.name == check.system else len(of.seeds)
                    protocol = self.runs.protocol(name, scale, plan)
                    departures += self.runs.departures(name, scale, plan, protocol, of.parameters, examined)
                runs = [run for run in figures.runs if run.system in check.systems] if figures else []
                return self._finding(item, record, scale, check, departures, runs)
        published = check.findings()[key].published
        return self._row(item, "", scale, "", published, "", not_run(plans, scale))

    def _single_findings(
        self, item: str, name: str, plan: PlannedSystem, check: FindingCheck, key: str
    ) -> Iterator[EvidenceRow]:
        """Yield a line for each truncation outside of suites that a finding can be tested on."""
        for result, config in self.runs.single_runs_of(plan):
            if isinstance(truncation := result.figures, TruncationFigures) and _is_published(truncation):
                run = RunRecord(run="", system=check.system, seed=config.seed, state="done", examinations=(),
                                effect_sizes=_truncation_effects(truncation))  # fmt: skip
                record = check_finding(check, key, check.findings()[key], [run])
                if record.verdict != NOT_MEASURED:
                    departures = self.runs.departures(name, "full", plan, protocol_of(config, None), None, 1)
                    yield self._finding(item, record, "full", check, departures, [run])

    def _finding(
        self,
        item: str,
        record: FindingRecord,
        scale: Scale,
        check: FindingCheck,
        departures: list[str],
        runs: Sequence[RunRecord],
    ) -> EvidenceRow:
        """Return the line of a finding, with the departures of the trainings and those of the examinations of `runs`."""
        finding, shown = check.findings()[record.finding], {one.measure for one in record.measures}
        measures = finding.measures if record.protocol is None else finding.fallback
        costs = [cost for one in measures if one.decides or one.key in shown for cost in one.costs]
        counted = bool(costs) and all(cost.experiment == CACHE for cost in costs)  # on every token, as in the paper
        departures += [check.protocol] if check.protocol and not counted else []
        departures += [text for text in (finding.protocol, record.protocol) if text]
        if self.runs.paper.tagger and any(map(depends_on_tags, costs)):
            departures += other_tags(self.runs.paper.tagger, runs)
        verdict = record.verdict
        if departures:
            verdict = f"under other conditions: {'it does not show' if verdict == NO else verdict}"
        seeds, ours = seeds_cell(record.seeds, record.planned_seeds), "; ".join(map(measure_words, record.measures))
        return self._row(item, protocol_cell(departures), scale, seeds, record.published, ours, verdict)

    # --- other items ---

    def _item_row(self, item: PrintedItem) -> EvidenceRow:
        text = f"{item.where}: {item.sentence}"
        if item.diagram:
            return self._row(text, "", "", "", item.published, "", "a diagram or settings: nothing was measured")
        cost = self._unplanned_cost(*item.costs_as) if item.costs_as else ""
        if item.ours:
            verdict = "; ".join(filter(None, ("under other conditions", cost)))
            return self._row(text, f"no: {item.protocol}", "", "", item.published, item.ours, verdict)
        return self._row(text, "", "full", "", item.published, "", cost)

    # --- parts of a line ---

    def _row(self, item: str, protocol: str, scale: Scale | Literal[""], *cells: str) -> EvidenceRow:
        texts = [cell or MISSING for cell in cells]
        return EvidenceRow(self.runs.paper.cited, item, protocol or MISSING, scale, *texts)


def _of_readings(readings: Iterable[PlannedReading]) -> list[str]:
    """Return the departures of readings, each once."""
    return list(dict.fromkeys(reading.protocol for reading in readings if reading.protocol))


def _same_claim(record: ClaimRecord, claim: Claim) -> bool:
    sides = ((record.better, claim.better), (record.than, claim.than))
    return all(one and one.system == side.system and one.place == side.reading() for one, side in sides)


def _is_reading(figures: EvaluationFigures, reading: PlannedReading, config: RunConfig) -> bool:
    """Return True if an evaluation matches a suite's reading: whole split, same reader, batch size and addressing."""
    ours = figures.split, figures.reader, figures.batch_size, figures.after
    whole = not (figures.lines or figures.lengths or figures.options)
    addressing = reading.addressing or getattr(config.model.core, "addressing", None)
    same = ours == (reading.split, reading.reader, reading.batch_size, reading.after)
    return same and whole and figures.addressing in (None, addressing)


def _is_published(truncation: TruncationFigures) -> bool:
    """Return True if a truncation is of the published split, without a reader that adapts; older results name no reader."""
    return truncation.split == SPLIT and truncation.reader in (None, "static")


def _truncation_effects(figures: TruncationFigures) -> dict[str, MeasuredRecord]:
    """Return the effect sizes of a truncation's result, in the form of a suite's run."""
    used = figures.effective_context
    low, high = used.interval or (used.context, used.context)
    effects = {CONTEXT.key: MeasuredRecord(value=used.context, low=low, high=high)}
    return effects | {
        context_cost(c.context).key: MeasuredRecord(value=c.effect, low=c.low, high=c.high) for c in figures.conditions
    }
