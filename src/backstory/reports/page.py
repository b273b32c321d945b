"""One self-contained HTML page about one or several runs, made from their files alone."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path

from backstory.config import UserError
from backstory.config.arguments import checked
from backstory.config.machine import refused
from backstory.config.scores import overlap_warnings, unknown_warning
from backstory.config.terminal import one_line
from backstory.reports import (
    answer_section as answers,
)
from backstory.reports import (
    comparison_html,
    epochs,
    examinations,
    passage_html,
    reproductions,
    search_html,
    svg,
    tables,
)
from backstory.reports import (
    gate_section as gates,
)
from backstory.reports import (
    html_pieces as pieces,
)
from backstory.reports import (
    memory_section as memory,
)
from backstory.reports import (
    provenance_section as provenance,
)
from backstory.reports import (
    recency_section as recency,
)
from backstory.reports.comparisons import compared
from backstory.reports.examined import EXPERIMENTS
from backstory.reports.formats import plain
from backstory.reports.memory_weights import heads, memory_weights, older
from backstory.reports.passage import from_json
from backstory.reports.phrases import (
    comparison,
    failures,
    passage_summary,
    reading,
    search_summary,
    stale_results,
    summary,
)
from backstory.reports.plots import learning_curves
from backstory.reports.published_section import Published
from backstory.reports.results import Result, RunResults, apart, current, read
from backstory.reports.tables import to_html
from backstory.reports.theme import CSS
from backstory.storage.atomic import write_atomically

# The browser itself refuses everything that is not in the file, whatever a run's name or settings hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SCRIPT_POLICY = f"{_POLICY}; script-src '{passage_html.SCRIPT_HASH}'"
_GENERATOR = '<meta name="generator" content="Backstory">'
"""In the head of every page; by it a page is known for one of ours, which the next may replace."""
_SHOWN = ("training", "evaluation", "reproduction", "search", "sample", "explanation", "comparison")
"""Kinds with a place of their own on the page."""


@checked()
def render(folders: Sequence[Path], published: Published | None = None) -> str:
    """The report on these run folders as one HTML page that loads nothing; the same files give the same page.

    `published` stands beside what experiments on context found. What cannot be read is named on the page. Raises UserError if
    no folder is given, and as `results.read` does.
    """
    return _made(_runs(folders), published)[0]


def _made(runs: Sequence[RunResults], published: Published | None) -> tuple[str, Sequence[RunResults]]:
    """The page, and the runs that it is of: without results that pass all checks and yet cannot be shown, as `unread`."""
    try:
        return _page(runs, published), runs
    except Exception:  # a fault of ours, for which nobody should go without the other results
        runs = [_without_unshowable(run, published) for run in runs]
        return _page(runs, published), runs


def _without_unshowable(run: RunResults, published: Published | None) -> RunResults:
    shown, unread = [], list(run.unread)
    for result in run.results:
        try:
            _page([replace(run, results=(result,))], published)
            shown.append(result)
        except Exception as error:
            unread.append(one_line(f"{result.source} of {run.name} cannot be shown: {type(error).__name__}: {error}"))
    return replace(run, results=tuple(shown), unread=tuple(unread))


def _runs(folders: Sequence[Path]) -> list[RunResults]:
    """What the page is about: every folder once. Raises UserError."""
    if not folders:
        raise UserError("no run to report on; name at least one run folder")
    distinct = {folder.resolve(): folder for folder in reversed(folders)}
    return _own_names(_of_one_model([read(folder) for folder in reversed(distinct.values())]))


def _page(runs: Sequence[RunResults], published: Published | None) -> str:
    title = " and ".join(run.name for run in runs) if len(runs) < 3 else f"{len(runs)} runs compared"
    sections = (
        _reproductions,
        _searches,
        _figures,
        _learning,
        _gates,
        partial(_context, published=published),
        _memory,
        _answers,
        _recency,
        _comparisons,
        _samples,
        _passages,
        _others,
    )
    shown = apart(runs)
    parts = [_unread(runs), _stale(runs), *(section(shown) for section in sections), _settings(runs), _rerun(runs)]
    body = "\n".join(filter(None, parts))
    footer = (
        "Made from the runs’ result files alone. Perplexity is the exponential of the mean negative log-likelihood per\n"
        "unit; lower is better."
    )
    return document(
        title,
        _lede([current(run) for run in runs]),
        body,
        footer,
        script=any(run.of_kind(kind) for run in runs for kind in ("explanation", "comparison")),
    )


def _has_passages(runs: Sequence[RunResults]) -> bool:
    return any(run.of_kind("explanation") or run.of_kind("comparison") for run in runs)


@checked()
def render_passage(result: Result) -> str:
    """A result of kind explanation as a page of its own that loads nothing."""
    passage = from_json(result.figures["passage"], result.source)
    lede = f'<p class="lede">{escape(passage_summary(result))}</p>'
    parts = passage_html.figure(passage, "passage"), _heads(result, "weights"), _again(result)
    body = "\n".join(part for part in parts if part)
    return document(passage.title, lede, body, "Made from the result file alone.", script=True)


@checked()
def render_comparison(result: Result) -> str:
    """A result of kind comparison as a page of its own that loads nothing."""
    lede = f'<p class="lede">{escape(compared(result))}</p>'
    body = f"{comparison_html.body(result, 'comparison', 'h2')}\n{_again(result)}"
    return document(result.figures["title"], lede, body, "Made from the result file alone.", script=True)


@checked()
def render_search(result: Result) -> str:
    """A result of kind search as a page of its own that loads nothing."""
    f = result.figures
    lede = f'<p class="lede">{escape(search_summary(f))}</p>'
    body = f"{search_html.body(result, 'search', 'h2')}\n{_again(result)}"
    return document(f["title"] or result.name, lede, body, "Made from the trials’ result files alone.", script=False)


def _again(result: Result) -> str:
    """The command and the facts of a page about one result."""
    facts = pieces.facts(provenance.facts(RunResults(result.name, "", (), (), (result,))))
    command = result.provenance.get("command")
    return pieces.section("Measure it again", f"<pre>{escape(command)}</pre>" if command else "", facts)


def document(title: str, lede: str, body: str, footer: str, script: bool) -> str:
    """A whole page around HTML that is escaped already; `title` and `footer` are raw text."""
    return svg.clean(f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{_GENERATOR}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_SCRIPT_POLICY if script else _POLICY}">
<title>{escape(title)} – Backstory report</title>
<style>{CSS}</style>
</head>
<body>
<header>
<p class="kicker">Backstory report</p>
<h1>{escape(title)}</h1>
{lede}
</header>
<main>
{body}
</main>
<footer>{escape(footer)}</footer>
{f"<script>{passage_html.SCRIPT}</script>" if script else ""}</body>
</html>
""")


@checked()
def write(folders: Sequence[Path], out: Path, overwrite: bool = False, published: Published | None = None) -> None:
    """Render the report into `out`, which is replaced whole or not at all; warns of stale results and unread files.

    Raises UserError as `render`, `check_page` and `write_page` do.
    """
    check_page(out, overwrite)
    page, runs = _made(_runs(folders), published)
    write_page(out, page)
    for told in [*(f"not shown: {line}" for run in runs for line in run.unread), *stale_results(runs)]:
        warnings.warn(one_line(told), stacklevel=2)


@checked()
def check_page(out: Path, overwrite: bool = False) -> None:
    """Raise UserError where a page cannot be written: better before long work than after it.

    A file that is there is replaced if it is a page of ours, or with `overwrite`.
    """
    there = out.parent.is_dir() and os.access(out.parent, os.W_OK | os.X_OK)
    if not there or (out.exists() and not out.is_file()):
        kind = "a folder" if out.is_dir() else "not a regular file"
        problem = f"it is {kind}" if there else f"{out.parent} is no folder that can be written to"
        raise UserError(f"cannot write {out}: {problem}; choose another place for the page")
    if not overwrite and out.is_symlink():
        raise UserError(
            f"{out} is a link; name the place it leads to, or --overwrite to put the page in the link's place"
        )
    if not overwrite and out.exists() and not _is_ours(out):
        raise UserError(f"{out} exists and is no page of Backstory; choose another place for the page or --overwrite")


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _GENERATOR.encode() in file.read(1024)
    except OSError:
        return False


@checked()
def write_page(out: Path, page: str) -> None:
    """Write a page whole or not at all. Raises UserError if it cannot be written."""
    try:
        write_atomically(out, page)
    except OSError as error:
        raise refused(error, out, otherwise="choose another place for the page") from None


def _of_one_model(runs: Sequence[RunResults]) -> list[RunResults]:
    """The runs, with examinations that lie in folders of their own put together where they are of the same weights."""
    found: list[RunResults] = []
    for run in runs:
        key = _weights(run)
        known = [place for place, other in enumerate(found) if key and _weights(other) == key]
        if known:
            other = found[known[0]]
            unread = other.unread + run.unread
            found[known[0]] = replace(other, results=other.results + run.results, unread=unread)
        else:
            found.append(run)
    return found


def _weights(run: RunResults) -> object:
    """The weights that all results of a folder of examinations are of, and their names; None where one does not tell."""
    if any(result.kind != "examination" for result in run.results):
        return None
    told = [(result.name, result.provenance.get("weights")) for result in run.results]
    alike = all(one == told[0] for one in told)
    return told[0] if alike and told[0][1] else None


def _own_names(runs: Sequence[RunResults]) -> list[RunResults]:
    """The runs under names that differ: a name that came before gets a number."""
    named: list[RunResults] = []
    for run in runs:
        taken, name, number = {r.name for r in named}, run.name, 2
        while name in taken:
            name, number = f"{run.name} ({number})", number + 1
        named.append(replace(run, name=name))
    return named


def _lede(runs: Sequence[RunResults]) -> str:
    if len(runs) == 1:
        return f'<p class="lede">{escape(summary(runs[0]))}</p>'
    first = comparison(runs)
    items = "".join(f"<li>{escape(summary(run))}</li>" for run in runs)
    return (f'<p class="lede">{escape(first)}</p>\n' if first else "") + f'<ul class="lede">{items}</ul>'


def _stale(runs: Sequence[RunResults]) -> str:
    """The results that are not of the weights that their runs have now, and the commands that renew them."""
    lines = stale_results(runs)
    return (
        pieces.section("Stale results", *(f'<p class="alarm">{escape(line)}.</p>' for line in lines)) if lines else ""
    )


def _unread(runs: Sequence[RunResults]) -> str:
    """The files of the runs that are not shown, and why."""
    lines = [f'<p class="alarm">{escape(line)}.</p>' for run in runs for line in run.unread]
    return pieces.section("Not shown", *lines) if lines else ""


def _reproductions(runs: Sequence[RunResults]) -> str:
    """Each reproduction: published beside ours, and its claims and findings with the rules that decide on them."""
    parts = []
    for run in runs:
        for result in run.of_kind("reproduction"):
            f = result.figures
            parts.append(f"<h3>{escape(f['title'])}, {escape(f['scale'])} scale</h3>")
            parts += [f'<p class="alarm">{escape(line)}</p>' for line in reproductions.failed(result)]
            parts.append(pieces.table(reproductions.systems(result), f"Systems of {run.name}"))
            gates = reproductions.gates(result)
            parts.append(pieces.table(gates, f"Gates of {run.name}"))
            parts.append(pieces.table(reproductions.memories(result), f"Nats above the exact cost, {run.name}"))
            parts.append(pieces.table(reproductions.claims(result), f"Claims of {run.name}"))
            if (findings := reproductions.findings(result)).rows:
                parts.append(pieces.table(findings, f"Findings, judged of {run.name}"))
            parts += _by_epoch(result, run.name, f"epochs{len(parts)}-")
            if (recencies := reproductions.recencies(result)).rows:
                heading = f"Nats by how many tokens ago the same one came last: {run.name}"
                parts.append(pieces.details(heading, pieces.table(recencies, heading)))
            judged = f["claims"] or findings.rows
            rules = [reproductions.TRAINED if judged else "", reproductions.GATES if gates.rows else ""]
            rules += [reproductions.RULE] if f["claims"] else []
            rules += [reproductions.JUDGED] if findings.rows else []
            notes = [f.get("note"), *rules, *f.get("papers", [])]
            parts += [f'<p class="note">{escape(note)}</p>' for note in notes if note]
    return pieces.section("Published and ours", *parts) if parts else ""


def _by_epoch(result: Result, name: str, prefix: str) -> list[str]:
    """The learning curves of a reproduction; empty where no system was trained for more than an epoch."""
    plot = epochs.plot(result, prefix)
    if plot is None:
        return []
    heading = f"Validation by epoch: {name}"
    return [pieces.plot(plot), pieces.details(heading, pieces.table(epochs.table(result), heading))]


def _searches(runs: Sequence[RunResults]) -> str:
    """Each search for settings: its best trials and what mattered."""
    parts = []
    for run in runs:
        for result in run.of_kind("search"):
            heading = result.figures["title"] or run.name
            body = search_html.body(result, f"search{len(parts) + 1}", "h4")
            parts.append(f"<h3>{escape(heading)}</h3>\n<p>{escape(search_summary(result.figures))}</p>\n{body}")
    return pieces.section("Searches", *parts) if parts else ""


def _figures(runs: Sequence[RunResults]) -> str:
    table = tables.figures(runs)
    if not table.rows:
        return ""
    measured = [r for run in runs for kind in ("training", "evaluation") for r in run.of_kind(kind)]
    # Splits of one text stand in one table by design; different texts and vocabularies need the warning.
    note = ""
    if len({reading(result) for result in measured}) > 1:
        note = '<p class="note">These figures are of different texts, vocabularies or units: they do not compare.</p>'
    alarms = "".join(
        f'<p class="alarm">Audit failed: {escape(run.name)}, {escape(result.label)}: {escape("; ".join(reasons))}</p>'
        for run in runs
        for result in run.of_kind("evaluation")
        if (reasons := failures(result))
    )
    warnings = "".join(
        f'<p class="note">{escape(run.name)}, {escape(result.label)}: {escape(warning)}.</p>'
        for run in runs
        for result in [*run.of_kind("training"), *run.of_kind("evaluation")]
        for warning in _warnings(result)
    )
    return pieces.section("Figures", alarms, pieces.table(table, "Figures of every run"), warnings, note)


def _warnings(result: Result) -> list[str]:
    """What has to be known of a training's or an evaluation's figures before they are compared."""
    unknown = unknown_warning(result.figures, result.provenance.get("config") or {})
    return [*([unknown] if unknown else []), *overlap_warnings(result.figures)]


def _learning(runs: Sequence[RunResults]) -> str:
    plot, table = learning_curves(runs), pieces.table(tables.trainings(runs), "Training of every run")
    return pieces.section("Learning", pieces.plot(plot), table) if plot or table else ""


def _gates(runs: Sequence[RunResults]) -> str:
    """What the gates of models with two predictions make of them, epoch by epoch."""
    body = gates.body(runs)
    return pieces.section("Gate", body) if body else ""


def _context(runs: Sequence[RunResults], published: Published | None) -> str:
    """How much of their context models use, and what for."""
    body = examinations.body(runs, published)
    return pieces.section("Context", body) if body else ""


def _memory(runs: Sequence[RunResults]) -> str:
    """What readers pay above the exact cost of texts whose source is known."""
    body = memory.body(runs)
    return pieces.section("Memory", body) if body else ""


def _answers(runs: Sequence[RunResults]) -> str:
    """What is answered right in synthetic tasks."""
    body = answers.body(runs)
    return pieces.section("Answers", body) if body else ""


def _recency(runs: Sequence[RunResults]) -> str:
    """Where readers gain on the static one, by how long ago a token came last."""
    body = recency.body(runs)
    return pieces.section("Recency", body) if body else ""


def _samples(runs: Sequence[RunResults]) -> str:
    """Text that the runs wrote."""
    parts = []
    for run in runs:
        for result in run.of_kind("sample"):
            f = result.figures
            settings = ", ".join(
                f"{key.replace('_', ' ')} {plain(v)}" for key, v in f["settings"].items() if v is not None
            )
            after = " after the grey words" if f["prompt"] else ""
            parts += [
                f"<h3>{escape(run.name)}</h3>" if len(runs) > 1 else "",
                f'<blockquote><span class="prompt">{escape(f["prompt"])}</span>{escape(f["text"])}</blockquote>',
                f'<p class="note">Written by the model{after}. {escape(settings)}</p>',
            ]
    return pieces.section("Sample text", *parts) if parts else ""


def _passages(runs: Sequence[RunResults]) -> str:
    """Explanations: passages whose words are coloured by what the model made of them."""
    parts = []
    for run in runs:
        for result in run.of_kind("explanation"):
            passage = from_json(result.figures["passage"], result.source)
            heading = f"{run.name}: {passage.title}" if len(runs) > 1 else passage.title
            figure = passage_html.figure(passage, f"passage{len(parts) + 1}")
            drawn = _heads(result, f"weights{len(parts) + 1}")
            parts.append(f"<h3>{escape(heading)}</h3>\n<p>{escape(passage_summary(result))}</p>\n{figure}\n{drawn}")
    return pieces.section("Word by word", *parts) if parts else ""


def _heads(result: Result, prefix: str) -> str:
    """What the heads of a memory did; empty for another explanation."""
    drawn, means = pieces.plot(memory_weights(result, prefix), wide=True), heads(result)
    if means is None:
        return drawn
    return f"{pieces.table(means, 'The heads of the memory')}\n<p>{escape(older(result))}</p>\n{drawn}"


def _comparisons(runs: Sequence[RunResults]) -> str:
    """What readers gain on each other along a stretch of text."""
    parts = []
    for run in runs:
        for result in run.of_kind("comparison"):
            heading = f"{run.name}: {result.figures['title']}" if len(runs) > 1 else result.figures["title"]
            body = comparison_html.body(result, f"comparison{len(parts) + 1}", "h4")
            parts.append(f"<h3>{escape(heading)}</h3>\n<p>{escape(compared(result))}</p>\n{body}")
    return pieces.section("Readers against each other", *parts) if parts else ""


def _others(runs: Sequence[RunResults]) -> str:
    """Kinds and experiments this version does not know, plainly."""
    parts = []
    for run in runs:
        for result in run.results:
            known = result.kind in _SHOWN or result.figures.get("experiment") in EXPERIMENTS
            if not known:
                table = to_html(tables.plain(result.figures)).replace("<table>", '<table class="plain">', 1)
                heading = f"{run.name}: {result.label}"
                parts.append(f"<h3>{escape(heading)}</h3>\n{pieces.scroll(table, heading)}")
    return pieces.section("Other results", *parts) if parts else ""


def _settings(runs: Sequence[RunResults]) -> str:
    differ = pieces.table(tables.differences(runs), "Settings that differ").replace(
        "<table>", '<table class="settings">', 1
    )
    parts = [differ]
    parts += [
        pieces.details(f"Settings of {run.name}", f"<pre>{escape(run.config)}</pre>") for run in runs if run.config
    ]
    return pieces.section("Settings", *parts) if any(parts) else ""


def _rerun(runs: Sequence[RunResults]) -> str:
    parts = []
    for run in runs:
        commands = "\n".join(provenance.commands(run))
        parts.append(f"<h3>{escape(run.name)}</h3>" if len(runs) > 1 else "")
        parts.append(f"<pre>{escape(commands)}</pre>" if commands else "")
        parts.append(pieces.facts(provenance.facts(run)))
    return pieces.section("Measure it again", *parts)
