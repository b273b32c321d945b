"""An option of a reading without a field of its own: results, suites, folders and sentences carry it by its name."""

import json
from pathlib import Path

import pytest

import backstory as bs
from backstory.config import options
from backstory.config.options import ReadingOptions
from backstory.reports.phrases import special_settings
from backstory.results import EvaluationFigures, read, suite_run_record
from backstory.results.run_results import renewal
from backstory.results.suite_run_record import ReadingRecord
from backstory.utils.errors import UserError


@pytest.fixture(autouse=True)
def _without_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the batch size be an option that has no field in results."""
    names = tuple(name for name in options.WITH_FIELDS if name != "batch_size")
    for module in (options, suite_run_record):
        monkeypatch.setattr(module, "WITH_FIELDS", names)


def test_a_reading_and_its_record_have_it() -> None:
    reading = ReadingOptions("valid", batch_size=2)
    assert ReadingOptions("valid").further() == {} and reading.further() == {"batch_size": 2}
    assert reading.folder_name().endswith("-batch-size-2") and reading.described().endswith(", batch size 2")
    assert reading.flags() == ("--split", "valid", "--reader", "static", "--batch-size", "2")
    record = ReadingRecord(**ReadingRecord.values(reading))
    assert ReadingRecord.read(json.loads(json.dumps(record.to_dict())), "it").place == reading
    with pytest.raises(UserError, match="options must be options that this version knows"):
        ReadingRecord.read(record.to_dict() | {"options": {"colour": 1}}, "it")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"precision": "float16"}, "it is damaged: precision must be auto or float32 or bfloat16"),
        ({"lengths": [0]}, r"it is damaged: lengths\[0\] must be"),
    ],
)
def test_a_record_that_no_options_can_make_is_refused(wrong: dict, problem: str) -> None:
    record = ReadingRecord(**ReadingRecord.values(ReadingOptions("valid"))).to_dict()
    with pytest.raises(UserError, match=problem):
        ReadingRecord.read(record | wrong, "it")


def test_the_result_of_an_evaluation_has_it(tiny_run: Path, tmp_path: Path) -> None:
    bs.evaluate(tiny_run, split="valid", batch_size=2, out=tmp_path / "evaluated")
    (result,) = read(tmp_path).of(EvaluationFigures)
    assert result.figures.options == {"batch_size": 2}
    assert special_settings(result.figures) == ", batch size 2"
    assert " --batch-size 2" in renewal(result, tmp_path)
