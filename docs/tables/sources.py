"""Sources of the docs' tables: files in results/, and formats that several tables share."""

import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from backstory.reports import Column, Table
from backstory.results import AuditRecord, Result, TruncationFigures, result_from
from backstory.results.common import UnknownTokens

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"


def figures_of(name: str) -> dict[str, Any]:
    """The figures of a result file as JSON."""
    return result(name).figures.to_dict()


def unknown_cell(figures: dict[str, Any]) -> str:
    """Format the share of `<unk>` in an evaluation for a table."""
    names = [field.name for field in dataclasses.fields(UnknownTokens)]
    unknown = UnknownTokens(**{name: figures.get(name) for name in names})
    return unknown.unknown_among(figures["tokens"]).cell()


def audit_ended(audit: dict[str, Any]) -> str:
    """Describe the outcome of an audit."""
    return AuditRecord.read(audit, "the audit").in_words()


def effective_context(figures: dict[str, Any]) -> str:
    """Describe the effective context of a truncation experiment."""
    return TruncationFigures.read(figures, "the examination").context_in_words()


def result(name: str) -> Result:
    """A result file by its name."""
    return result_at(RESULTS / f"{name}.json")


@cache
def result_at(path: Path) -> Result:
    return result_from(path.read_text(encoding="utf-8"), path.name)


def measured(name: str) -> Any:
    """A benchmark's file as plain JSON, without a record type."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def benchmark_rows(name: str) -> Any:
    """Rows of results/benchmark-NAME.json as JSON: a list, or an object with a key per measurement."""
    return measured(f"benchmark-{name}")["rows"]


def files(pattern: str) -> list[Path]:
    """Result files by a pattern, sorted by name."""
    return sorted(RESULTS.glob(f"{pattern}.json"))


def headed(
    heads: Sequence[str], rows: Iterable[tuple[str, ...]], texts: int = 1, numbers: Collection[int] | None = None
) -> Table:
    """A table with these headings. Columns hold numbers except for the first `texts`, or only at `numbers` if given."""
    numeric = range(texts, len(heads)) if numbers is None else numbers
    return Table(tuple(Column(head, numeric=i in numeric) for i, head in enumerate(heads)), tuple(rows))
