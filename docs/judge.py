"""Judge the claims and findings of stored results again by the present suites: `python docs/judge.py`.

Readings and effect sizes stay as measured. Notes on systems and published figures are taken from the suite. A finding
whose numbers a result lacks is not measured.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from backstory.papers.claims import check_claims
from backstory.papers.findings import check_findings
from backstory.papers.plan import published_figure, runs_of
from backstory.papers.suite import Scale, System, load
from backstory.results import ReproductionFigures, result_at
from backstory.results.reproduction_record import SystemRecord
from backstory.storage.atomic import write_atomically

RESULTS = Path(__file__).parent.parent / "results"


def judged(figures: ReproductionFigures) -> ReproductionFigures:
    """Return a result with the verdicts, notes and published figures of the present suite."""
    suite, records = load(figures.suite), {run.run: run for run in figures.runs}
    scale = cast(Scale, figures.scale)
    runs = [run for run in runs_of(suite, scale, figures.suite) if run.name in records]
    names = dict.fromkeys(run.system for run in figures.runs)
    by_system = {system: [run for run in figures.runs if run.system == system] for system in names}
    systems = {system.name: system for system in suite.systems}
    return replace(
        figures,
        claims=check_claims(suite, by_system),
        findings=check_findings(suite, runs, records),
        systems=tuple(
            replace(record, **_of_suite(systems[record.system], record)) if record.system in systems else record
            for record in figures.systems
        ),
    )


def _of_suite(system: System, record: SystemRecord) -> dict[str, Any]:
    """Return the suite's note on a system, and its published figure for one of the readings."""
    texts: dict[str, Any] = {"note": system.note}
    for reading in system.readings:
        if all(getattr(record, key) == value for key, value in SystemRecord.values(reading).items()):
            value, deviation, source = published_figure(reading.published) if reading.published else (None, None, None)
            texts |= {"published": value, "published_deviation": deviation, "source": source}
    return texts


def main() -> None:
    for path in sorted(RESULTS.glob("reproduce-*.json")):
        text, figures = path.read_text(encoding="utf-8"), cast(ReproductionFigures, result_at(path).figures)
        stored, new = json.loads(text), judged(figures)
        for name in ("claims", "findings"):
            before, after = (json.loads(json.dumps(f.to_dict()[name])) for f in (figures, new))
            if before != after:
                stored["figures"][name] = after
                print(
                    f"{path.name}: {sum(one not in before for one in after)} of {len(after)} {name} are other than before"
                )
        for system, before, after in zip(stored["figures"]["systems"], figures.systems, new.systems, strict=True):
            system |= {key: value for key, value in vars(after).items() if value != getattr(before, key)}
        if stored != json.loads(text):
            write_atomically(path, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
