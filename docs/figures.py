"""Check every measured number in the prose of the pages against its source: `python docs/figures.py [PAGE]...`.

`docs/figures.yaml` holds the sources and says how an entry is written. The scan reads prose, hand-written tables and the
comments at the head of a YAML file. It leaves out code, tables that docs/generate.py makes, defaults in tables of settings,
numbers of sections and years.
"""

import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from backstory.config import recipes
from backstory.models import build_model, count_parameters
from backstory.papers import paper as papers
from backstory.papers.suite import load as load_suite

ROOT = Path(__file__).resolve().parent.parent
ENTRIES = ROOT / "docs" / "figures.yaml"
PICTURES = "pictures"

SMALL = (
    "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
)
WORDS = {word: n for n, word in enumerate(SMALL.split(), 2)} | {
    "one": 1,
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
}
PARTS = {
    "half": 2,
    "third": 3,
    "quarter": 4,
    "fifth": 5,
    "sixth": 6,
    "seventh": 7,
    "eighth": 8,
    "ninth": 9,
    "tenth": 10,
}
DECLARED = {
    "setting": "a default or a choice: the reason says of what",
    "definition": "part of a definition, format, unit or limit: the reason says of which",
    "bound": "a threshold that measurements are compared with: 'less than 1%'",
    "published": "printed by a paper that has no file in papers/published: authors, year, and where",
    "outside": "a fact about the world that is no measurement of ours: the size of a download",
    "estimate": "reckoned and not measured: how long hardware takes, on a line that begins with '# hardware'",
    "unkept": "measured here once and not kept; the paragraph itself must say 'not kept'",
}

_WORD = "|".join(WORDS)
_UNIT = (
    r"(?:times|s|seconds?|minutes?|hours?|days|core-hours?|ms|milliseconds?|[KMGT]i?B|M|million|billion|bits?|nats?|tokens?"
    r"|words?|bytes?|characters?|points?|steps?|trials|degrees|tokens/s|per ?cent|ahead|behind|in perplexity)\b"
)
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?%?"
LOOKS_MEASURED = re.compile(
    rf"""
      (?:(?<=[\s(])-)?\b(?:\d+\.\d+(?:e-?\d+)?|\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|\d{{4,}}|\d+e-?\d+|\d+(?=%))%?
    | \b\d+(?=\s+(?:(?:to|and|or)\s+{_NUMBER}\s+)?{_UNIT})
    | (?:(?<=[\s(])-)?\b\d+(?=\s+(?:to|and|or)\s+-?(?:\d+\.\d|\d{{1,3}},\d{{3}}|\d+%))
    | (?<=[a-z]\s)(?<=\b(?:gain|lose|cost|take|save)s\s)\d+
    | \b(?:{_WORD})(?=\s+(?:(?:to|or)\s+\w+\s+)?(?:times|(?:core-)?(?:hours?|minutes?|seconds?|days?|weeks?))\b)
    | \b(?:{_WORD})(?=\s+of\s+(?:the\s+)?(?:{_WORD})\b)
    | \b(?:an?|{_WORD})\s+(?:{"|".join(PARTS)})s?\b(?!\s+of\s+an?\s+second)
    | \bhalf(?=\s+an?\s+\w)
    | \b(?:twice|half)(?=\s+as\s+(?:fast|long|much|many|large|slow|often)\b)
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Decimals, percentages, thousands, numbers with a unit, 'N times', 'an eighth', 'nine of eighteen'."""
MEASURES = re.compile(
    r"perplexit|\b(?:gain|lose|lost|loss|cost|harm|help|save|beat|win|won)s?\b|times as (?:fast|slow)"
    r"|\b(?:faster|slower|ahead|nats?|comes? to|took|entropy|deviation)\b|tokens/s",
    re.IGNORECASE,
)
"""Words next to which a number is a measurement and not a setting."""
BEFORE_BOUND = re.compile(
    r"\b(?:than|within|above|below|over|under|least|most|up to|bound of|beyond|where|same to|first) (?:about )?$",
    re.IGNORECASE,
)
AFTER_BOUND = re.compile(r"(?:\s+\w+)?\s+(?:(?:or|and)\s+(?:more|less|fewer)|on)\b")
"""Words before or after a threshold."""


class FigureError(Exception):
    """A figure without a source, or with another value there."""


# Reading what a page says -----------------------------------------------------------------------------------------------


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def own_text(page: str) -> str:
    """Blank out the tables that docs/generate.py fills; all other characters keep their positions."""
    return re.sub(r"<!-- table: .*?<!-- end -->", _blank, page, flags=re.DOTALL)


def prose(page: str) -> str:
    """Blank out text without measured numbers: code, generated tables, links, defaults, section numbers, years."""
    text = own_text(page)
    for pattern in (
        r"(?s:^( *)```.*?^\1```)",
        r"(?:(?<=\n\n)|\A)(?: {4}.*\n|\n(?= {4}))+",
        r"`[^`\n]*(?:\n[^`\n]+)?`",
        r"\]\([^)]*\)",
        r"\b(?:sections?|tables?|figures?|eqs?\.|equations?|algorithms?)\s+\d[\d.]*[a-z]?(?:(?:,| to| and)\s+\d[\d.]*[a-z]?)*",
        r"\b(?:19[5-9]|20[0-3])\d\b(?![,.]\d)",
        r"\d{4}-\d\d-\d\d",
        r"(?<=\bPython )\d[\d.]*|(?<=\bPyTorch )\d[\d.]*|\b\d+\.\d+\.\d+\b",
        r"95%(?=\s+(?:t\s+|bootstrap\s+)?(?:intervals?|confidence))",
        r"\b(?:a|one|two|second)\s+second\b(?!s)(?=\s+(?!\W))(?!\s+of\b)",
    ):
        text = re.sub(pattern, _blank, text, flags=re.MULTILINE)
    return _without_defaults(text)


def _without_defaults(text: str) -> str:
    """Blank out table columns with the heading `default`."""
    lines, columns = text.split("\n"), list[int]()
    for i, line in enumerate(lines):
        if not line.startswith("|"):
            columns = []
        elif i + 1 < len(lines) and re.fullmatch(r"\|[-|: ]+\|", lines[i + 1]):
            columns = [k for k, cell in enumerate(line.split("|")) if cell.strip().lower() == "default"]
        elif columns:
            cells = line.split("|")
            lines[i] = "|".join(" " * len(cell) if k in columns else cell for k, cell in enumerate(cells))
    return "\n".join(lines)


def heading_comments(text: str) -> str:
    """Blank out a YAML file except for the comments at its head."""
    head = re.match(r"(?:#.*\n)*", text)
    assert head is not None
    return head.group() + re.sub(r"[^\n]", " ", text[head.end() :])


# Numbers as they are written --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A number in a text: its value, and the tolerance from rounding."""

    value: float
    below: float
    above: float

    @classmethod
    def parse(cls, text: str) -> "Written | None":
        """Read `1,024`, `0.27%`, `-0.002`, `1e-6`, `nine`, `twice`, `an eighth` or `three quarters`; None for anything else."""
        words = text.lower().replace("-", " ").split() if text[:1].isalpha() else []
        if words == ["twice"]:
            return cls(2.0, 0.25, 0.25)
        if words == ["half"]:
            return cls(0.5, 0.1, 0.1)
        if len(words) == 1 and words[0] in WORDS:
            return cls(WORDS[words[0]], 0.5, 0.5)
        if len(words) == 2 and words[1].removesuffix("s") in PARTS and (words[0] in WORDS or words[0] in ("a", "an")):
            count, part = WORDS.get(words[0], 1), PARTS[words[1].removesuffix("s")]
            return cls(count / part, (count / part - count / (part + 1)) / 2, (count / (part - 1) - count / part) / 2)
        if not re.fullmatch(rf"-?{_NUMBER}", text):
            return None
        plain = text.rstrip("%").replace(",", "")
        mantissa, _, exponent = plain.partition("e")
        unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        percent = 0.01 if text.endswith("%") else 1.0
        return cls(float(plain) * percent, unit * percent / 2, unit * percent / 2)

    def is_rounded(self, value: float) -> bool:
        """Return True if `value` rounds to it. `12%` is written for 0.12."""
        slack = 1e-9 * max(1.0, abs(value))
        return self.value - self.below - slack <= value <= self.value + self.above + slack


# Sources: the functions of an expression --------------------------------------------------------------------------------


@cache
def _content(file: str) -> Any:
    return json.loads((ROOT / "results" / f"{file}.json").read_text(encoding="utf-8"))


def at(file: str, path: str) -> Any:
    """Return a value of a result file: `at("read-demo", "figures/perplexity")`.

    An item of a list is named by its index or by one of its fields: `"figures/runs/run=lstm-seed1/seconds"`.
    """
    value: Any = _content(file)
    for key in path.split("/"):
        if isinstance(value, list) and "=" in key:
            conditions = dict(part.split("=", 1) for part in key.split(","))
            matches = [item for item in value if all(str(item.get(k)) == v for k, v in conditions.items())]
            if len(matches) != 1:
                raise FigureError(f"{file}: {len(matches)} items are {key}")
            value = matches[0]
        else:
            value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _suite(name: str) -> dict[str, Any]:
    return at(f"reproduce-{name}", "figures")


def _runs(suite: str, system: str) -> list[dict[str, Any]]:
    runs = [run for run in _suite(suite)["runs"] if run["system"] == system and run["state"] == "done"]
    if not runs:
        raise FigureError(f"reproduce-{suite}: no finished run of {system}")
    return runs


def _reading(readings: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the first matching reading, which has the smallest batch size unless `batch_size` is given."""
    wanted = {"reader": "static", "split": "test", "addressing": None, **wanted}
    for reading in readings:
        if all(reading.get(key) == value for key, value in wanted.items()):
            return reading
    raise FigureError(f"no reading {wanted}")


def mean(suite: str, system: str, **reading: Any) -> float:
    """Mean over seeds of a system of a suite: `mean("dual", "lstm", reader="cache")`; also split, batch_size, addressing."""
    return _reading([one for one in _suite(suite)["systems"] if one["system"] == system], **reading)["mean"]


def deviation(suite: str, system: str, **reading: Any) -> float:
    """Standard deviation of the same over seeds."""
    return _reading([one for one in _suite(suite)["systems"] if one["system"] == system], **reading)["deviation"]


def seeds(suite: str, system: str, key: str = "value", **reading: Any) -> list[float]:
    """Values of each seed's reading, in the order of the seeds: `value` or, for example, `policy/mean_lambda`."""
    values = []
    for run in _runs(suite, system):
        value: Any = _reading(run["readings"], **reading)
        for part in key.split("/"):
            value = value[part]
        values.append(value)
    return values


def epochs(suite: str, system: str, epoch: int = 0) -> float:
    """Mean validation perplexity over seeds after an epoch, by default the best one."""
    runs = _runs(suite, system)
    values = [dict(run["curve"])[epoch] if epoch else run["valid_perplexity"] for run in runs]
    return sum(values) / len(values)


def claim(suite: str, sentence: str, part: str = "gain") -> float:
    """Gain of a claim, or the `low` or `high` end of its interval."""
    for one in _suite(suite)["claims"]:
        if one["sentence"] == sentence:
            return one[part]
    raise FigureError(f"reproduce-{suite} has no claim '{sentence}'")


def findings(suite: str, verdict: str = "") -> int:
    """Count the findings of a suite's first system, or those with this verdict."""
    rows = _suite(suite)["findings"]
    return sum(one["system"] == rows[0]["system"] and one["verdict"] == (verdict or one["verdict"]) for one in rows)


def published(reference: str) -> float:
    """Return a value that a paper printed: `published("dual/ptb-lstm-test")`."""
    return papers.published_value(reference)[0].value


def recipe(name: str, setting: str) -> Any:
    """Return a setting of a recipe: `recipe("ptb-small", "training.epochs")`."""
    value: Any = recipes.load(name)
    for part in setting.split("."):
        value = getattr(value, part)
    return value


def corpus(name: str, split: str = "types") -> int:
    """Return the tokens of a split of a corpus, or its types."""
    row = at("benchmark-corpora", "rows")[name]
    return row["types"] if split == "types" else row["tokens"][split]


def constant(module: str, name: str) -> Any:
    """Return a constant of the code: `constant("backstory.evaluation.metrics.gate_statistics", "LEAST")`."""
    return getattr(importlib.import_module(module), name)


def setting(suite: str, system: str, path: str) -> Any:
    """Return a suite's override of a recipe at the small scale: `setting("dual", "lstm", "training.epochs")`."""
    (small,) = (one.small for one in load_suite(suite).systems if one.name == system)
    value: Any = small.overrides if small else {}
    for part in path.split("."):
        value = value[part]
    return value


def parameters(name: str, types: int, **core: Any) -> int:
    """Count the parameters of a recipe's model over this many types; settings of its core can be changed."""
    model = recipes.load(name).model
    with torch.device("meta"):
        return count_parameters(build_model(replace(model, core=replace(model.core, **core)), types))


def average(values: list[float]) -> float:
    """Mean of a list."""
    return sum(values) / len(values)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f.__name__: f
        for f in (
            at,
            mean,
            deviation,
            seeds,
            epochs,
            claim,
            findings,
            published,
            recipe,
            setting,
            corpus,
            constant,
            parameters,
            average,
        )
    },
    **{f.__name__: f for f in (abs, any, float, int, len, max, min, round, sorted, sum, zip)},
    **{f.__name__: f for f in (math.exp, math.log, math.sqrt)},
}


def value_of(expression: str) -> float:
    """Compute an expression over result files. Raises FigureError if it cannot be computed."""
    try:
        value = eval(expression, {"__builtins__": {}, **FUNCTIONS})
    except Exception as error:
        raise FigureError(f"{expression}: {type(error).__name__}: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FigureError(f"{expression} is {value!r}, not a number")
    return float(value)


# Entries ----------------------------------------------------------------------------------------------------------------

Source = str | Mapping[str, str]
"""An expression, or a declaration: its kind and the reason."""


class _UniqueKeys(yaml.SafeLoader):
    """A loader that refuses duplicate keys, which would silently replace each other."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise FigureError(f"written twice: {sorted(twice)}")
        return super().construct_mapping(node, deep)


def load(text: str) -> dict[str, Any]:
    """Read figures.yaml: quotes and their sources for every page. Raises FigureError for a duplicate quote."""
    return yaml.load(text, _UniqueKeys) or {}


@dataclass(frozen=True)
class Quote:
    """A stretch of a page with the numbers of an entry in braces: `gains {2.1} in perplexity`."""

    text: str

    def pieces(self) -> list[tuple[str, bool]]:
        """Split it at numbers in braces, and return each part and whether it is one. Other braces are text."""
        parts = re.split(r"(\{[^{}]+\})", self.text)
        return [(p[1:-1], True) if p[:1] == "{" and Written.parse(p[1:-1]) else (p, False) for p in parts if p]

    def pattern(self) -> re.Pattern[str]:
        """Match it in a page, however its lines are broken."""

        def spaced(text: str) -> str:
            return re.sub(r"(?:\\ |\\\n)+", r"\\s+", re.escape(text))

        body = "".join(f"({spaced(piece)})" if number else spaced(piece) for piece, number in self.pieces())
        return re.compile(rf"(?<!\w){body}(?!\w)" if self.text[-1:].isalnum() else body)

    def numbers(self) -> list[str]:
        return [piece for piece, number in self.pieces() if number]


def _paragraph(text: str, start: int, end: int) -> str:
    first, last = text.rfind("\n\n", 0, start), text.find("\n\n", end)
    return text[max(first, 0) : last if last >= 0 else len(text)]


def _clause(text: str, start: int, end: int) -> str:
    """The words around a number up to a stop, forty characters at most."""
    stop = r"[.,;:|()](?:\s|$)|\s\(|\n\n"
    return re.split(stop, text[max(0, start - 40) : start])[-1] + re.split(stop, text[end : end + 40])[0]


def declaration_problem(kind: str, reason: str, text: str, start: int, end: int) -> str | None:
    """Return why a number may not be declared as this kind; None if it may."""
    if kind not in DECLARED:
        return f"'{kind}' is none of {', '.join(DECLARED)}"
    if len(str(reason).split()) < 2:
        return f"say in a few words why it is a {kind}"
    if kind == "published" and not re.search(r"\b(?:19|20)\d\d\b", reason):
        return "say which paper printed it: authors, year, table"
    if kind == "estimate" and not text[:end].rpartition("\n")[2].startswith("# hardware"):
        return "only a line that begins with '# hardware' holds estimates"
    if kind == "unkept" and not re.search(r"not\s+kept", _paragraph(text, start, end)):
        return "the paragraph has to say that the result was not kept"
    near = re.sub(r"\s+", " ", text[max(0, start - 25) : start])
    if kind == "bound" and not (BEFORE_BOUND.search(near) or AFTER_BOUND.match(text[end : end + 25])):
        return "a bound follows 'than', 'within', 'above', 'at least', ..., or stands before 'or more', 'or less'"
    if kind in ("setting", "definition") and (word := MEASURES.search(_clause(text, start, end))):
        return f"beside '{word.group()}' a number is a measurement: give its source"
    return None


def _entry_problems(page: str, quote: str, source: Any, covered: list[tuple[int, int]]) -> Iterator[str]:
    """Check an entry, and record the positions of its numbers."""
    entry = Quote(quote)
    numbers, matches = entry.numbers(), list(entry.pattern().finditer(page))
    if not numbers:
        yield f"'{quote}' has no number in braces"
    if len(matches) != 1:
        many = (
            "stands nowhere in the page"
            if not matches
            else f"stands in the page {len(matches)} times: quote more words"
        )
        yield f"'{quote}' {many}"
        return
    sources = source if isinstance(source, list) else [source] * len(numbers) if isinstance(source, dict) else [source]
    if len(sources) != len(numbers):
        yield f"'{quote}' has {len(numbers)} numbers in braces and {len(sources)} sources"
        return
    for i, (number, one) in enumerate(zip(numbers, sources, strict=True), 1):
        start, end = matches[0].span(i)
        covered.append((start, end))
        if isinstance(one, dict):
            if len(one) != 1:
                yield f"'{quote}': a declaration is one kind and its reason"
                continue
            ((kind, reason),) = one.items()
            problem = declaration_problem(kind, reason, page, start, end)
            if problem:
                yield f"'{quote}', {number}: {problem}"
            continue
        try:
            value = value_of(str(one))
        except FigureError as error:
            yield f"'{quote}', {number}: {error}"
            continue
        written = Written.parse(number)
        if written is None or not written.is_rounded(value):
            yield f"'{quote}' says {number}, but {one} is {value:.6g}"


def problems(page: str, entries: Mapping[str, Any], scanned: str | None = None) -> list[str]:
    """Return the problems of a page: numbers without a source or with another value there, and unused entries."""
    own, covered, found = own_text(page), list[tuple[int, int]](), list[str]()
    for quote, source in entries.items():
        found += _entry_problems(own, str(quote), source, covered)
    for match in LOOKS_MEASURED.finditer(prose(page) if scanned is None else scanned):
        if not any(start < match.end() and match.start() < end for start, end in covered):
            line = page.count("\n", 0, match.start()) + 1
            around = page[max(0, match.start() - 45) : match.start()], page[match.end() : match.end() + 30]
            shown = re.sub(r"\s+", " ", f"{around[0]}{{{match.group()}}}{around[1]}")
            found.append(f"line {line} has a number without a source: ...{shown}...")
    return found


def picture_problems(entries: Mapping[str, Any]) -> list[str]:
    """Return the problems of pictures: without an entry on their script and results, or an entry without a picture."""
    pictures, drawing = entries[PICTURES], (ROOT / "docs" / "picture.py").read_text(encoding="utf-8")
    there = {path.name for path in (ROOT / "docs").glob("*.png")}
    found = [f"{name} has no entry" for name in sorted(there - set(pictures))]
    found += [f"{name} is no picture of docs" for name in sorted(set(pictures) - there)]
    for name, entry in pictures.items():
        if f"def {entry.get('drawn_by')}(" not in drawing:
            found.append(f"{name}: docs/picture.py has no function {entry.get('drawn_by')}")
        if "results" not in entry and len(str(entry.get("screenshot", "")).split()) < 2:
            found.append(f"{name}: say from which results it is drawn")
        missing = [one for one in entry.get("results", ()) if not (ROOT / "results" / f"{one}.json").exists()]
        found += [f"{name}: there is no results/{one}.json" for one in missing]
    return found


def pages() -> dict[str, Callable[[str], str]]:
    """The files whose numbers are checked, with functions that extract their prose."""
    docs = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    headers = [
        *sorted((ROOT / "src/backstory/recipes").glob("*.yaml")),
        *sorted((ROOT / "src/backstory/papers/suites").glob("*.yaml")),
    ]
    found: dict[str, Callable[[str], str]] = {path.relative_to(ROOT).as_posix(): prose for path in docs}
    return found | {path.relative_to(ROOT).as_posix(): lambda text: prose(heading_comments(text)) for path in headers}


def check(name: str, entries: Mapping[str, Any]) -> list[str]:
    """Check a page of the project by its path from the root."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return problems(text, entries.get(name) or {}, pages()[name](text))


if __name__ == "__main__":
    sources = load(ENTRIES.read_text(encoding="utf-8"))
    wrong = 0
    for problem in picture_problems(sources):
        wrong += 1
        print(f"docs: {problem}")
    for page_name in sys.argv[1:] or pages():
        for problem in check(page_name, sources):
            wrong += 1
            print(f"{page_name}: {problem}")
    sys.exit(wrong > 0)
