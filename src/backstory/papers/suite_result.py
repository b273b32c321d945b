"""The result of a reproduction: published beside ours, system by system, and whether each claim and finding holds."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backstory.config import to_dict
from backstory.config.scores import UnknownShare
from backstory.papers.claims import AUDIT_FAILED, CONFOUNDED, MISSING, OPPOSITE, UNDECIDED, YES, Judgement, judge
from backstory.papers.findings import judged, measures_of
from backstory.papers.paper import paper
from backstory.papers.plan import Run, fingerprints, place_of, published_figure, reads
from backstory.papers.suite import Claim, Reading, Scale, Side, Suite, System
from backstory.papers.suite_folder import SuiteFolder
from backstory.papers.suite_jobs import DONE, FAILED, RunJob
from backstory.reports.reproductions import place_in
from backstory.reports.results import MutableRecord, Result
from backstory.storage.provenance import commit, versions


def figures(
    suite: Suite, name: str, scale: Scale, folder: SuiteFolder, found: Sequence[RunJob], threads: int
) -> MutableRecord:
    """What docs/results.md describes as the figures of a reproduction."""
    settings = fingerprints([job.run for job in found])
    each = [job.known.record if job.known else _run(job, folder, suite, settings[job.run.name]) for job in found]
    planned = {
        system.name: [r for r in each if r["system"] == system.name] for system in suite.systems if system.at(scale)
    }
    trained = protocols([job.run for job in found])
    return {
        "suite": name,
        "scale": scale,
        "title": suite.title,
        "note": suite.note,
        "papers": [f"{p.cited}: {p.title}" for p in map(paper, suite.papers)],
        "metric": suite.metric,
        "unit": next((r["unit"] for r in each if r["unit"]), None),
        "planned": len(each),
        "finished": sum(r["state"] == DONE for r in each),
        "failed": sum(r["state"] == FAILED for r in each),
        "core_hours": round(sum(r["seconds"] for r in each) * threads / 3600, 3),
        "threads": threads,
        "systems": [
            _system(system, reading, planned[system.name]) | {"protocol": trained[system.name]}
            for system in suite.systems
            if system.name in planned
            for reading in system.readings
        ],
        "claims": [
            _claim(claim, suite, planned)
            for claim in suite.claims
            if claim.better.system in planned and claim.than.system in planned
        ],
        "findings": judged(suite, [job.run for job in found], {r["run"]: r for r in each}),
        "runs": each,
    }


def protocols(runs: Sequence[Run]) -> dict[str, MutableRecord]:
    """Return how each system is trained, by its name: corpus, epochs, optimizer, and the system that it begins with."""
    systems = {run.name: run.system for run in runs}
    return {run.system: _protocol(run, systems) for run in runs}


def _protocol(run: Run, systems: Mapping[str, str]) -> MutableRecord:
    training = run.config.training
    keys = ("epochs", "finetune_epochs", "optimizer", "learning_rate", "batch_size", "segment")
    begin = None if run.init_from is None else systems[run.init_from]
    return {"corpus": run.config.text.corpus, **{key: getattr(training, key) for key in keys}, "init_from": begin}


def provenance(suite: Suite, found: Sequence[RunJob], folder: SuiteFolder, command: str, started: str) -> MutableRecord:
    """What the result says of how it came about: settings of the suite, and what the finished runs agree or differ on."""
    done = [s for s in found if s.known or folder.finished(s.run)]
    origins = [s.known.provenance if s.known else folder.results(s.run)[0].provenance for s in done]

    def told(key: str) -> str | None:
        return "; ".join(dict.fromkeys(str(o[key]) for o in origins if o.get(key) is not None)) or None

    corpora = list({str(o.get("corpus")): o.get("corpus") or {} for o in origins}.values())
    return {
        "config": to_dict(suite),
        "seed": sorted({job.run.seed for job in found}),
        "commit": commit(),
        "versions": versions(),
        "device": told("device"),
        "precision": told("precision"),
        "precision_reason": told("precision_reason"),
        "corpus": corpora[0] if len(corpora) == 1 else {"name": ", ".join(str(c.get("name")) for c in corpora)},
        "started": started,
        "command": command,
    }


def _run(job: RunJob, folder: SuiteFolder, suite: Suite, settings: str) -> MutableRecord:
    """A run by its figures; those it has not come to are null or absent."""
    run, done = job.run, folder.made(job.run)
    results = [result for _, result in done]
    trained = next((r for r in results if r.kind == "training"), None)
    made = trained.provenance if trained else {}
    record: MutableRecord = {"run": run.name, "system": run.system, "seed": run.seed, "state": job.state}
    record |= {"problem": job.problem or None, "settings": settings}
    for key in ("parameters", "epochs", "best_epoch", "valid_perplexity", "unit", "tokens_per_second"):
        record[key] = trained.figures[key] if trained else None
    record["curve"] = [[e["epoch"], e["valid_perplexity"]] for e in trained.figures["curve"]] if trained else []
    for key in ("commit", "device", "precision", "weights"):
        record[key] = made.get(key)
    record["seconds"] = round(sum(r.provenance.get("seconds") or 0.0 for r in results), 1)
    record["readings"] = [_reading(command.reading, result, suite) for command, result in done if command.reading]
    keys = ("experiment", "split", "targets", "maximum_context", "effective_context")
    record["examinations"] = [
        {key: r.figures[key] for key in keys if key in r.figures} for r in results if r.kind == "examination"
    ]
    return record | {"effect_sizes": measures_of(suite, folder, run)}


def _reading(asked: Reading, result: Result, suite: Suite) -> MutableRecord:
    f = result.figures
    audited = f["audit"]["passed"] if f.get("audit") else None
    return {
        "split": f["split"],
        "reader": f["reader"],
        "batch_size": f.get("batch_size", 1),
        "after": f.get("after"),
        "addressing": asked.addressing,
        "tokens": f["tokens"],
        **({"unknown_share": UnknownShare.of(f).share} if "unknown_tokens" in f else {}),
        "seconds": result.provenance.get("seconds"),
        "value": f[suite.metric],
        "audited": audited,
        "weights": result.provenance.get("weights"),
        "policy": f.get("policy"),
        "memory": f.get("memory"),
        "recency": f.get("recency"),
    }


def _system(system: System, reading: Reading, runs: Sequence[MutableRecord]) -> MutableRecord:
    """A line of the table: the published figure, and ours over the seeds that are finished."""
    value, deviation, source = published_figure(reading.published) if reading.published else (None, None, None)
    found = _readings(runs, reading)
    ours = [r["value"] for r in found.values()]
    return {
        "system": system.name,
        "note": system.note,
        "split": reading.split,
        "reader": reading.reader,
        "batch_size": reading.batch_size,
        "after": reading.after,
        "addressing": reading.addressing,
        "published": value,
        "published_deviation": deviation,
        "source": source,
        "mean": statistics.fmean(ours) if ours else None,
        "deviation": statistics.stdev(ours) if len(ours) > 1 else None,
        "seeds": list(found),
        "planned_seeds": [run["seed"] for run in runs],
        "tokens": next((r["tokens"] for r in found.values()), None),
        "unknown_share": next((r.get("unknown_share") for r in found.values()), None),
        "audited": all(r["audited"] for r in found.values()) if found else None,
        "parameters": next((run["parameters"] for run in runs if run["parameters"]), None),
    }


def _readings(runs: Sequence[MutableRecord], reading: Reading | Side) -> dict[int, MutableRecord]:
    """The reading (or that of a claim's side) by seed, in the runs that have it."""
    place = place_of(reading)
    return {run["seed"]: r for run in runs for r in run["readings"] if place_in(r) == place}


def _claim(claim: Claim, suite: Suite, planned: dict[str, list[MutableRecord]]) -> MutableRecord:
    sides = (claim.better, claim.than)
    better, than = (_published(suite, side) for side in sides)
    found = [_readings(planned[side.system], side) for side in sides]
    judgement = _judged(found) if all(_whole(planned[side.system], side) for side in sides) else Judgement(MISSING)
    if claim.confounded and judgement.verdict in (YES, OPPOSITE, UNDECIDED):
        judgement = replace(judgement, verdict=CONFOUNDED)
    return {
        "sentence": claim.sentence,
        "better": vars(claim.better),
        "than": vars(claim.than),
        "published_gain": round(than - better, 6) if better is not None and than is not None else None,
        "seeds": [len(readings) for readings in found],
        "confounded": claim.confounded,
        **vars(judgement),
    }


def _whole(runs: Sequence[MutableRecord], side: Side) -> bool:
    """Whether every run of a side is finished and was read so."""
    return all(run["state"] == DONE for run in runs) and len(_readings(runs, side)) == len(runs)


def _judged(found: Sequence[dict[int, MutableRecord]]) -> Judgement:
    """The judgement on two sides of readings by seed, which there is of honest ones only."""
    if any(r["audited"] is False for readings in found for r in readings.values()):
        return Judgement(AUDIT_FAILED)
    better, than = ({seed: r["value"] for seed, r in readings.items()} for readings in found)
    return judge(better, than)


def _published(suite: Suite, side: Side) -> float | None:
    """What the paper printed for a claim's side."""
    readings = next(system.readings for system in suite.systems if system.name == side.system)
    published = next(r.published for r in readings if reads(r, side))
    return published_figure(published)[0] if published else None
