"""Settings of the runs, commands to repeat the measurements, and results of unknown kinds."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import yaml

from backstory.reports import document as pieces
from backstory.reports.document import Piece, Section, of_kind
from backstory.reports.tables import Column, Table, columns
from backstory.results import Figures, OtherFigures, ProvenanceRecord, Result, RunResults
from backstory.results.published_values import Published
from backstory.utils import formats
from backstory.utils.formats import MISSING, count

FEW = 4
"""Maximum number of settings that only some runs have; more are collapsed."""
MOST_ROWS = 200
"""Maximum number of rows for a result of an unknown kind."""


def _others_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield results of unknown kinds."""
    for run in runs:
        for result in run.of(OtherFigures):
            heading = f"{run.name}: {result.figures.label}"
            yield pieces.Heading(heading)
            yield pieces.Tabular(values_table(result.figures.values), heading, look="plain")


def _settings_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the settings, with those that differ side by side."""
    table = differences_table(runs)
    # Settings of a part that only some runs have would bury the others.
    some = [row for row in table.rows if MISSING in row]
    shown = Table(table.columns, tuple(row for row in table.rows if row not in some or len(some) < FEW))
    yield pieces.Tabular(shown, "Settings that differ", "settings")
    if len(some) >= FEW:
        heading = f"Settings of parts that only some runs have ({len(some)})"
        yield pieces.collapsed(heading, Table(table.columns, tuple(some)), "settings")
    for run in runs:
        yield pieces.details(f"Settings of {run.name}", pieces.Code(run.config))


def _again_pieces(runs: Sequence[RunResults], published: Published | None) -> Iterator[Piece | None]:
    """Yield the commands that repeat every measurement, and the conditions they depend on."""
    for run in runs:
        yield pieces.Heading(run.name) if len(runs) > 1 else None
        commands = dict.fromkeys(r.provenance.command for r in run.results if r.provenance.command)
        yield pieces.Code("\n".join(commands))
        facts = {term: [fact(r.provenance) or "not recorded" for r in run.results] for term, fact in _FACTS.items()}
        yield pieces.Facts(tuple((term, texts[0]) for term, texts in facts.items() if len(set(texts)) == 1))
        differing = {term: texts for term, texts in facts.items() if len(set(texts)) > 1}
        labels = [result.figures.label for result in run.results]
        rows = tuple(zip(labels, *differing.values(), strict=True)) if differing else ()
        table = Table(columns("Result", *differing), rows)
        yield pieces.Tabular(table, f"What differs between the results of {run.name}", "plain")


OTHERS = Section("Other results", of_kind(OtherFigures), _others_pieces)
SETTINGS = Section("Settings", of_kind(Figures), _settings_pieces)
AGAIN = Section("Measure it again", of_kind(Figures), _again_pieces)


def differences_table(runs: Sequence[RunResults]) -> Table:
    """Return the settings in which the runs differ, with a row each and a column per run; empty without any."""
    settings = [_settings(run) for run in runs]
    if len(runs) < 2 or not all(settings):
        return Table((), ())
    names = dict.fromkeys(name for one in settings for name in one)
    rows = [(name, *(one.get(name, MISSING) for one in settings)) for name in names]
    heads = (Column("Setting"), *(Column(run.name) for run in runs))
    return Table(heads, tuple(row for row in rows if len(set(row[1:])) > 1))


def _settings(run: RunResults) -> dict[str, str]:
    """Return a run's settings with dotted keys; empty if they cannot be read or contain YAML references."""
    try:
        referring = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(run.config, yaml.SafeLoader))
        settings = {} if referring else yaml.safe_load(run.config)
        return dict(_flat(settings, "")) if settings and isinstance(settings, dict) else {}
    except Exception:  # impossible dates, numbers and depths raise errors of many types
        return {}


def values_table(values: Mapping[str, object]) -> Table:
    """Return any figures as dotted keys and values."""
    pairs = _flat(values, "")
    rows = pairs[:MOST_ROWS]
    if len(pairs) > MOST_ROWS:
        rows.append(("and more", f"{count(len(pairs) - MOST_ROWS)} further figures in the result file"))
    return Table(columns("Figure", "Value"), tuple(rows))


def _flat(value: object, path: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        return [p for key, inner in value.items() for p in _flat(inner, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [pair for index, inner in enumerate(value) for pair in _flat(inner, f"{path}[{index}]")]
    return [(path or "figures", formats.plain(value) if value != {} else "none")]


def _weights(origin: ProvenanceRecord) -> str:
    """Return the first digits of the weights' hash."""
    weights = origin.weights if isinstance(origin.weights, list) else [origin.weights]
    return ", ".join(str(one)[:12] for one in weights if one is not None or len(weights) > 1)


def _versions(origin: ProvenanceRecord) -> str:
    return ", ".join(f"{name} {formats.plain(version)}" for name, version in (origin.versions or {}).items())


def _precision(origin: ProvenanceRecord) -> str:
    if origin.precision and origin.precision_reason and origin.precision_reason != "requested":
        return f"{origin.precision}, because {origin.precision_reason}"
    return origin.precision or ""


def _text(origin: ProvenanceRecord) -> str:
    if (corpus := origin.corpus) is None:
        return ""
    types = f"{corpus.types:,} types" if corpus.types else None
    fingerprint = f"fingerprint {corpus.fingerprint}" if corpus.fingerprint else None
    return ", ".join(part for part in (corpus.name, corpus.provenance, types, fingerprint) if part)


_FACTS: dict[str, Callable[[ProvenanceRecord], str]] = {
    "Seed": lambda origin: "" if origin.seed is None else formats.plain(origin.seed),
    "Weights": _weights,
    "Commit": lambda origin: origin.commit or "",
    "Versions": _versions,
    "Device": lambda origin: origin.device or "",
    "Precision": _precision,
    "Text": _text,
    "Started": lambda origin: origin.started or "",
    "Took": lambda origin: "" if origin.seconds is None else formats.duration(origin.seconds),
}


def again(result: Result) -> Iterator[Piece | None]:
    """Yield the command and the facts of a page about one result."""
    yield from _again_pieces([RunResults(result.name, "", (), (), (result,))], None)
