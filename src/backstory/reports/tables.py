"""Results as rows: tables that are written as HTML (reports) and as Markdown (README and docs)."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import yaml

from backstory.config import plural
from backstory.config.arguments import checked
from backstory.config.scores import UnknownShare
from backstory.config.terminal import cell
from backstory.reports import formats
from backstory.reports.formats import MISSING, count, decimal
from backstory.reports.phrases import audit_word, effective_context, measured_in, otherwise
from backstory.reports.results import Record, Result, RunResults

EARLIER_AUDIT = "by an earlier audit"
MOST_ROWS = 200
"""The most rows of a table of a result this version does not know."""


@dataclass(frozen=True)
class Column:
    """One column: its heading, and whether it holds numbers (set flush right)."""

    heading: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; the first column names the row. Text is raw: the writers escape it."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@checked()
def figures(runs: Sequence[RunResults]) -> Table:
    """Every perplexity of the runs with its text, reader, unit, token count and audit; empty columns left out."""
    rows = []
    for run in runs:
        rows += [_evaluation_row(run.name, result) for result in run.of_kind("evaluation")]
        rows += [_training_row(run.name, result) for result in run.of_kind("training")]
    table = Table(columns("Run", "Perplexity#", "Over#", "<unk>#", "Audit", "Read by", "Text", "Bits per token#",
                           "Bits per character#", "Bits per byte#", "Perplexity per word#", "Batch#"), tuple(rows))  # fmt: skip
    return without_empty_columns(table)


def trainings(runs: Sequence[RunResults]) -> Table:
    """Size, length, speed and best validation perplexity of every run that was trained."""
    rows = []
    for run in runs:
        for result in run.of_kind("training"):
            f = result.figures
            best = formats.score(f["valid_nats"], f["unit"])
            rows.append((run.name, count(f["parameters"]), _over(f["tokens"]["train"], f["unit"]), count(f["epochs"]),
                         count(f["best_epoch"]), best, count(f["tokens_per_second"]),
                         formats.duration(_number(result.provenance.get("seconds")))))  # fmt: skip
    return Table(columns("Run", "Parameters#", "Trained on#", "Epochs#", "Best epoch#", "Best validation#",
                          "Tokens per second#", "Time#"), tuple(rows))  # fmt: skip


def contexts(examinations: Sequence[tuple[str, Result]]) -> Table:
    """The effective context of every truncation experiment, given as (name, result)."""
    rows = []
    for name, result in examinations:
        f = result.figures
        rows.append((name, effective_context(f), f"{f['effective_context']['threshold_percent']:g}%",
                     f"{formats.perplexity(f['baseline']['perplexity'])} per {f['unit']}", _longest(f),
                     _over(f["targets"], f["unit"]), _unknown(f, f["targets"]), _text(result, f["split"])))  # fmt: skip
    return without_empty_columns(Table(
        columns("Run", "Effective context", "Threshold#", "Perplexity with the whole context#", "Which is#", "Over#",
                "<unk>#", "Text"), tuple(rows)))  # fmt: skip


def _longest(figures: Record) -> str:
    """The context of the baseline."""
    longest = figures["baseline"].get("context")
    batch, whole = figures.get("batch_size", 1), "all before it"
    if batch > 1:
        whole = f"at least {count(figures['maximum_context'])} (read in a batch of {batch})"
    return whole if longest is None else f"{count(longest)} {plural(measured_in(figures), longest)}"


def conditions(result: Result) -> Table:
    """Each context length of a truncation experiment with its effect and the 95% interval of it."""
    f = result.figures
    over = _over(f["targets"], f["unit"])
    rows = [
        (f"{count(c['context'])} {plural(measured_in(f), c['context'])}", formats.perplexity(c["perplexity"]),
         decimal(c["effect"], 3), f"{decimal(c['low'], 3)} to {decimal(c['high'], 3)}",
         formats.percent(c["effect_percent"]), over)
        for c in f["conditions"]
    ]  # fmt: skip
    if f["baseline"].get("context") is None:  # else it is one of the conditions
        rows.append(("full", formats.perplexity(f["baseline"]["perplexity"]), MISSING, MISSING, MISSING, over))
    return Table(columns("Context", f"Perplexity per {f['unit']}#", f"Increase (nats per {measured_in(f)})#", "95% interval#",
                          "Increase of perplexity#", "Over#"), tuple(rows))  # fmt: skip


def differences(runs: Sequence[RunResults]) -> Table:
    """The settings on which the runs differ, a row each and a column per run; no rows where there are none to compare."""
    settings = [_settings(run) for run in runs]
    if len(runs) < 2 or not all(settings):
        return Table((), ())
    names = dict.fromkeys(name for one in settings for name in one)
    rows = tuple((name, *(one.get(name, MISSING) for one in settings)) for name in names)
    return Table(
        (Column("Setting"), *(Column(run.name) for run in runs)), tuple(row for row in rows if len(set(row[1:])) > 1)
    )


def plain(values: Record) -> Table:
    """Any figures as keys and values, nested keys joined by dots: for kinds and experiments of later versions."""
    pairs = _flat(values, "")
    rows = pairs[:MOST_ROWS]
    if len(pairs) > MOST_ROWS:
        rows.append(("and more", f"{count(len(pairs) - MOST_ROWS)} further figures in the result file"))
    return Table(columns("Figure", "Value"), tuple(rows))


@checked()
def to_html(table: Table) -> str:
    """The table as HTML, escaped; the first column is the row's heading, columns of numbers have class `n`."""
    numeric = [' class="n"' if column.numeric else "" for column in table.columns]
    head = "".join(f'<th scope="col"{n}>{escape(c.heading)}</th>' for c, n in zip(table.columns, numeric, strict=True))
    lines = []
    for first, *rest in table.rows:
        cells = "".join(f"<td{n}>{escape(cell)}</td>" for cell, n in zip(rest, numeric[1:], strict=True))
        lines.append(f'<tr><th scope="row"><span>{escape(first)}</span></th>{cells}</tr>')
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>\n</table>"


@checked()
def to_text(table: Table) -> str:
    """The table for a terminal, printable: columns side by side, without a final line break."""
    lines = [tuple(map(cell, line)) for line in ([c.heading for c in table.columns], *table.rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    sides = [">" if column.numeric else "<" for column in table.columns]
    formed = ((f"{c:{side}{width}}" for c, side, width in zip(line, sides, widths, strict=True)) for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in formed)


@checked()
def to_markdown(table: Table) -> str:
    """The table as GitHub Markdown, escaped, without a final line break."""
    lines = [[c.heading for c in table.columns], *table.rows]
    head, *body = ("| " + " | ".join(escape_markdown(cell) for cell in line) + " |" for line in lines)
    rule = "|" + "|".join("---:" if column.numeric else "---" for column in table.columns) + "|"
    return "\n".join([head, rule, *body])


def columns(*headings: str) -> tuple[Column, ...]:
    """Columns from headings; a heading that ends in # is a column of numbers."""
    return tuple(Column(h.removesuffix("#"), h.endswith("#")) for h in headings)


def _training_row(name: str, result: Result) -> tuple[str, ...]:
    f = result.figures
    bits = decimal(f["valid_nats"] / math.log(2), 3)
    return (name, f"{formats.perplexity(f['valid_perplexity'])} per {f['unit']}",
            _over(f["tokens"]["valid"], f["unit"]), _unknown((f.get("unknown") or {}).get("valid", {}), f["tokens"]["valid"]),
            audit_word(f), f"training, epoch {count(f['best_epoch'])}",
            _text(result, "valid"), bits, MISSING, MISSING, MISSING, MISSING)  # fmt: skip


def _evaluation_row(name: str, result: Result) -> tuple[str, ...]:
    f = result.figures
    batch, after = f.get("batch_size"), (f", after {f['after']}" if f.get("after") else "") + otherwise(f)
    return (name, f"{formats.perplexity(f['perplexity'])} per {f['unit']}", _over(f["tokens"], f["unit"]),
            _unknown(f, f["tokens"]), _audit(result), f["reader"] + after, _text(result, f["split"]),
            decimal(f["bits_per_token"], 3),
            decimal(_number(f.get("bits_per_character")), 3), decimal(_number(f.get("bits_per_byte")), 3),
            # Where tokens are words it is the perplexity itself.
            MISSING if f["unit"] == "word" else formats.perplexity(_number(f.get("perplexity_per_word"))),
            # One row is how a text is read; several at once are an approximation worth a column.
            MISSING if batch == 1 else count(_number(batch)))  # fmt: skip


def _unknown(figures: Record, tokens: int) -> str:
    """The share of `<unk>`, and which are outside the vocabulary."""
    return UnknownShare.of(figures, tokens).cell() or MISSING


def _audit(result: Result) -> str:
    """What the audit said; of a stale result that passed, why it says nothing of the run as it is now.

    A result without cuts was audited by an earlier version, which some cheats pass.
    """
    word = audit_word(result.figures)
    if word != "audited":
        return word
    return result.stale or (word if result.figures["audit"].get("cuts") else EARLIER_AUDIT)


def _text(result: Result, split: str) -> str:
    return f"{result.corpus.get('name', 'unnamed text')} {split}"


def _over(tokens: float, unit: str) -> str:
    return f"{count(tokens)} {plural(unit, tokens)}"


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def without_empty_columns(table: Table) -> Table:
    """The table without the columns that say nothing in any row, its first one aside; an empty table keeps all."""
    if not table.rows:
        return table
    kept = [i for i in range(len(table.columns)) if i == 0 or any(row[i] != MISSING for row in table.rows)]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return Table(tuple(table.columns[i] for i in kept), rows)


def _flat(value: object, path: str) -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [p for key, inner in value.items() for p in _flat(inner, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [pair for index, inner in enumerate(value) for pair in _flat(inner, f"{path}[{index}]")]
    return [(path or "figures", formats.plain(value) if value != {} else "none")]


def _settings(run: RunResults) -> dict[str, str]:
    """A run's settings, nested keys joined by dots; empty where they cannot be read, or unfold from references."""
    try:
        referring = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(run.config, yaml.SafeLoader))
        found = {} if referring else yaml.safe_load(run.config)
        return dict(_flat(found, "")) if found and isinstance(found, dict) else {}
    except Exception:  # impossible dates, numbers and depths come as errors of many kinds
        return {}


def escape_markdown(text: str) -> str:
    """Text in which Markdown, HTML and mathematics are plain characters."""
    return re.sub(r"([\\`*_\[\]<>|&~$#])", r"\\\1", " ".join(text.split()))
