"""Write a report on one or several runs from their files alone, as an HTML page, Markdown, LaTeX or CSV."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from backstory.reports import svg
from backstory.reports.document import Alarm, Document, Piece, Words, present
from backstory.reports.phrases import passage_summary, search_summary, stale_results, summary
from backstory.reports.sections import SECTIONS
from backstory.reports.sections.comparison_section import Comparison, compared, comparison_pieces
from backstory.reports.sections.gains_section import headline
from backstory.reports.sections.passage_section import memory_pieces
from backstory.reports.sections.search_section import search_pieces
from backstory.reports.sections.settings_section import AGAIN, SETTINGS, again
from backstory.reports.theme import slug
from backstory.reports.tidy import COLUMNS, tidy_csv
from backstory.reports.writers import GENERATOR, LATEX_MARK, MARKDOWN_MARK, html_page, latex, markdown
from backstory.results import ExaminationFigures, ExplanationFigures, Result, RunResults, SearchFigures, read
from backstory.results.published_values import Published
from backstory.storage.atomic import check_replaceable, sweep_abandoned, write_atomically
from backstory.storage.run_files import check_outside_runs
from backstory.utils.arguments import checked
from backstory.utils.errors import UserError, refused
from backstory.utils.terminal import one_line

ALONE = "Made from the result file alone."


@checked()
def render(folders: Sequence[Path], published: Published | None = None) -> str:
    """Return the report on these run folders as one HTML page that loads nothing; the same files give the same page.

    `published` stands beside what experiments on context found. What cannot be read is named on the page. Raises UserError if
    no folder is given, and as `results.read` does.
    """
    return html_page(_readable(_read_all(folders), published)[0])


@checked()
def write(
    folders: Sequence[Path],
    out: Path,
    overwrite: bool = False,
    published: Published | None = None,
    figures: Path | None = None,
) -> None:
    """Render the report into `out`, which is replaced whole or not at all; warns of stale results and unread files.

    The ending of `out` chooses the format, one of `FORMATS`. Every figure is saved into the folder `figures` too, as PDF, SVG
    and PNG. Raises UserError as `render`, `check_page` and `write_page` do, and for another ending.
    """
    check_page(out, overwrite)
    if figures is not None:
        check_outside_runs(figures)
    if out.suffix not in FORMATS:
        raise UserError(f"cannot write {out}: a report ends in {', '.join(FORMATS)}; choose one of these endings")
    document, runs = _readable(_read_all(folders), published)
    saved = {} if figures is None else _save_figures(document, figures, out.parent, overwrite)
    write_page(out, FORMATS[out.suffix](document, runs, saved))
    for line in [*(f"not shown: {line}" for run in runs for line in run.unread), *stale_results(runs)]:
        warnings.warn(one_line(line), stacklevel=2)


Write = Callable[[Document, Sequence[RunResults], Mapping[str, str]], str]
FORMATS: dict[str, Write] = {
    ".html": lambda document, runs, figures: html_page(document),
    ".md": lambda document, runs, figures: markdown(document, figures),
    ".tex": lambda document, runs, figures: latex(document, figures),
    ".csv": lambda document, runs, figures: tidy_csv(runs),
}
"""Writers of a report by the ending of the file. Each takes the document, its runs and the paths of saved figures."""
_MARKS = {".md": MARKDOWN_MARK, ".tex": LATEX_MARK, ".csv": ",".join(COLUMNS)}
"""Text near the beginning of a file by which it is recognised as a report."""


def _save_figures(document: Document, folder: Path, beside: Path, overwrite: bool) -> dict[str, str]:
    """Save every figure under a name made from its title. Return the paths without endings, by plot name."""
    stems: dict[str, str] = {}
    for plot in document.figures():
        stem = slug(plot.title) or "figure"
        number = sum(re.fullmatch(rf"{stem}(-\d+)?", taken) is not None for taken in stems.values()) + 1
        stems[plot.name] = stem if number == 1 else f"{stem}-{number}"
    taken = [path for stem in stems.values() for e in svg.FILES if (path := folder / f"{stem}.{e}").exists()]
    if taken and not overwrite:
        raise UserError(f"{taken[0]} exists; choose another folder for the figures or --overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for plot in document.figures():
            for ending in svg.FILES:
                (folder / f"{stems[plot.name]}.{ending}").write_bytes(plot.drawn(ending))
    except OSError as error:
        raise refused(error, folder, otherwise="choose another folder for the figures") from None
    below = Path(os.path.relpath(folder, beside)).as_posix()
    return {name: f"{below}/{stem}" for name, stem in stems.items()}


def _readable(runs: Sequence[RunResults], published: Published | None) -> tuple[Document, Sequence[RunResults]]:
    """Return the document and its runs. Results that pass all checks but fail to render become `unread`."""
    try:
        return _document(runs, published), runs
    except svg.NoPlots:
        raise
    except Exception:  # a bug of ours should not hide the other results
        runs = [_without_unshowable(run, published) for run in runs]
        return _document(runs, published), runs


def _without_unshowable(run: RunResults, published: Published | None) -> RunResults:
    shown, unread = [], list(run.unread)
    for result in run.results:
        try:
            _document([replace(run, results=(result,))], published)
            shown.append(result)
        except Exception as error:
            unread.append(one_line(f"{result.source} of {run.name} cannot be shown: {type(error).__name__}: {error}"))
    return replace(run, results=tuple(shown), unread=tuple(unread))


def _document(runs: Sequence[RunResults], published: Published | None) -> Document:
    """Build the report: unread and stale results, each section that the runs have figures for, and the settings."""
    separate = _stale_apart(runs)
    shown = [section for section in SECTIONS if any(map(section.shows, separate))]
    sections = [
        ("Not shown", present(Alarm(f"{line}.") for run in runs for line in run.unread)),
        ("Stale results", present(Alarm(f"{line}.") for line in stale_results(runs))),
        *((section.heading, present(section.pieces(separate, published))) for section in shown),
        *((section.heading, present(section.pieces(runs, published))) for section in (SETTINGS, AGAIN)),
    ]
    current = [run.current() for run in runs]
    return Document(
        " and ".join(run.name for run in runs) if len(runs) < 3 else f"{len(runs)} runs compared",
        tuple(section for section in sections if section[1]),
        headline=headline(current),
        summaries=tuple(summary(run) for run in current),
        footer="Made from the runs’ result files alone. Perplexity is the exponential of the mean negative log-likelihood "
        "per unit; lower is better.",
    )


@checked()
def render_passage(result: Result[ExplanationFigures]) -> str:
    """Return a result of kind explanation as a page of its own that loads nothing."""
    passage = result.figures.passage
    inside = [Words(passage, "passage"), *memory_pieces(result.figures, "weights")]
    return _alone(result, passage.title, passage_summary(result), inside)


@checked()
def render_comparison(result: Comparison) -> str:
    """Return a result of kind comparison as a page of its own that loads nothing."""
    return _alone(result, result.figures.title, compared(result), comparison_pieces(result, "comparison", 2))


@checked()
def render_search(result: Result[SearchFigures]) -> str:
    """Return a result of kind search as a page of its own that loads nothing."""
    f, footer = result.figures, "Made from the trials’ result files alone."
    return _alone(result, f.title or result.name, search_summary(f), search_pieces(f, "search", 2), footer)


def _alone(result: Result, title: str, lede: str, inside: Iterable[Piece | None], footer: str = ALONE) -> str:
    """Return a page about one result, with the command and the facts to measure it again."""
    sections = (("", present(inside)), (AGAIN.heading, present(again(result))))
    return html_page(Document(title, sections, summaries=(lede,), footer=footer))


# --- the file ---


@checked()
def check_page(out: Path, overwrite: bool = False) -> None:
    """Raise UserError if a page cannot be written; called before long work.

    An existing file is replaced only if it is a report, or with `overwrite`.
    """
    writable = out.parent.is_dir() and os.access(out.parent, os.W_OK | os.X_OK)
    if not writable or (out.exists() and not out.is_file()):
        kind = "a folder" if out.is_dir() else "not a regular file"
        problem = f"it is {kind}" if writable else f"{out.parent} is not a folder that can be written to"
        raise UserError(f"cannot write {out}: {problem}; choose another place for the page")
    check_outside_runs(out)
    check_replaceable(out, "another place for the page")
    if not overwrite and out.is_symlink():
        raise UserError(
            f"{out} is a link; name the place it leads to, or --overwrite to put the page in the link's place"
        )
    if not overwrite and out.exists() and not _is_ours(out):
        raise UserError(
            f"{out} exists and is not a page of Backstory; choose another place for the page or --overwrite"
        )


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MARKS.get(path.suffix, GENERATOR).encode() in file.read(1024)
    except OSError:
        return False


@checked()
def write_page(out: Path, page: str) -> None:
    """Write a page whole or not at all. Raises UserError if it cannot be written."""
    try:
        sweep_abandoned(out)
        write_atomically(out, page)
    except OSError as error:
        raise refused(error, out, otherwise="choose another place for the page") from None


# --- the runs ---


def _read_all(folders: Sequence[Path]) -> list[RunResults]:
    """Read the runs of the page, each folder once, under unique names. Raises UserError."""
    if not folders:
        raise UserError("no run to report on; name at least one run folder")
    distinct = {folder.resolve(): folder for folder in reversed(folders)}
    return list(_own_names(_of_one_model([read(folder) for folder in reversed(distinct.values())])))


def _of_one_model(runs: Sequence[RunResults]) -> list[RunResults]:
    """Merge runs that consist of examinations alone and share their weights."""
    merged: dict[object, RunResults] = {}
    for number, run in enumerate(runs):
        key = _weights(run) or number
        other = merged.get(key, replace(run, results=(), unread=()))
        merged[key] = replace(other, results=other.results + run.results, unread=other.unread + run.unread)
    return list(merged.values())


def _weights(run: RunResults) -> object:
    """Return the name and weights that all results share if they are examinations; None if they differ or are unset."""
    (kind, *known), *others = {(r.kind, r.name, str(r.provenance.weights or "")) for r in run.results}
    return tuple(known) if kind == ExaminationFigures.kind and known[1] and not others else None


def _own_names(runs: Sequence[RunResults]) -> Iterator[RunResults]:
    """Yield the runs under unique names: a repeated name gets a number."""
    taken: set[str] = set()
    for run in runs:
        name, number = run.name, 2
        while name in taken:
            name, number = f"{run.name} ({number})", number + 1
        taken.add(name)
        yield replace(run, name=name)


def _stale_apart(runs: Sequence[RunResults]) -> list[RunResults]:
    """Split off stale results: after each run come its stale results, under a name that gives the reason."""
    separate = []
    for run in runs:
        separate.append(run.current())
        for reason in dict.fromkeys(r.stale for r in run.results if r.stale):
            results = tuple(r for r in run.results if r.stale == reason)
            separate.append(RunResults(f"{run.name}, {reason}", "", (), (), results))
    return separate
