"""Fill the tables of README and docs from the result files in results/: `python docs/generate.py`."""

import re
from collections.abc import Callable
from functools import partial

from tables import checks, codes, evaluations, examinations, papers, records, sources, speeds

from backstory.reports import Table, fill

TABLES: dict[str, dict[str, Callable[[], Table]]] = {
    "README.md": {"memories-gain": papers.gains},
    "docs/results/README.md": {
        "ptb-small": evaluations.learning,
        "recipes": evaluations.reading,
        "full-size": evaluations.full_size,
    },
    "docs/full-size.md": {"full-size": evaluations.full_size},
    "docs/results/evidence.md": {"evidence": papers.evidence_of_papers},
    "docs/results/speed.md": {
        "speed": partial(speeds.speed, "benchmark-training"),
        "speed-amd": partial(speeds.speed, "benchmark-training-amd"),
        "floor": speeds.floor_speed,
        "curves": speeds.learning_curves,
        "speed-gpu": partial(speeds.speed, "benchmark-training-cuda"),
    },
    "docs/context.md": {
        "tags": examinations.tags,
        "scoring-speed": speeds.scoring_speed,
        "memories": examinations.remembering,
        "sampled": examinations.sampled,
        "precisions": examinations.precisions,
        "with-cache": examinations.with_cache,
        "harmed": examinations.harmed,
    },
    "docs/training.md": {"timed": evaluations.timed},
    "docs/results.md": {},
    "docs/codec.md": {"codes": codes.codes, "codes-of-docs": codes.codes_of_docs, "coding-speed": codes.coding_speed},
    "docs/counting.md": {
        "ngrams": codes.counted_ngrams,
        "ppm": codes.counted_bytes,
        "stacks": partial(codes.counted_stacks, "stdlib"),
        "stacks-ptb": partial(codes.counted_stacks, "ptb"),
    },
    "docs/corpora.md": {"own-text": evaluations.own_text, "overlaps": checks.split_overlaps},
    "docs/reliability.md": {"reliability": checks.reliability},
    "docs/honest-figures.md": {
        "cheats": checks.caught_cheats,
        "honest": partial(checks.refused, "reader", "audit-zoo"),
        "audit-cost": checks.audit_cost,
    },
    "docs/referee.md": {
        "referee-cheats": checks.refereed_cheats,
        "referee-honest": partial(checks.refused, "predictor", "referee-zoo"),
    },
    "docs/reports.md": {"sections": records.report_sections},
    "docs/reproduce.md": {"suites": papers.suites_and_costs},
    "docs/span-buffer.md": {
        "span-buffer-scratch": papers.buffer_training,
        "span-buffer-search": papers.buffer_search,
        "span-buffer-search-use": papers.buffer_search_by_use,
        "span-buffer-cost": speeds.buffer_cost,
        "ptb-continued": papers.continued,
    },
    "docs/dual.md": {
        "cores": speeds.core_speed,
    },
    "docs/external-memory.md": {
        "tasks": evaluations.solved,
        "memory-speed": speeds.memory_speed,
        "memory-training": speeds.memory_training,
        "inference-time": speeds.inference_time,
    },
    "docs/dynamical.md": {
        "adaptive": evaluations.adaptive,
        "normalization": evaluations.normalization,
        "reading-speed": speeds.reading_speed,
    },
}


def tables_for(document: str, text: str) -> dict[str, Table]:
    """Return the tables of a document: its own, and those of suites that it has markers for, as far as results exist.

    A suite's tables are called `NAME`, `NAME-claims` and so on (`papers.KINDS`). Raises KeyError for an unknown marker.
    """
    own = {name: make() for name, make in TABLES[document].items()}
    suites = {f"{name}{kind}": partial(make, name) for name in papers.suites() for kind, make in papers.KINDS.items()}
    others = [name for name in re.findall(r"^<!-- table: (.+) -->$", text, re.MULTILINE) if name not in own]
    return own | {name: table for name in others if (table := suites[name]()).rows}


def filled(document: str) -> str:
    """Return a document's text with regenerated tables."""
    text = (sources.ROOT / document).read_text(encoding="utf-8")
    for name, table in tables_for(document, text).items():
        text = fill(text, name, table)
    return records.with_fields(text)


if __name__ == "__main__":
    for document in TABLES:
        (sources.ROOT / document).write_text(filled(document), encoding="utf-8")
        print(document)
