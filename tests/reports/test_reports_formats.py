"""A report as Markdown, LaTeX and CSV, its figures as files, and how to cite it."""

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from backstory.cli.report import main
from backstory.reports import tidy, write
from backstory.reports.document import Document
from backstory.reports.document import compact as compact_pieces
from backstory.reports.tables import Column, Table, compact
from backstory.reports.writers import bibtex, escape_latex, html_page, latex
from backstory.results import result_at
from backstory.utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("ending", [".pdf", ".htm", ""])
def test_another_ending_is_refused_in_one_line_before_anything_is_written(
    ending: str, run: Any, tmp_path: Path
) -> None:
    out = tmp_path / f"report{ending}"
    with pytest.raises(UserError, match=r"a report ends in \.html, \.md, \.tex, \.csv; choose one of these endings$"):
        write([run()], out, figures=tmp_path / "figures")
    assert not out.exists() and not (tmp_path / "figures").exists()


@pytest.mark.full
@pytest.mark.parametrize("ending", [".md", ".tex", ".csv"])
def test_a_report_replaces_only_a_report(ending: str, run: Any, tmp_path: Path) -> None:
    out, folder = tmp_path / f"report{ending}", run()
    write([folder], out)
    first = out.read_text()
    write([folder], out)
    assert out.read_text() == first
    out.write_text("my own notes\n")
    with pytest.raises(UserError, match="is not a page of Backstory"):
        write([folder], out)


def test_csv_has_a_row_for_each_figure(run: Any, made: Any, tmp_path: Path) -> None:
    name = 'a "b", c'
    write([run(name=name)], tmp_path / "r.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_text())))
    assert {row["run"] for row in rows} == {name}
    (score,) = (r for r in rows if r["result"] == "evaluate test (static)" and r["metric"] == "perplexity")
    assert float(score["value"]) == pytest.approx(98.1) and (score["unit"], score["audit"]) == ("word", "audited")
    (context,) = (r for r in rows if r["metric"] == "effective_context")
    assert [context[key] for key in ("value", "low", "high")] == ["150", "100", "200"]
    effects = {
        r["what"]: (float(r["value"]), float(r["low"]), float(r["high"])) for r in rows if r["metric"] == "added_nats"
    }
    assert effects["truncate-5"] == pytest.approx((0.41, 0.39, 0.43)) and len(effects) == 5


def test_csv_tells_the_readings_of_a_reproduction_apart() -> None:
    rows = list(tidy._figures(result_at(ROOT / "results" / "reproduce-span-buffer.json").figures))
    assert len({(what, metric) for what, metric, *_ in rows}) == len(rows)


def test_latex_is_a_fragment_in_which_nothing_commands(run: Any, tmp_path: Path) -> None:
    write([run(name=r"50% of_a $x^2$ & \input{y} #1 ~ <λ ≥ ½>")], tmp_path / "r.tex")
    text = (tmp_path / "r.tex").read_text()
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    assert r"50\% of\_a \$x\textasciicircum{}2\$ \& \textbackslash{}input\{y\} \#1" in body
    assert r"\textasciitilde{} \textless{}$\lambda$ $\geq$ $\frac{1}{2}$\textgreater{}" in body
    assert body.count(r"\begin{") == body.count(r"\end{") and "documentclass" not in body
    bare = re.sub(r"\\[\\{}&%$#_]", "", body)
    assert (
        bare.count("{") == bare.count("}")
        and bare.count("$") % 2 == 0
        and not re.search("[#_%]", bare.replace("%", "", 0))
    )
    for table in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", body, re.DOTALL):
        lines = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", line)) for line in lines}) == 1
    assert escape_latex("a\nb") == "a b"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex on the path")
def test_latex_compiles(run: Any, tmp_path: Path) -> None:
    write([run()], tmp_path / "r.tex", figures=tmp_path / "figures")
    page = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}\input{r}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)


@pytest.mark.full
def test_figures_are_files_for_a_paper_that_the_text_refers_to(run: Any, tmp_path: Path) -> None:
    folder, figures = run(), tmp_path / "my figures"
    write([folder], tmp_path / "r.md", figures=figures)
    names = ["how-much-context-is-used", "learning-curves"]
    assert sorted(path.name for path in figures.iterdir()) == sorted(
        f"{n}.{e}" for n in names for e in ("pdf", "png", "svg")
    )
    beginnings = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}
    assert all(path.read_bytes().startswith(beginnings[path.suffix[1:]]) for path in figures.iterdir())
    assert b"/Type3" not in (figures / "learning-curves.pdf").read_bytes()  # venues refuse these fonts
    text = (tmp_path / "r.md").read_text()
    assert all(f"](<my figures/{name}.png>)" in text for name in names) and "| demo |" in text
    with pytest.raises(UserError, match="exists; choose another folder for the figures or --overwrite"):
        write([folder], tmp_path / "r.md", figures=figures)


def test_citation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cite"]) == 0
    cited, file = capsys.readouterr().out, yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited.strip() == bibtex() and cited.startswith("@software{backstory,")
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and file["version"] == version[1] and f"{{{file['authors'][0]['name']}}}" in cited
    assert file["license"] == "MIT"


def test_compact_tables_tell_units_and_what_is_the_same_once() -> None:
    heads = (Column("Run"), Column("Score", True), Column("Over", True), Column("Text"), Column("Time", True))
    rows = (
        ("a", "perplexity 9.1 per word", "1,000 words", "x", "2 min 5 s"),
        ("b", "perplexity 8 per word", "1,000 words", "x", "–"),
    )
    table, said = compact(Table(heads, rows))
    assert [c.heading for c in table.columns] == ["Run", "Score perplexity per word", "Time"]
    assert table.rows == (("a", "9.1", "2 min 5 s"), ("b", "8", "–"))
    assert said == "The same in every row: over (words): 1,000; text: x."
    alone, nothing = compact(Table(heads, rows[:1]))
    assert len(alone.columns) == 5 and nothing == ""
    section = ("Runs", compact_pieces(Table(heads, rows), "Two runs"))
    report = Document("t", (section,))
    assert r"\caption{Two runs. The same in every row: over (words): 1,000; text: x.}" in latex(report)
    assert html_page(report).count("The same in every row") == 1
