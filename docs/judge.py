"""Judge the claims and findings of stored results anew, by the suites as they are: `python docs/judge.py`.

Readings and effect sizes stay as they were measured. Notes of the systems become those of the suite. A finding whose numbers
a result does not hold is not measured.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

from backstory.papers.claims import check_claims
from backstory.papers.findings import check_findings
from backstory.papers.plan import runs_of
from backstory.papers.suite import Scale, load
from backstory.results import ReproductionFigures, result_at
from backstory.storage.atomic import write_atomically

RESULTS = Path(__file__).parent.parent / "results"


def judged(figures: ReproductionFigures) -> ReproductionFigures:
    """Return a result with the verdicts of the suite as it is."""
    suite, records = load(figures.suite), {run.run: run for run in figures.runs}
    scale = cast(Scale, figures.scale)
    runs = [run for run in runs_of(suite, scale, figures.suite) if run.name in records]
    systems = dict.fromkeys(run.system for run in figures.runs)
    by_system = {system: [run for run in figures.runs if run.system == system] for system in systems}
    return replace(figures, claims=check_claims(suite, by_system), findings=check_findings(suite, runs, records))


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
        notes = {system.name: system.note for system in load(figures.suite).systems}
        for system in stored["figures"]["systems"]:
            system["note"] = notes.get(system["system"], system["note"])
        if stored != json.loads(text):
            write_atomically(path, json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
