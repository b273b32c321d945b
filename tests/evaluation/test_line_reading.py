"""Lines of a text, each scored by itself: against single readings and a plain loop, and the table of lines."""

import gzip
import io
import json
import math
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from tiers import fast_then_full

import backstory as bs
from backstory.cli.main import main
from backstory.evaluation import evaluation
from backstory.models import Prediction
from backstory.readers import StaticReader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.runs.run import load_run
from backstory.utils.clock import CLOCK
from backstory.utils.errors import UserError

Runs = Callable[..., Path]
LINES = [
    "ann saw the zebra and",
    "bob",
    "",
    'he said "jam"\tto ann',
    " \t ",
    "bob took more jam and more jam and jam",
    "NA",
]
TEXT = "\n".join(LINES) + "\n"
SGD = "dynamic:rule=sgd,rate=0.05"
READERS = fast_then_full(["static", "cache", "tempered", SGD, f"{SGD}+cache"], ["cache", SGD])


def table(path: Path) -> list[dict]:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(path, sep="\t", keep_default_na=False)
    return frame.to_dict("records")


@torch.no_grad()
def plain_loop(run: Path, line: str) -> list[float]:
    """Nats of each token of a line by one forward pass, with nothing of the reading loop."""
    loaded = load_run(run)
    ids = loaded.vocabulary.encode(line).astype(np.int64)
    inputs = torch.from_numpy(np.concatenate([[loaded.vocabulary.start], ids[:-1]]))[None]
    model = loaded.model.double().eval()
    prediction, _ = model(inputs, model.start(1))
    return (-prediction.log_prob(torch.from_numpy(ids)[None]))[0].tolist()


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("tokenizer", ["words", "characters", "bytes", "pieces"])
def test_lines_against_a_plain_loop(tokenizer: str, batch_size: int, tokenized_run: Runs, tmp_path: Path) -> None:
    run, path = tokenized_run(tokenizer), tmp_path / "lines.tsv"
    options = {"batch_size": batch_size, "per_line": path, "allow_unknown": True}
    figures = bs.evaluate(run, TEXT, each_line=True, **options).figures
    expected = {n: plain_loop(run, line) for n, line in enumerate(LINES, 1) if line.strip()}
    rows = table(path)
    assert [row["line"] for row in rows] == [1, 2, 4, 6, 7]
    assert [row["text"] for row in rows] == [LINES[n - 1] for n in expected]
    for row, nats in zip(rows, expected.values(), strict=True):
        assert row["tokens"] == len(nats) and row["nats"] == pytest.approx(sum(nats), abs=1e-4)
        assert row["perplexity"] == pytest.approx(math.exp(row["nats"] / row["tokens"]), rel=1e-6)
    every = list(chain.from_iterable(expected.values()))
    assert figures.tokens == len(every) and figures.nats_per_token == pytest.approx(np.mean(every), abs=1e-5)
    assert (figures.lines, figures.empty_lines, figures.batch_size) == (5, 2, batch_size)
    assert figures.audit.passed and "line by line" in figures.label


@pytest.mark.full
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_begins_anew_with_every_line(reader: str, tiny_run: Path, tmp_path: Path) -> None:
    """Scores of an evaluation of each line alone, also of readers that learn."""
    options: dict = {"reader": reader, "each_line": True, "allow_unknown": True}
    figures = bs.evaluate(tiny_run, TEXT, per_line=tmp_path / "lines.tsv", **options).figures
    assert figures.audit.passed and figures.gains[-1].nats_per_token == pytest.approx(figures.nats_per_token)
    for row in table(tmp_path / "lines.tsv"):
        alone = bs.evaluate(tiny_run, io.BytesIO(row["text"].encode()), reader=reader, allow_unknown=True).figures
        assert row["tokens"] == alone.tokens
        assert row["nats"] == pytest.approx(alone.nats_per_token * alone.tokens, rel=1e-5)


def test_the_time_is_that_of_the_reader_alone(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only the readers advance: a second for each line learned from, a hundred in the static reader."""
    spent = {"reader": 0, "static": 0}

    class Slow(StaticReader):
        def predict(self, tokens: torch.Tensor) -> Prediction:
            spent["static"] += 100
            return super().predict(tokens)

    learn = DynamicEvaluation.observe

    def observe(reader: DynamicEvaluation, targets: torch.Tensor) -> None:
        spent["reader"] += 1
        learn(reader, targets)

    monkeypatch.setattr(evaluation, "StaticReader", Slow)
    monkeypatch.setattr(DynamicEvaluation, "observe", observe)
    monkeypatch.setattr(CLOCK, "seconds", lambda: float(sum(spent.values())))
    result = bs.evaluate(tiny_run, TEXT, each_line=True, reader=SGD, allow_unknown=True)
    assert len(result.figures.gains) == 2 and spent["static"] == 500
    assert result.provenance.seconds == spent["reader"] >= 5


@pytest.mark.full
def test_lines_longer_than_a_block_are_read_on(tiny_run: Path, tmp_path: Path) -> None:
    text = "\n".join("ann saw bob and " * n for n in (200, 1, 90, 70, 3))
    for batch_size in (1, 2):
        path = tmp_path / f"{batch_size}.tsv"
        bs.evaluate(tiny_run, text, each_line=True, batch_size=batch_size, per_line=path, allow_unknown=True)
    one, two = table(tmp_path / "1.tsv"), table(tmp_path / "2.tsv")
    assert one[0]["tokens"] == 801
    assert [row["nats"] for row in two] == pytest.approx([row["nats"] for row in one], rel=1e-6)


def test_words_and_bytes_are_those_of_the_lines(tokenized_run: Runs) -> None:
    figures = bs.evaluate(tokenized_run("bytes"), "ann saw\n\nbob\n", each_line=True).figures
    assert figures.tokens == len(b"ann sawbob") and figures.words == 3
    assert figures.bits_per_byte == pytest.approx(figures.bits_per_token)
    assert (
        bs.evaluate(tokenized_run("words"), "ann saw\n\nbob\n", each_line=True, allow_unknown=True).figures.words == 5
    )


def test_the_tokens_of_lines_are_written_too(tiny_run: Path, tmp_path: Path) -> None:
    paths = {"per_token": tmp_path / "tokens.jsonl", "per_line": tmp_path / "lines.tsv.gz"}
    bs.evaluate(tiny_run, TEXT, each_line=True, allow_unknown=True, **paths)
    tokens = [json.loads(line) for line in paths["per_token"].read_text().splitlines()]
    assert gzip.decompress(paths["per_line"].read_bytes()).startswith(b"line\ttokens\tnats\tperplexity\ttext\n")
    for row in table(paths["per_line"]):
        own = [-token["log_prob"] for token in tokens if token["title"] == str(row["line"])]
        assert len(own) == row["tokens"] and sum(own) == pytest.approx(row["nats"], rel=1e-6)


def test_lines_of_a_file_of_records_and_of_standard_input(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "texts.jsonl"
    records.write_text("".join(json.dumps({"text": line}) + "\n" for line in ("ann saw\nbob", "bob took")))
    assert bs.evaluate(tiny_run, records, each_line=True, allow_unknown=True).figures.lines == 3
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    assert main(["evaluate", str(tiny_run), "-", "--each-line", "--allow-unknown", "--batch-size", "99"]) == 0
    assert "in 5 lines, each by itself (2 empty ones left out), audit passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "each_line=True scores the lines of a text; name a file"),
        ({"text": "a b", "after": "valid"}, "after names a split to read first, and a text has none"),
        ({"text": "a b", "resume": True}, "resume=True and each_line=True cannot be combined"),
        ({"text": "a b", "each_line": False, "per_line": "lines.tsv"}, "per_line needs each_line=True"),
        ({"text": "a b", "per_line": "lines.csv"}, "lines.csv must end in one of .tsv, .tsv.gz"),
        ({"text": "a\nb", "reader": SGD, "batch_size": 2}, "reads one row only; use batch_size=1"),
        ({"text": " \n\n"}, "is empty; give some words"),
    ],
)
def test_what_lines_cannot_be_scored(options: dict, says: str, tiny_run: Path) -> None:
    with pytest.raises(UserError, match=says):
        bs.evaluate(tiny_run, **{"each_line": True, "allow_unknown": True} | options)


def test_each_file_to_write_is_a_file_of_its_own(tiny_run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.tsv"
    text.write_text("ann saw the tea\n")
    for written, problem in (
        ({"per_token": tmp_path / "a.tsv", "per_line": tmp_path / "." / "a.tsv"}, "would be written twice"),
        ({"per_token": tmp_path / "a.tsv", "proof": tmp_path / "a.tsv"}, "would be written twice"),
        ({"per_line": text}, "is the file that is read"),
        ({"proof": text}, "is the file that is read"),
    ):
        with pytest.raises(UserError, match=problem):
            bs.evaluate(tiny_run, text, each_line=True, overwrite=True, **written)
    assert [path.name for path in tmp_path.iterdir()] == ["text.tsv"] and text.read_text() == "ann saw the tea\n"
