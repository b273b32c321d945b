"""The share of unknown words and overlapping splits in tables, sentences and notes of a report, of new and older results."""

from pathlib import Path
from typing import Any

import pytest

from backstory.reports import figures_table, write
from backstory.reports.phrases import summary
from backstory.results import UnknownTokens, read
from backstory.utils.errors import UserError
from backstory.utils.scores import UnknownShare

LOST = UnknownTokens.counted(UnknownShare(20123, 2012, 1811, "words")).to_dict()


def table_of(folder: Path) -> list[dict[str, str]]:
    table = figures_table([read(folder)])
    return [dict(zip((c.heading for c in table.columns), row, strict=True)) for row in table.rows]


@pytest.mark.parametrize(
    ("fields", "cell", "told"),
    [
        (LOST, "1.0% written, 9.0% outside", "1.0% of them written as <unk>, 9.0% of them outside the vocabulary"),
        (
            UnknownTokens.counted(UnknownShare(20123, 1170, 0)).to_dict(),
            "5.8% written",
            "5.8% of them written as <unk>",
        ),
        ({"unknown_tokens": 2012}, "10.0%", "10.0% of them <unk>"),  # an older result: which they are is not known
        ({"unknown_tokens": 0}, "0.0%", ""),
    ],
)
def test_the_share_stands_beside_the_number_of_tokens(
    fields: dict[str, Any], cell: str, told: str, run: Any, made: Any, tmp_path: Path
) -> None:
    folder = run(results={"e": made.result("evaluation", made.evaluation(98.1, **fields))})
    assert table_of(folder)[0]["<unk>"] == cell
    assert (f"over 20,123 words, {told}, audited" if told else "over 20,123 words, audited") in summary(read(folder))
    write([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert ("does not compare with models of another vocabulary" in page) == (fields == LOST)


def test_a_result_without_any_has_no_column(run: Any, made: Any) -> None:
    assert "<unk>" not in table_of(run(results={"e": made.result("evaluation", made.evaluation())}))[0]


def test_a_training_has_that_of_validation(run: Any, made: Any) -> None:
    figures = made.training() | {"unknown": {"valid": UnknownTokens.counted(UnknownShare(73760, 3485, 0)).to_dict()}}
    folder = run(results={".": made.result("training", figures)})
    assert [row["<unk>"] for row in table_of(folder)] == ["4.7% written"]


def test_a_training_whose_validation_says_nothing_says_so(run: Any, made: Any, tmp_path: Path) -> None:
    figures = made.training() | {
        "unknown": {"valid": UnknownTokens.counted(UnknownShare(73760, 60000, 60000, "script")).to_dict()}
    }
    write([run(results={".": made.result("training", figures)})], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (
        page.count(
            "81.3% of the validation words are outside the vocabulary (read as &lt;unk&gt;), so the perplexity says"
        )
        == 1
    )
    assert "in another script than the training text" in page


@pytest.mark.parametrize(("cuts", "said"), [({"cuts": 272}, "audited"), ({}, "by an earlier audit")])
def test_an_earlier_audit_is_told_from_the_present_one(cuts: dict[str, int], said: str, run: Any, made: Any) -> None:
    audit = {key: value for key, value in made.evaluation()["audit"].items() if key != "cuts"} | cuts
    folder = run(results={"e": made.result("evaluation", made.evaluation(audit=audit))})
    assert [row["Audit"] for row in table_of(folder)] == [said]


def test_an_overlap_is_a_note_beside_the_figure(run: Any, made: Any, tmp_path: Path) -> None:
    overlap = [
        {"split": "test", "in": name, "window": 50, "share": share} for name, share in (("train", 0.123), ("valid", 0))
    ]
    folder = run(results={"e": made.result("evaluation", made.evaluation(98.1, overlap=overlap))})
    write([folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("12.3% of test&#39;s passages of 50 words occur in train too") == 1
    assert "occur in valid too" not in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"unknown_share": "5%"}, r"figures\.unknown_share must be a number from 0 to 1 or null"),
        ({"overlap": [{"split": "test"}]}, r"figures\.overlap\[0\]\.in must be text"),
    ],
)
def test_damage_is_named(changes: dict[str, Any], says: str, run: Any, made: Any) -> None:
    with pytest.raises(UserError, match=says):
        read(run(results={"e": made.result("evaluation", made.evaluation(98.1, **changes))}))
