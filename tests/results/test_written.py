"""Result files of each kind: the keys that earlier versions wrote, and the same again once it is read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backstory as bs
from backstory.results import EvaluationFigures, ProvenanceRecord, SampleFigures, result_at
from backstory.results.result_file import write_result
from backstory.results.validation import WrongValue, convert

COMMITTED = sorted((Path(__file__).parents[2] / "results").rglob("*.json"))
UNKNOWN = "unknown_tokens unknown_share out_of_vocabulary_tokens out_of_vocabulary_share out_of_vocabulary_cause"
PROVENANCE = (
    "config seed commit versions device ranks precision precision_reason corpus started command seconds "
    "weights weights_file"
)
FIGURES = {
    "training": "parameters epochs best_epoch valid_perplexity valid_nats unit tokens unknown overlap curve tokens_per_second",
    "evaluation": "split reader readers gains after unit tokens batch_size addressing lengths window nats_per_token perplexity "
    "open_bits_per_byte "
    "bits_per_token bits_per_character bits_per_byte words nats_per_word perplexity_per_word policy memory answers recency "
    f"overlap audit {UNKNOWN}",
    "examination": "experiment split unit reader readers seed targets maximum_context context within_documents near tagger "
    "unknown_tag_share pieces_per_word word_score window cut_contexts baseline conditions groups batch_size effective_context "
    "start_token "
    f"{UNKNOWN}",
    "explanation": "explanation text at context tokens unit word_score reader against nats_per_token perplexity passage "
    f"{UNKNOWN}",
    "comparison": "comparison title text at context tokens unit word_score block smooth readers comparisons documents "
    f"positions passages {UNKNOWN}",
}
"""The keys of each kind before records wrote them."""


def differences(there: Any, here: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which JSON lacks what another has, or has another value."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key, value in there.items():
            yield from differences(value, here[key], f"{path}.{key}") if key in here else [f"{path}.{key} is lost"]
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        for i, (a, b) in enumerate(zip(there, here, strict=True)):
            yield from differences(a, b, f"{path}[{i}]")
    elif there != here:
        yield f"{path} is {here}, not {there}"


@pytest.fixture(scope="module")
def written(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path]]:
    """A result of each kind as it was returned, and its file."""
    out = tmp_path_factory.mktemp("written")
    results: dict[str, Any] = {
        "evaluation": bs.evaluate(tiny_run, out=out / "evaluation"),
        "examination": bs.examine(tiny_run, targets=20, maximum_context=10, out=out / "examination"),
        "explanation": bs.explain(tiny_run, words=5, out=out / "explanation"),
        "comparison": bs.explain(tiny_run, "reading", reader="cache", words=5, out=out / "comparison"),
    }
    files = {kind: (result, out / kind / "result.json") for kind, result in results.items()}
    return files | {"training": (result_at(tiny_run / "result.json"), tiny_run / "result.json")}


@pytest.mark.parametrize("kind", FIGURES)
def test_a_result_has_the_keys_of_its_kind(kind: str, written: dict[str, tuple[Any, Path]]) -> None:
    result, path = written[kind]
    content = json.loads(path.read_text())
    assert (content["schema"], content["kind"]) == (1, kind)
    assert content["figures"].keys() == set(FIGURES[kind].split())
    more = {"training": {"ended"}, "examination": {"taken_over"}}.get(kind, set())
    assert content["provenance"].keys() == {*PROVENANCE.split(), *more}
    assert result.to_dict() == content == result_at(path).to_dict()
    assert result_at(path).figures == result.figures


@pytest.mark.full
@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_a_committed_result_is_written_as_it_was_read(path: Path) -> None:
    content = json.loads(path.read_text())
    if "schema" not in content or content["kind"] == "reproduction":
        pytest.skip("no result of a run")
    again = result_at(path).to_dict()
    # Effective contexts of older results are read by the present definition.
    lost = [one for one in differences(content, again) if "effective_context" not in one]
    assert not lost


def test_sections_from_outside_stand_beside_the_others(written: dict[str, tuple[Any, Path]], tmp_path: Path) -> None:
    values = written["evaluation"][0].figures.to_dict() | {"sure": {"share": 0.25}}
    figures = convert(EvaluationFigures, values, "figures")
    assert figures.sections == {"sure": {"share": 0.25}}
    result = write_result(tmp_path, "tiny", figures, written["evaluation"][0].provenance)
    assert json.loads((tmp_path / "result.json").read_text()) == result.to_dict()
    assert result.to_dict()["figures"] == values


def test_a_provenance_that_no_reader_takes_is_not_written(tmp_path: Path) -> None:
    figures = SampleFigures(prompt="", text="a", settings={})
    with pytest.raises(WrongValue, match=r"provenance\.ranks must be"):
        write_result(tmp_path, "tiny", figures, ProvenanceRecord(ranks="two"))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
