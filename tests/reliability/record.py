"""Run the whole reliability matrix, or the named cases of it, and write the outcomes into results/reliability.json.

python tests/reliability/record.py [NAME ...]
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what tests of several rooms share

from matrix import MATRIX

from backstory.storage.atomic import write_atomically
from backstory.storage.provenance import commit, now, processor, versions

RESULTS = Path(__file__).resolve().parents[2] / "results" / "reliability.json"


def record(name: str) -> None:
    """Run one case whole and take its outcome into the file, which keeps those of the others."""
    case, began = MATRIX[name], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        failures = list(case.run(range(case.count), Path(folder)))
    outcome = {
        "what": case.what,
        "promise": case.promise,
        "trials": case.count,
        "failures": len(failures),
        "seconds": round(time.perf_counter() - began, 1),
        "commit": commit(),
        "versions": versions(),
        "processor": processor(),
        "date": now(),
    }
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    kept = {known: found[known] for known in MATRIX if known in found}
    write_atomically(RESULTS, json.dumps({**kept, name: outcome}, indent=1) + "\n")
    print(f"{name}: {len(failures)} of {case.count:,} failed, {outcome['seconds']:,.0f} s", flush=True)
    for failure in failures[:20]:
        print(f"  {failure}", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or MATRIX:
        record(name)
