"""Result of a reproduction: published and our figures of every system, and the verdict on each claim and finding."""

import statistics
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from backstory.config import RunConfig, to_dict
from backstory.jobs.runner import DONE, FAILED
from backstory.papers.claims import check_claims, readings_at
from backstory.papers.effect_sizes import effect_sizes
from backstory.papers.findings import check_findings
from backstory.papers.paper import paper
from backstory.papers.plan import SuiteRun, fingerprints, published_figure
from backstory.papers.suite import PlannedExamination, PlannedReading, Scale, Suite, System
from backstory.papers.suite_jobs import RunJob
from backstory.results import EvaluationFigures, ReproductionFigures, Result, TrainingFigures
from backstory.results.common import CorpusRecord, ProvenanceRecord
from backstory.results.examination_record import TruncationFigures
from backstory.results.reproduction_record import ProtocolRecord, SystemRecord
from backstory.results.result_file import as_examination
from backstory.results.suite_run_record import ExaminedRecord, ReadingRecord, RunRecord
from backstory.storage.provenance import commit, versions

TRAINED = ("parameters", "epochs", "best_epoch", "valid_perplexity", "unit", "tokens_per_second")
"""Fields of a training's figures that the run's record repeats."""


def reproduction_figures(
    suite: Suite, name: str, scale: Scale, jobs: Sequence[RunJob], threads: int
) -> ReproductionFigures:
    """Return the figures of a result of kind reproduction."""
    settings = fingerprints([job.run for job in jobs])
    runs = [job.known.record if job.known else _run(job, suite, settings[job.run.name]) for job in jobs]
    by_system = {
        system.name: [run for run in runs if run.system == system.name] for system in suite.systems if system.at(scale)
    }
    trained = protocols([job.run for job in jobs])
    return ReproductionFigures(
        suite=name,
        scale=scale,
        title=suite.title,
        note=suite.note,
        papers=tuple(f"{p.cited}: {p.title}" for p in map(paper, suite.papers)),
        metric=suite.metric,
        unit=next((run.unit for run in runs if run.unit), None),
        planned=len(runs),
        finished=sum(run.state == DONE for run in runs),
        failed=sum(run.state == FAILED for run in runs),
        core_hours=round(sum(run.seconds for run in runs) * threads / 3600, 3),
        threads=threads,
        systems=tuple(
            replace(_system(system, reading, by_system[system.name]), protocol=trained[system.name])
            for system in suite.systems
            if system.name in by_system
            for reading in system.readings
        ),
        claims=check_claims(suite, by_system),
        findings=check_findings(suite, [job.run for job in jobs], {run.run: run for run in runs}),
        runs=tuple(runs),
    )


def protocols(runs: Sequence[SuiteRun]) -> dict[str, ProtocolRecord]:
    """Return how each system is trained, by its name."""
    systems = {run.name: run.system for run in runs}
    return {run.system: protocol_of(run.config, systems.get(run.init_from or "")) for run in runs}


def protocol_of(config: RunConfig, init_from: str | None) -> ProtocolRecord:
    """Return how a run is trained: corpus, length, optimizer, regularization, and the system that it starts from."""
    training = config.training
    settings: dict[str, Any] = {f.name: getattr(training, f.name, None) for f in fields(ProtocolRecord)}
    settings |= {"corpus": config.text.corpus, "init_from": init_from}
    settings["finetune_learning_rate"] = training.finetune_learning_rate or training.learning_rate
    if training.optimizer != "sgd":
        settings["averaging"] = "none"  # the trigger averages the weights of SGD alone
    return ProtocolRecord(**settings)


def reproduction_provenance(
    suite: Suite, jobs: Sequence[RunJob], figures: ReproductionFigures, command: str, started: str
) -> ProvenanceRecord:
    """Return what is needed to repeat the reproduction, and where the finished runs agree or differ."""
    origins = [job.known.provenance if job.known else job.folder.results(job.run)[0].provenance for job in jobs
               if job.known or job.folder.finished(job.run)]  # fmt: skip

    def joined(key: str) -> str | None:
        values = [getattr(origin, key) for origin in origins]
        return "; ".join(dict.fromkeys(str(value) for value in values if value is not None)) or None

    corpora: list[CorpusRecord] = []
    for origin in origins:
        if (corpus := origin.corpus or CorpusRecord()) not in corpora:
            corpora.append(corpus)
    names = ", ".join(str(corpus.name) for corpus in corpora)
    return ProvenanceRecord(
        config=to_dict(suite),
        seed=sorted({job.run.seed for job in jobs}),
        commit=commit(),
        versions=versions(),
        device=joined("device"),
        precision=joined("precision"),
        precision_reason=joined("precision_reason"),
        corpus=corpora[0] if len(corpora) == 1 else CorpusRecord(name=names),
        started=started,
        command=command,
        seconds=round(sum(run.seconds for run in figures.runs), 1),
    )


def _run(job: RunJob, suite: Suite, settings: str) -> RunRecord:
    """Return the record of a run; figures that it has not reached yet are null or absent."""
    run, finished = job.run, job.folder.finished_commands(job.run)
    results = [result for _, result in finished]
    training = next((r for r in results if isinstance(r.figures, TrainingFigures)), None)
    figures: TrainingFigures | None = training.figures if training else None
    origin = training.provenance if training else ProvenanceRecord()
    return RunRecord(
        run=run.name,
        system=run.system,
        seed=run.seed,
        state=job.state,
        problem=job.problem or None,
        settings=settings,
        **{key: getattr(figures, key, None) for key in TRAINED},
        curve=tuple((epoch.epoch, epoch.valid_perplexity) for epoch in figures.curve) if figures else (),
        commit=origin.commit,
        device=origin.device,
        precision=origin.precision,
        weights=origin.weights,
        seconds=round(sum(r.provenance.seconds or 0.0 for r in results), 1),
        readings=tuple(_reading(command.reading, r, suite) for command, r in finished if command.reading),
        examinations=tuple(_examined(command.examination, r) for command, r in finished if command.examination),
        effect_sizes=effect_sizes(suite, job.folder, run),
    )


def _reading(reading: PlannedReading, result: Result[EvaluationFigures], suite: Suite) -> ReadingRecord:
    figures = result.figures
    return ReadingRecord(
        **ReadingRecord.values(reading),
        tokens=figures.tokens,
        unknown_share=figures.unknown_among(figures.tokens).share,
        seconds=result.provenance.seconds,
        value=figures.perplexity if suite.metric == "perplexity" else figures.bits_per_token,
        audited=figures.audit.passed if figures.audit else None,
        weights=result.provenance.weights,
        policy=figures.policy,
        memory=figures.memory,
        recency=figures.recency,
    )


def _examined(examination: PlannedExamination, result: Result[Any]) -> ExaminedRecord:
    figures = as_examination(result).figures
    return ExaminedRecord(
        experiment=figures.experiment,
        split=figures.split,
        targets=figures.targets,
        maximum_context=figures.maximum_context,
        options=examination.further() or None,
        tagger=figures.tagger,
        effective_context=figures.effective_context if isinstance(figures, TruncationFigures) else None,
    )


def _system(system: System, reading: PlannedReading, runs: Sequence[RunRecord]) -> SystemRecord:
    """Return a line of the table: the published figure, and ours over the seeds that are finished."""
    value, deviation, source = published_figure(reading.published) if reading.published else (None, None, None)
    records = readings_at(runs, reading)
    ours = [record.value for record in records.values() if record.value is not None]
    return SystemRecord(
        system=system.name,
        note=system.note,
        **SystemRecord.values(reading),
        published=value,
        published_deviation=deviation,
        source=source,
        mean=statistics.fmean(ours) if ours else None,
        deviation=statistics.stdev(ours) if len(ours) > 1 else None,
        seeds=tuple(records),
        planned_seeds=tuple(run.seed for run in runs),
        tokens=next((record.tokens for record in records.values()), None),
        unknown_share=next((record.unknown_share for record in records.values()), None),
        audited=all(record.audited for record in records.values()) if records else None,
        parameters=next((run.parameters for run in runs if run.parameters), None),
    )
