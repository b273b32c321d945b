"""A suite: the systems that test a paper's claims, at a small scale and at the published one, as strict YAML."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from backstory.config.examination_options import ExaminationSettings
from backstory.config.options import ReadingOptions
from backstory.config.recipes import Packaged, merged
from backstory.config.strict import between
from backstory.papers.paper import Finding, Metric, paper
from backstory.utils.errors import UserError, check_name

Scale = Literal["small", "full"]
HOURS: dict[Scale, str] = {"small": "core-hours", "full": "GPU-hours"}
"""Unit of a suite's stated costs."""


@dataclass(frozen=True)
class PublishedReference:
    """A printed value: one of a paper in this package, or a number with its source."""

    figure: str | None = None
    """PAPER/NAME, as `awd-lstm/ptb-test`."""
    value: float | None = between(None, 0.0, above=True)
    """The number itself."""
    source: str = ""
    """Its source: authors, year, table."""
    also: tuple[str, ...] = ()
    """PAPER/NAME of values that other papers print for the same; the table of evidence alone has them."""

    @property
    def figures(self) -> tuple[str, ...]:
        """Return all values of papers in this package."""
        return (self.figure, *self.also) if self.figure else self.also


@dataclass(frozen=True)
class PlannedReading(ReadingOptions):
    """A reading of a system, as `backstory evaluate` reads it."""

    published: PublishedReference | None = None
    protocol: str = ""
    """Departures of this reading from the paper's, besides those of its system."""


@dataclass(frozen=True, kw_only=True)
class PlannedExamination(ExaminationSettings):
    """An experiment on a system's use of context, with any option of `backstory examine` that its result depends on."""

    runs: int = between(1, 1)
    """Number of the system's runs that are examined, in the order of its seeds."""


@dataclass(frozen=True)
class SystemSetup:
    """Settings of a system at one scale."""

    recipe: str
    """A packaged recipe, or the path of a YAML file."""
    minutes: float = field(metadata={"range": (0.0, float("inf"), True)})
    """Time of one run: on one CPU core at the small scale, on one GPU at the full one."""
    seeds: tuple[int, ...]
    """One run for each seed."""
    overrides: dict = field(default_factory=dict)
    """Settings that differ from the recipe's, nested as there."""
    init_from: str | None = None
    """A system whose run of the same seed each run starts from, as in `backstory train --init-from`."""
    examinations: tuple[PlannedExamination, ...] = ()
    protocol: str = ""
    """As that of the system, at this scale alone."""


@dataclass(frozen=True)
class System:
    """A system: one line of a paper's table."""

    name: str
    """Letters, digits, dots and hyphens; it names the run folders."""
    readings: tuple[PlannedReading, ...] = (PlannedReading(),)
    prepare: tuple[str, ...] = ()
    """Commands of `backstory reader` for each trained run before it is read: `tune --reader dynamic`."""
    note: str = ""
    protocol: str = ""
    """Departures from the paper's system that its settings do not show."""
    small: SystemSetup | None = None
    full: SystemSetup | None = None

    def at(self, scale: Scale) -> SystemSetup | None:
        """Return the setup at a scale, or None."""
        return self.small if scale == "small" else self.full


@dataclass(frozen=True)
class ClaimSide(ReadingOptions):
    """A reading of a system, as a claim names it."""

    system: str = field(kw_only=True)


@dataclass(frozen=True)
class Claim:
    """The claim that one reading scores better (lower) than another."""

    sentence: str
    better: ClaimSide
    than: ClaimSide
    where: str = ""
    """The table or section of the paper that makes it; empty for a claim of our own."""
    paper: str = ""
    """That paper, in a suite about several."""
    confounded: str = ""
    """Differences between the sides beyond the claim. Such a claim has no verdict; its gain is shown with this reason."""


@dataclass(frozen=True)
class FindingCheck:
    """A test of a paper's findings on a system; with a baseline, of those about a system beside another."""

    paper: str
    system: str
    baseline: str | None = None
    protocol: str = ""
    """Departures of the examinations from the paper's."""
    corpus: str = "ptb"
    """The corpus that the findings are about."""

    @property
    def systems(self) -> tuple[str, ...]:
        return (self.system,) if self.baseline is None else (self.system, self.baseline)

    def findings(self) -> dict[str, Finding]:
        """Return the findings that it tests, by name. Raises UserError for an unknown paper."""
        findings, about = paper(self.paper).findings, (self.baseline is not None, self.corpus)
        return {name: finding for name, finding in findings.items() if (finding.paired, finding.corpus) == about}


@dataclass(frozen=True)
class Suite:
    """Systems, and what is tested on them."""

    title: str
    systems: tuple[System, ...]
    claims: tuple[Claim, ...] = ()
    findings: tuple[FindingCheck, ...] = ()
    papers: tuple[str, ...] = ()
    """The papers of this package that it is about."""
    metric: Metric = "perplexity"
    """Metric of every reading; lower is better."""
    note: str = ""
    """Reductions of the small scale, and anything else that a reader of the table must know."""


def expand(data: Any, source: str) -> Any:
    """Return a suite's YAML without what its systems and findings share: `templates` and `departures`.

    A system that `extends` a template has its entries, except those it gives itself. Entries are merged as overrides are
    with a recipe; a list replaces a list. A template may extend one before it. A `protocol` that is a list names
    `departures`, whose sentences it stands for. A departure of some `readers` goes to the system's readings with one of them.
    """
    if isinstance(data, dict) and "templates" in data:
        data = _with_templates(data, source)
    return _with_departures(data, source) if isinstance(data, dict) else data


def _with_templates(data: dict, source: str) -> dict:
    templates: dict[str, dict] = {}
    entries = data["templates"]
    named = isinstance(entries, dict) and all(isinstance(name, str) for name in entries)
    if not named or not all(isinstance(entry, dict) for entry in entries.values()):
        raise UserError(f"{source}: templates must be entries of systems by name")
    for name, entry in entries.items():
        templates[name] = _extended(entry, templates, f"{source}: template {name}")
    systems = data.get("systems")
    if isinstance(systems, list):
        systems = [_extended(s, templates, f"{source}: systems[{i}]") for i, s in enumerate(systems)]
    entries_used = [*entries.values(), *(data["systems"] if isinstance(systems, list) else ())]
    used = [entry.get("extends") for entry in entries_used if isinstance(entry, dict)]
    if unused := next((name for name in entries if name not in used), None):
        warnings.warn(f"{source}: no system extends the template {unused}, so it has no effect", stacklevel=2)
    return {key: value for key, value in data.items() if key not in ("templates", "systems")} | {"systems": systems}


def _extended(entry: Any, templates: Mapping[str, dict], where: str) -> Any:
    if not isinstance(entry, dict) or "extends" not in entry:
        return entry
    name = entry["extends"]
    if not isinstance(name, str):
        raise UserError(f"{where}: extends must be the name of a template")
    try:
        check_name(name, templates, "template")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return merged(templates[name], {key: value for key, value in entry.items() if key != "extends"})


def _with_departures(data: dict, source: str) -> dict:
    entries = data.get("departures", {})
    named = isinstance(entries, dict) and all(isinstance(name, str) for name in entries)
    if not named or not all(map(_is_departure, entries.values())):
        raise UserError(
            f"{source}: departures must be sentences by name, or {{readers: [NAME], sentence: TEXT}} by name"
        )
    departures = {name: {"readers": [], "sentence": e} if isinstance(e, str) else e for name, e in entries.items()}

    def written_out(entry: Any, where: str) -> Any:
        if not isinstance(entry, dict) or not isinstance(entry.get("protocol"), list):
            return entry
        if not departures:
            raise UserError(f"{where}: protocol names departures, and the suite has none; write a sentence")
        for name in entry["protocol"]:
            try:
                check_name(str(name), departures, "departure")
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
        meant = [departures[str(name)] for name in entry["protocol"]]
        entry = entry | {"protocol": "; ".join(d["sentence"] for d in meant if not d["readers"])}
        for departure in (d for d in meant if d["readers"]):
            entry = _with_departure_of_readings(entry, departure, where)
        return entry

    lists = {key: data[key] for key in ("systems", "findings") if isinstance(data.get(key), list)}
    lists = {key: [written_out(e, f"{source}: {key}[{i}]") for i, e in enumerate(all_)] for key, all_ in lists.items()}
    return {key: value for key, value in data.items() if key != "departures"} | lists


def _is_departure(entry: Any) -> bool:
    """Return True for a sentence, and for one of some readers."""
    if not isinstance(entry, dict):
        return isinstance(entry, str)
    readers, sentence = entry.get("readers"), entry.get("sentence")
    names = isinstance(readers, list) and bool(readers) and all(isinstance(name, str) for name in readers)
    return entry.keys() == {"readers", "sentence"} and names and isinstance(sentence, str)


def _with_departure_of_readings(entry: dict, departure: Mapping[str, Any], where: str) -> dict:
    """Return a system's entry with a departure in the `protocol` of each reading with one of its readers."""
    readings = entry.get("readings")
    readings, applies = readings if isinstance(readings, list) else [], []
    for reading in readings:
        stack = str(reading.get("reader", "")).split("+") if isinstance(reading, dict) else []
        applies.append(any(part.partition(":")[0] in departure["readers"] for part in stack))
    if not any(applies):
        names = " or ".join(departure["readers"])
        raise UserError(
            f"{where}: protocol names a departure of readings with {names}, and there are none; leave it out"
        )

    def joined(reading: dict) -> dict:
        return reading | {"protocol": "; ".join(filter(None, (reading.get("protocol"), departure["sentence"])))}

    return entry | {"readings": [joined(r) if applied else r for r, applied in zip(readings, applies, strict=True)]}


_PACKAGED = Packaged(Suite, "backstory.papers", "suites", "suite", expand)
names, load = _PACKAGED.names, _PACKAGED.load
"""Names of the packaged suites, and a loader for one of them or a user's file. `plan.check` checks the content."""
