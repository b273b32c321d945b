"""Results, models and vocabularies where Python runs interactively: data frames, HTML tables and short descriptions."""

import builtins
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import backstory as bs
from backstory.data import Dataset
from backstory.models import LanguageModel
from backstory.readers import StaticReader
from backstory.readers.neural_cache import CacheSettings, NeuralCache
from backstory.results import ExplanationFigures, Passage, Result, SampleFigures, Word, result_at
from backstory.results.common import ProvenanceRecord
from backstory.results.display import LONGEST_TABLE
from backstory.utils.errors import UserError

NASTY = '<script>alert("1")</script> & \x1b[2J'


@pytest.fixture(scope="module")
def training(tiny_run: Path) -> Result[Any]:
    return result_at(tiny_run / "result.json")


def sample(text: str, name: str = "m") -> Result[Any]:
    figures = SampleFigures(prompt="a", text=text, settings={"seed": 1})
    return Result("sample", name, figures, ProvenanceRecord(), "sample/result.json")


class Tables(HTMLParser):
    """The cells of every table, row by row, and the tags that stand in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_data(self, data: str) -> None:
        if self.tables and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data


def test_a_training_is_a_frame_of_its_epochs(training: Result[Any], tiny_run: Path) -> None:
    frame = training.to_frame()
    curve = json.loads((tiny_run / "result.json").read_text())["figures"]["curve"]
    assert frame["model"].tolist() == ["tiny"] * len(curve)
    assert frame["seed"].tolist() == [training.provenance.seed] * len(curve)
    assert frame["valid_nats"].tolist() == [epoch["valid_nats"] for epoch in curve]
    assert "policy" not in frame  # a column without a value


def test_a_record_without_rows_is_a_single_row_with_dotted_names(training: Result[Any]) -> None:
    (row,) = training.provenance.to_frame().to_dict("records")
    assert row["config.training.epochs"] == 1 and row["corpus.types"] == training.corpus.types


@pytest.mark.parametrize("seed", [None, [1, 2]])
def test_a_frame_has_no_seed_where_there_is_not_one(seed: Any, training: Result[Any]) -> None:
    assert "seed" not in replace(training, provenance=replace(training.provenance, seed=seed)).to_frame()


def test_an_explanation_is_a_frame_of_its_words() -> None:
    layer = {"kind": "plain", "name": "surprisal", "values": [None, 2.5]}
    words = [{"text": "a"}, {"text": NASTY}]
    share = {"kind": "plain", "name": "probability", "values": [None, 12.5], "unit": "%"}
    passage = Passage.read({"words": words, "layers": [layer, share], "title": "t"}, "here")
    frame = ExplanationFigures(explanation="surprisal", passage=passage).to_frame()
    assert frame["word"].tolist() == ["a", NASTY] and frame["surprisal"].tolist()[1] == 2.5
    assert frame["probability (%)"].tolist()[1] == 12.5
    assert passage.words[0] == Word("a")


def test_a_frame_says_how_to_install_pandas(training: Result[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="pip install pandas"):
        training.to_frame()


def test_the_table_of_a_notebook_names_the_run_its_figures_and_its_epochs(training: Result[Any]) -> None:
    page = training._repr_html_()
    values, epochs = Tables(page).tables
    assert "<b>tiny</b>" in page
    assert ["parameters", f"{training.figures.parameters:,}"] in values
    assert epochs[0][0] == "epoch" and len(epochs) == 1 + len(training.figures.curve)


def test_text_of_a_result_is_escaped_and_cut() -> None:
    page = sample(NASTY * 9, NASTY)._repr_html_()
    assert Tables(page).tags <= {"p", "b", "table", "caption", "thead", "tbody", "tr", "th", "td", "code"}
    assert "\x1b" not in page and "…" in page


def test_a_long_table_is_cut_and_says_so() -> None:
    passage = Passage(words=tuple(Word(f"w{i}") for i in range(LONGEST_TABLE + 3)), layers=(), title="t")
    page = passage._repr_html_()
    assert len(Tables(page).tables[-1]) == 1 + LONGEST_TABLE and "3 more rows" in page
    assert len(passage.to_frame()) == LONGEST_TABLE + 3


def test_what_a_result_gives_as_values_can_be_read_again(training: Result[Any], tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(training.to_dict()))
    again = result_at(tmp_path / "result.json")
    assert (again.figures, again.provenance) == (training.figures, training.provenance)


def test_a_result_introduces_itself_in_a_line(training: Result[Any], tiny_run: Path) -> None:
    assert repr(training) == f"<Result of tiny: train, {tiny_run / 'result.json'}>"
    assert training.run == tiny_run and sample("text").run is None


def test_a_model_introduces_itself_by_its_parts(tiny_run: Path) -> None:
    model, vocabulary = bs.load(tiny_run)
    first, *parts = repr(model).splitlines()
    total = sum(p.numel() for p in model.parameters())
    assert first == f"ComposedModel({total:,} parameters, {len(vocabulary)} types)"
    assert parts[0] == f"  (embedding) WordEmbedding({len(vocabulary)} x 7): {7 * len(vocabulary)}"
    assert re.fullmatch(r"  \(core\) LSTM\(7 to 7, 2 layers\): [\d,]+", parts[1])
    assert parts[2].startswith(f"  (head) SoftmaxHead(7 to {len(vocabulary)}, tied to the embedding): ")
    assert sum(int(part.rpartition(": ")[2].replace(",", "")) for part in parts) == total
    assert str(torch.nn.Linear(2, 3)) in str(torch.nn.Sequential(torch.nn.Linear(2, 3)))  # torch's own stay


def test_a_model_of_many_parts_is_cut() -> None:
    class Many(LanguageModel):
        vocabulary_size = 5

        def __init__(self) -> None:
            super().__init__()
            for i in range(20):
                self.add_module(f"part{i}", torch.nn.Linear(2, 2))

        def start(self, batch_size: int) -> None: ...
        def forward(self, tokens: Any, state: Any) -> Any: ...

    lines = repr(Many()).splitlines()
    assert len(lines) == 10 and lines[-1] == "  ... and 12 more parts"


def test_a_vocabulary_a_corpus_and_a_reader_introduce_themselves(tiny_dataset: Dataset, tiny_run: Path) -> None:
    assert (
        repr(tiny_dataset.vocabulary)
        == f"Vocabulary({len(tiny_dataset.vocabulary)} types of 'words', others are <unk>)"
    )
    assert repr(tiny_dataset.splits["valid"]).startswith("Split('valid', ")
    reader = NeuralCache(StaticReader(bs.load(tiny_run)[0]), CacheSettings(window=50))
    assert repr(reader).startswith("NeuralCache(window=50, theta=1.0, ") and "\n" not in repr(reader)
    assert " over StaticReader() over ComposedModel(" in repr(reader)
