"""Refereed predictors in a report: the verdict, the condition that fails, its place and evidence, and the score."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from printed import terminal_lines

import backstory as bs
from backstory.cli.main import main
from backstory.reports.sections.referee_section import SECTION, describe
from backstory.results import read, result_at

TEXT = b"the cat sat on the mat\n" * 8


class Uniform:
    def predict(self, tokens: np.ndarray) -> np.ndarray:
        return np.full((len(tokens), 256), -np.log(256))

    def observe(self, targets: np.ndarray) -> None: ...


class Peeks(Uniform):
    def predict(self, tokens: np.ndarray) -> np.ndarray:
        p = np.full((len(tokens), 256), 1.0)
        p[np.arange(len(tokens) - 1), tokens[1:]] = 256
        return np.log(p / p.sum(1, keepdims=True))


@pytest.fixture
def refereed(tmp_path: Path) -> Path:
    """A folder with the results of a predictor that passes and of one that fails."""
    (tmp_path / "my.txt").write_bytes(TEXT)
    for predictor in (Uniform, Peeks):
        out = tmp_path / "refereed" / predictor.__name__
        bs.referee(predictor, tmp_path / "my.txt", claim={"bits_per_byte": 8.0}, seed=1, block=20, out=out)
    return tmp_path / "refereed"


def test_a_page_has_verdict_condition_place_evidence_and_score(refereed: Path, tmp_path: Path) -> None:
    figures = result_at(refereed / "Peeks" / "result.json").figures
    causal, reported = figures.violations
    assert main(["report", str(refereed), "--out", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "1 of 2 refereed predictors passed" in page
    assert "Peeks on my.txt failed: causal, as reported" in page
    assert f"Causal: FAILED at token {causal.token}: {causal.evidence}" in page.replace("\\", "").replace("*", "")
    assert f"As reported: FAILED: {reported.evidence}" in page.replace("\\", "").replace("*", "")
    assert f"| Peeks | FAILED | {figures.bits_per_byte:.4f} |" in page and "| Uniform | passed | 8.0000 |" in page


def test_a_result_file_makes_a_page_of_its_own(refereed: Path, tmp_path: Path) -> None:
    assert main(["report", str(refereed / "Uniform" / "result.json"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Uniform on my.txt" in page and "8.0000 bits per byte" in page and "FAILED" not in page


def test_a_terminal_shows_the_lines_of_the_command(refereed: Path) -> None:
    for result in read(refereed).results:
        assert terminal_lines(SECTION, result.to_dict()) == describe(result).splitlines()


def test_a_csv_has_the_scores_under_the_name_of_each_predictor(refereed: Path, tmp_path: Path) -> None:
    assert main(["report", str(refereed), "--out", str(tmp_path / "scores.csv")]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "scores.csv").read_text(encoding="utf-8"))))
    scores = {row["reader"]: (row["audit"], float(row["value"])) for row in rows if row["metric"] == "bits_per_byte"}
    assert scores["Uniform"] == ("audited", 8.0) and scores["Peeks"][0] == "AUDIT FAILED"
