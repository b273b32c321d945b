"""Papers as data: the values that their tables print, and their findings about the models that they examined.

Each is a YAML file in `published/`, loaded by its name.
"""

import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from backstory.config import from_dict
from backstory.config.recipes import Packaged
from backstory.results.published_values import Published
from backstory.utils.errors import UserError, check_name

Metric = Literal["perplexity", "bits_per_token"]
PrintedMetric = Literal["perplexity", "bits_per_token", "effect_percent", "tokens", "share_percent"]
"""Printed quantities: scores, increases of perplexity in percent, context in tokens, shares of the tokens in percent."""
Unit = Literal["nats", "tokens", "share"]

EFFECTIVE_CONTEXT, OUTSIDE_WINDOW = "effective-context-two-sided", "outside-window"
"""Results of an examination besides the costs of its conditions: the effective context in tokens, and the share of the
text's tokens that a cache's window does not hold. The first name changed with its definition, which excludes older
results."""
_EXPERIMENTS = ("truncate", "shuffle", "reverse", "replace", "drop", "drop-target", "drop-distant", "replace-target")
"""Experiments whose conditions begin with their name. Listed here because `context.experiments` needs torch."""
_EXPERIMENT_OF = {EFFECTIVE_CONTEXT: "truncate", OUTSIDE_WINDOW: "cache", "without-cache": "cache"}


# --- what a file holds ---


@dataclass(frozen=True)
class PublishedColumn:
    """Protocol of the values in a column of a table."""

    split: str
    reader: str = "static"


@dataclass(frozen=True)
class PublishedTable:
    """Values that a paper prints in one place."""

    corpus: str
    where: str
    """The table, figure or section."""
    values: dict
    """By system: one value for each column, or a single value with the `split` and `reader` of the table. A value is a number,
    null, or [mean, deviation over the runs]."""
    columns: dict = field(default_factory=dict)
    """Columns by name, if they are not those of the paper."""
    split: str = "valid"
    reader: str = "static"
    metric: PrintedMetric = "perplexity"
    batch_size: int | None = 1
    """Rows that were read side by side; null if the paper does not say."""
    parameters: dict = field(default_factory=dict)
    """Parameters as printed (`18.3 M`), by the beginning of the system's name."""
    runs: int | None = None
    """Trained models that a value is the mean of, if that is not so for the whole paper."""
    costs_as: str = ""
    """SUITE/SYSTEM whose full-scale runs would give the rows that no suite has, or would cost as much."""
    trained_apart: tuple[str, ...] = ()
    """The rows among these that need a training of their own."""
    quoted: tuple[str, ...] = ()
    """Systems that the paper quotes from others instead of running them."""


@dataclass(frozen=True)
class MeasureEntry:
    """A measure as a file has it: costs are written `CONDITION` or `CONDITION of SPLIT GROUP, GROUP`."""

    name: str
    plus: tuple[str, ...]
    minus: tuple[str, ...] = ()
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True)
class FindingEntry:
    """A finding as a file has it."""

    sentence: str
    published: str
    """The values that it rests on, with printed ones as {CORPUS-NAME}."""
    where: str
    measures: tuple[MeasureEntry, ...] = ()
    fallback: tuple[MeasureEntry, ...] = ()
    """Measures that take the place of `measures` for a result that lacks one that decides."""
    fallback_protocol: str = ""
    """Departure of the fallback from the paper's protocol."""
    protocol: str = ""
    """Departure of what it is tested on from the paper's protocol."""
    measures_of: str = ""
    """Another finding, whose measures and departures it shares."""
    about: str = ""
    """Name of a printed number of tokens."""
    paired: bool = False
    corpus: str = "ptb"
    """The corpus that it is about."""


@dataclass(frozen=True)
class PrintedItem:
    """A figure, table or claim of a paper that is neither a row of values nor a finding."""

    sentence: str
    where: str
    published: str = ""
    """The values in it, in words."""
    diagram: bool = False
    """True if it shows a mechanism or settings instead of measurements."""
    costs_as: tuple[str, ...] = ()
    """SUITE/SYSTEM of every system whose runs at the full scale would show it together, of one suite."""
    ours: str = ""
    """Our measurement, with the page that has it."""
    protocol: str = ""
    """Departures of our measurement from the paper's protocol."""


@dataclass(frozen=True)
class PaperFile:
    """A paper's file."""

    title: str
    cited: str
    """Authors and year: `Merity et al. 2018`."""
    model: str = ""
    """Description of the model that it examines."""
    runs: int | None = None
    """Trained models, with a seed each, that its values are means of; null if the paper does not say."""
    tagger: str = ""
    """Tagger of the words in its examinations."""
    columns: dict = field(default_factory=dict)
    """Columns that most of its tables have, by the end of a value's name."""
    tables: tuple[PublishedTable, ...] = ()
    findings: dict = field(default_factory=dict)
    items: tuple[PrintedItem, ...] = ()


# --- the same, checked ---


@dataclass(frozen=True)
class PublishedValue:
    """One number of a paper."""

    value: float
    split: str
    where: str
    """The table, figure or section of the paper."""
    reader: str = "static"
    metric: PrintedMetric = "perplexity"
    batch_size: int | None = 1
    """Rows that were read side by side; None if the paper does not say."""
    deviation: float | None = None
    """Over the runs that it is the mean of, if that is printed."""
    parameters: str = ""
    """Parameters of the model, as printed; empty if that is missing or wrong."""
    row: str = ""
    """Corpus and system, and with `where` the row of a table that it is in."""
    costs_as: str = ""
    trained_apart: bool = False
    quoted: bool = False
    """True if it is quoted from another paper."""
    runs: int | None = None
    """Trained models that it is the mean of; None if the paper does not say."""


@dataclass(frozen=True)
class Cost:
    """Increase of the loss of some targets under a condition of an experiment on context, or another of its results."""

    experiment: str
    condition: str
    """Name of the condition; or EFFECTIVE_CONTEXT of `truncate`, or OUTSIDE_WINDOW of `cache`."""
    by: str = ""
    """A split of the targets into groups."""
    groups: tuple[str, ...] = ()
    """Names of the groups, which are pooled."""

    def __str__(self) -> str:
        return f"{self.condition} of {self.by} {', '.join(self.groups)}" if self.by else self.condition

    @classmethod
    def parse(cls, text: str) -> "Cost":
        """Read `truncate-50 of frequency infrequent`. Raises UserError for a condition of no experiment."""
        condition, _, rest = text.partition(" of ")
        by, _, groups = rest.partition(" ")
        experiment = _EXPERIMENT_OF.get(condition)
        if experiment is None:
            matches = [name for name in _EXPERIMENTS if condition == name or condition.startswith(f"{name}-")]
            if not matches:
                raise UserError(f"{text}: {condition} is a condition of no experiment")
            experiment = max(matches, key=len)
        return cls(experiment, condition, by, tuple(filter(None, groups.split(", "))))


@dataclass(frozen=True)
class Measure:
    """A number of an examined run: costs in nats per token, less other costs; or tokens; or a share of the text.

    Costs of one group are compared target by target; groups that differ hold different targets.
    """

    name: str
    """Its name in a table."""
    plus: tuple[Cost, ...]
    minus: tuple[Cost, ...] = ()
    above: float | None = None
    """The finding holds if the measure is above this, in percent of perplexity or of the tokens."""
    below: float | None = None
    """The same for below. A measure with neither is shown and decides nothing."""

    @property
    def key(self) -> str:
        """Key in a result; equal measures have equal keys."""
        return " - ".join([" + ".join(map(str, self.plus)), *map(str, self.minus)])

    @property
    def unit(self) -> Unit:
        kinds: dict[str, Unit] = {EFFECTIVE_CONTEXT: "tokens", OUTSIDE_WINDOW: "share"}
        return kinds.get(self.plus[0].condition, "nats")

    @property
    def costs(self) -> tuple[Cost, ...]:
        return *self.plus, *self.minus

    @property
    def decides(self) -> bool:
        """True if the verdict depends on it."""
        return self.above is not None or self.below is not None


@dataclass(frozen=True)
class Finding:
    """A statement of a paper about a model that it examined, and the test of it on another model."""

    sentence: str
    published: str
    """The printed evidence for it, in a few words."""
    where: str
    """Section and figure."""
    measures: tuple[Measure, ...] = ()
    """It holds if each measure is within its bounds."""
    fallback: tuple[Measure, ...] = ()
    """Measures that take their place for a result that lacks one that decides."""
    fallback_protocol: str = ""
    """Departure of the fallback from the paper's protocol."""
    protocol: str = ""
    """Departure of both from the paper's protocol."""
    about: float | None = None
    """Tokens: it holds if the effective context is between half and twice of this."""
    paired: bool = False
    """True if it is about a system and a baseline: their effective contexts should agree, as above."""
    values: tuple[str, ...] = ()
    """Names of the printed values in it."""
    corpus: str = "ptb"

    @property
    def on_context(self) -> bool:
        """True if it is about the length of the effective context."""
        return self.paired or self.about is not None


@dataclass(frozen=True)
class Paper:
    """A paper whose claims are tested here."""

    title: str
    cited: str
    model: str
    runs: int | None
    """Trained models that its values are means of; None if the paper does not say, or it depends on the table."""
    tagger: str
    values: Mapping[str, PublishedValue]
    """By CORPUS-SYSTEM-COLUMN: `ptb-mos-test`."""
    findings: Mapping[str, Finding]
    corpora: tuple[str, ...]
    items: tuple[PrintedItem, ...]


_PACKAGED = Packaged(PaperFile, "backstory.papers", "published", "paper")


def paper_names() -> list[str]:
    """Return the names of the papers."""
    return _PACKAGED.names()


@cache
def paper(name: str) -> Paper:
    """Return a paper by its name. Raises UserError for an unknown one."""
    check_name(name, paper_names(), "paper")
    file = _PACKAGED.load(name)
    values: dict[str, PublishedValue] = {}
    for table in file.tables:
        values |= _values(table, file, f"paper {name}")
    entries = {key: from_dict(FindingEntry, entry, f"paper {name}: {key}") for key, entry in file.findings.items()}
    findings = {key: _finding(entry, entries.get(entry.measures_of, entry), values) for key, entry in entries.items()}
    corpora = tuple(dict.fromkeys(table.corpus for table in file.tables))
    return Paper(file.title, file.cited, file.model, file.runs, file.tagger, values, findings, corpora, file.items)


def published_value(reference: str) -> tuple[PublishedValue, str]:
    """Return a value by PAPER/NAME (`awd-lstm/ptb-test`), and its source in words. Raises UserError."""
    name, _, key = reference.partition("/")
    source = paper(name)
    check_name(key, source.values, f"value of {name}")
    return source.values[key], f"{source.cited}, {source.values[key].where}"


def published_examinations() -> Published:
    """Return the printed values of the paper on context, for a report to set beside a model's own."""
    source = paper("context")
    by_corpus = {
        corpus: {
            name.removeprefix(f"{corpus}-"): value.value
            for name, value in source.values.items()
            if name.startswith(f"{corpus}-")
        }
        for corpus in source.corpora
    }
    return Published(source.cited, source.model, by_corpus)


def _values(table: PublishedTable, file: PaperFile, source: str) -> dict[str, PublishedValue]:
    """Return the values of a table by their names."""
    columns = table.columns or file.columns
    named = {key: from_dict(PublishedColumn, c, f"{source}: columns") for key, c in columns.items()}
    values = {}
    for system, printed in table.values.items():
        prefixes = [prefix for prefix in table.parameters if system.startswith(prefix)]
        parameters = table.parameters[max(prefixes, key=len)] if prefixes else ""
        cells: list[tuple[str, PublishedColumn, Any]]
        if isinstance(printed, list):
            cells = [(key, column, cell) for (key, column), cell in zip(named.items(), printed, strict=True)]
        else:
            cells = [("", PublishedColumn(table.split, table.reader), printed)]
        for key, column, cell in cells:
            if cell is None:
                continue
            value, deviation = cell if isinstance(cell, list) else (cell, None)
            name = "-".join(filter(None, (table.corpus, system, key)))
            values[name] = PublishedValue(
                value,
                column.split,
                table.where,
                column.reader,
                table.metric,
                table.batch_size,
                deviation,
                parameters,
                " ".join(filter(None, (table.corpus, system))),
                table.costs_as,
                system in table.trained_apart,
                system in table.quoted,
                table.runs or file.runs,
            )
    return values


def _finding(entry: FindingEntry, measured: FindingEntry, values: Mapping[str, PublishedValue]) -> Finding:
    """Return a finding with the measures of `measured`."""
    names = tuple(name for _, name, _, _ in string.Formatter().parse(entry.published) if name)
    published = entry.published.format(**{name: f"{values[name].value:g}" for name in names})
    about = values[entry.about].value if entry.about else None
    return Finding(
        entry.sentence,
        published,
        entry.where,
        _measures(measured.measures),
        _measures(measured.fallback),
        measured.fallback_protocol,
        measured.protocol,
        about,
        entry.paired,
        names,
        entry.corpus,
    )


def _measures(entries: Iterable[MeasureEntry]) -> tuple[Measure, ...]:
    return tuple(
        Measure(m.name, tuple(map(Cost.parse, m.plus)), tuple(map(Cost.parse, m.minus)), m.above, m.below)
        for m in entries
    )
