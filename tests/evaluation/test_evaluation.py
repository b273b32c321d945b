"""Evaluating runs: texts of one's own, the figures of every token, and figures per word."""

import csv
import dataclasses
import gzip
import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import backstory as bs
from backstory.data import prepare
from backstory.evaluation import read
from backstory.evaluation.metrics import per_token
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.readers import StaticReader
from backstory.runs.run import load_run
from backstory.storage.atomic import TEMPORARY
from backstory.utils.errors import UserError

Runs = Callable[..., Path]
TOKENIZERS = ["words", "regex", "characters", "bytes", "pieces"]
TEXT = "ann saw the zebra and\nbob took more jam\n"


@pytest.fixture(params=TOKENIZERS)
def run(request: pytest.FixtureRequest, tokenized_run: Runs) -> Path:
    return tokenized_run(request.param)


@pytest.fixture
def words_run(tokenized_run: Runs) -> Path:
    return tokenized_run("words")


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a per-token file, of any kind."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if ".jsonl" in path.name:
        return [json.loads(line) for line in data.decode().splitlines()]
    lines = list(csv.DictReader(io.StringIO(data.decode(), newline=""), dialect="excel-tab"))
    numbers = {"index": int, "document": int, "word": int, "rank": int, "log_prob": float, "entropy": float}
    return [{k: numbers[k](v) if v and k in numbers else v or None for k, v in line.items()} for line in lines]


# --- every token ---


@pytest.mark.full
def test_every_token_against_one_long_forward_pass(run: Path, tmp_path: Path) -> None:
    """Return the figures in float64, without the reading loop."""
    result = bs.evaluate(run, split="valid", out=tmp_path, per_token=tmp_path / "tokens.jsonl")
    found = records(tmp_path / "tokens.jsonl")
    loaded = load_run(run)
    ids = np.asarray(prepare(*loaded.text_source(None)).splits["valid"].ids).astype(np.int64)
    with torch.no_grad():
        model = loaded.model.double()
        inputs = torch.from_numpy(np.concatenate([[loaded.vocabulary.start], ids[:-1]]))[None]
        table = model(inputs, model.start(1))[0].log_probs()[0].numpy()
    assert len(found) == len(ids) == result.figures.tokens
    assert [r["index"] for r in found] == list(range(len(ids)))
    assert [r["token"] for r in found] == loaded.vocabulary.tokens(ids)
    own = table[np.arange(len(ids)), ids]
    np.testing.assert_allclose([r["log_prob"] for r in found], own, rtol=0, atol=2e-5)
    np.testing.assert_allclose([r["entropy"] for r in found], -(np.exp(table) * table).sum(1), rtol=0, atol=2e-5)
    ranks, rounding = np.array([r["rank"] for r in found]), 1e-5
    assert (ranks >= 1 + (table > own[:, None] + rounding).sum(1)).all()
    assert (ranks <= 1 + (table > own[:, None] - rounding).sum(1)).all()
    assert len(set(ranks.tolist())) > 3


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_their_mean_is_the_result(precision: str, run: Path, tmp_path: Path) -> None:
    figures = bs.evaluate(
        run, split="valid", out=tmp_path, precision=precision, per_token=tmp_path / "tokens.tsv"
    ).figures
    assert figures == bs.evaluate(run, split="valid", out=tmp_path / "plain", precision=precision).figures
    nats = -np.array([r["log_prob"] for r in records(tmp_path / "tokens.tsv")])
    assert nats.mean() == pytest.approx(figures.nats_per_token, rel=1e-8)
    # Nine digits are enough to tell which float32 was scored.
    assert nats.astype(np.float32).astype(float).mean() == pytest.approx(figures.nats_per_token, rel=1e-13)


def test_every_kind_of_file_says_the_same(run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes('say "no"\t- é,\n\n ann\r\r took\n'.encode())
    paths = [tmp_path / f"tokens{ending}" for ending in per_token.ENDINGS]
    for path in paths:
        bs.evaluate(run, text=text, per_token=path, allow_unknown=True)
    first, *others = (records(p) for p in paths)
    assert list(first[0]) == list(per_token.COLUMNS)
    tabs = [{k: v or None if isinstance(v, str) else v for k, v in r.items()} for r in first]  # of tabs, empty is null
    assert all(other in (first, tabs) for other in others)
    assert paths[2].read_bytes()[:2].decode("latin-1") == "\x1f\x8b"
    again = tmp_path / "again.jsonl.gz"
    bs.evaluate(run, text=text, per_token=again, allow_unknown=True)
    assert again.read_bytes() == paths[2].read_bytes()


def test_documents_are_numbered_and_titled(tmp_path: Path, words_run: Path) -> None:
    loaded = load_run(words_run)
    split = prepare(*loaded.text_source(None)).splits["valid"]
    titled = type(split)("valid", split.ids, np.array([0, 10, 31]), ["one", "", "three"], 0, 0, 0)
    reader = StaticReader(loaded.model)
    with per_token.PerToken(tmp_path / "t.jsonl", loaded.vocabulary, titled, reader.precision) as metric:
        read(
            reader,
            titled.ids,
            loaded.vocabulary.start,
            each=lambda *scored: metric.update(ScoredBlock(*scored)),
            block=7,
        )
    found = records(tmp_path / "t.jsonl")
    expected = [(0, "one")] * 10 + [(1, "")] * 21 + [(2, "three")] * (len(found) - 31)
    assert [(r["document"], r["title"]) for r in found] == expected


def test_nothing_is_left_of_a_reading_that_fails(words_run: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bs.evaluate(words_run, split="valid", per_token=tmp_path / "tokens.tsv.gz", progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_file_appears_when_it_is_whole(words_run: Path, tmp_path: Path) -> None:
    seen: list[list[str]] = []
    path = tmp_path / "tokens.jsonl"
    bs.evaluate(words_run, per_token=path, progress=lambda *_: seen.append([p.name for p in tmp_path.iterdir()]))
    assert seen and all(len(names) == 1 and names[0].startswith(TEMPORARY) for names in seen)
    assert [p.name for p in tmp_path.iterdir()] == ["tokens.jsonl"]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("tokens.csv", {}, "must end in one of .jsonl, .tsv, .jsonl.gz, .tsv.gz"),
        ("there.tsv", {}, "exists; choose another file or overwrite=True"),
        ("folder.tsv", {"overwrite": True}, "exists; choose another file$"),
        ("nowhere/tokens.tsv", {}, "nowhere is not a folder to write to"),
        ("tokens.tsv", {"batch_size": 2}, "one row; use batch_size=1"),
    ],
)
def test_where_figures_of_tokens_cannot_go(
    name: str, options: dict, says: str, words_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "there.tsv").write_text("mine")
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(UserError, match=says):
        bs.evaluate(words_run, per_token=tmp_path / name, **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.tsv", "there.tsv"]
    assert (tmp_path / "there.tsv").read_text() == "mine"


def test_a_file_is_replaced_where_it_may_be(words_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokens.tsv"
    path.write_text("mine")
    bs.evaluate(words_run, per_token=path, overwrite=True)
    assert records(path)[0]["index"] == 0


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no sticky folders here")
@pytest.mark.parametrize("name", ["result.json", "tokens.tsv"])
def test_a_file_that_only_its_owner_can_replace_is_refused_before_the_reading(
    name: str, words_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output: dict[str, Any] = {"out": tmp_path} if name == "result.json" else {"per_token": tmp_path / name}
    bs.evaluate(words_run, **output)
    tmp_path.chmod(0o1777)
    before, owner, blocks = (tmp_path / name).read_bytes(), os.geteuid(), []
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UserError, match=rf"^cannot replace .*{name}: only its owner can, as .* or choose another f"):
        bs.evaluate(words_run, overwrite=True, progress=lambda *read: blocks.append(read), **output)
    assert not blocks and (tmp_path / name).read_bytes() == before


# --- words ---


def test_figures_per_word_add_up_whatever_the_tokens(run: Path, tmp_path: Path) -> None:
    """The tiny corpus has the same words for every tokenizer."""
    figures = bs.evaluate(run, split="valid", out=tmp_path, per_token=tmp_path / "tokens.jsonl").figures
    found = records(tmp_path / "tokens.jsonl")
    loaded = load_run(run)
    text = (Path(loaded.places["corpus"]) / "valid.txt").read_text()
    words = text.replace("\n", " <eos> ").split()
    if loaded.vocabulary.tokenizer.name == "regex":  # which drops line ends
        assert figures.words is figures.nats_per_word is figures.perplexity_per_word is None
        assert all(r["word"] is None for r in found)
        return
    assert figures.words == len(words)
    total = figures.nats_per_token * figures.tokens
    assert figures.nats_per_word == pytest.approx(total / len(words))
    assert figures.perplexity_per_word == pytest.approx(math.exp(total / len(words)))
    folded = [0.0] * len(words)
    for record in found:
        folded[record["word"]] -= record["log_prob"]
    assert min(folded) > 0
    assert sum(folded) / len(words) == pytest.approx(figures.nats_per_word)


def test_of_words_they_are_those_of_the_tokens(words_run: Path, tmp_path: Path) -> None:
    figures = bs.evaluate(words_run, out=tmp_path).figures
    assert (figures.words, figures.nats_per_word) == (figures.tokens, figures.nats_per_token)
    assert figures.perplexity_per_word == figures.perplexity


# --- texts of one's own ---


def test_a_text_reads_as_a_split_does(run: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    source = Path(load_run(run).places["corpus"]) / "valid.txt"
    of_split = bs.evaluate(run, split="valid", out=tmp_path).figures
    in_train = dataclasses.replace(of_split.overlap[0], split="text")
    known = (in_train, dataclasses.replace(in_train, in_="valid", share=1.0))
    of_path = bs.evaluate(run, text=source)
    of_file = bs.evaluate(run, text=io.BufferedReader(Named(source.read_bytes())))
    assert of_path.figures == dataclasses.replace(of_split, split="text", overlap=known)
    # A stream is not read twice, so that nothing is spelled.
    assert of_file.figures == dataclasses.replace(of_path.figures, open_bits_per_byte=None)
    corpora = [r.provenance.corpus for r in (of_path, of_file)]
    assert corpora[0] == dataclasses.replace(corpora[1], name="valid.txt")
    assert corpora[1].name == "standard input"
    assert sorted(run.rglob("*")) == before


class Named(io.BytesIO):
    """Standard input, as Python names it."""

    name = "<stdin>"


def test_a_result_of_a_text_is_written_where_it_is_asked_for(words_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    result = bs.evaluate(words_run, text=tmp_path / "text.txt", out=tmp_path / "result")
    assert json.loads((tmp_path / "result" / "result.json").read_text()) == result.to_dict()


@pytest.mark.parametrize(
    ("tokenizer", "unknown"), [("words", 1), ("regex", 1), ("characters", 1), ("bytes", None), ("pieces", None)]
)
def test_unknown_words_are_counted(tokenizer: str, unknown: int | None, tokenized_run: Runs, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    figures = bs.evaluate(tokenized_run(tokenizer), text=tmp_path / "text.txt").figures
    assert figures.unknown_tokens == unknown
    # With an unknown character the tokens no longer hold all of the text; words stand for words all the same.
    assert (figures.perplexity_per_word is None) == (tokenizer in ("regex", "characters"))
    assert figures.words in (None, len(TEXT.replace("\n", " <eos> ").split()))


def test_texts_and_runs_have_fingerprints(tokenized_run: Runs, tmp_path: Path) -> None:
    def fingerprint(run: str, text: str) -> str:
        (tmp_path / "text.txt").write_text(text)
        return bs.evaluate(tokenized_run(run), text=tmp_path / "text.txt").provenance.corpus.fingerprint

    assert fingerprint("words", "ann saw") == fingerprint("words", "ann saw")
    assert len({fingerprint("words", "ann saw"), fingerprint("words", "bob saw"), fingerprint("bytes", "ann saw")}) == 3


@pytest.mark.parametrize("tokens", [1, 2])
def test_a_text_may_be_very_short(tokens: int, tokenized_run: Runs, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("ab"[:tokens])
    figures = bs.evaluate(tokenized_run("bytes"), text=tmp_path / "text.txt").figures
    assert figures.tokens == tokens and figures.audit.passed


@pytest.mark.parametrize(
    ("tokenizer", "content", "says"),
    [
        ("words", b"", "text.txt is empty; give some words"),
        ("bytes", b"", "text.txt is empty"),
        ("words", b"ann\x00", r"binary \(a NUL at byte 3\)"),
        ("words", b"ann \xff saw", r"is not UTF-8 text \(byte 4\)"),
        ("characters", b"ann \xff saw", r"is not UTF-8 text \(byte 4\)"),
        ("pieces", b"ann \xff saw", r"is not UTF-8 text \(byte 4\)"),
    ],
)
def test_what_is_no_text_is_refused(
    tokenizer: str, content: bytes, says: str, tokenized_run: Runs, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(UserError, match=says):
        bs.evaluate(tokenized_run(tokenizer), text=tmp_path / "text.txt", per_token=tmp_path / "tokens.tsv")
    assert [p.name for p in tmp_path.iterdir()] == ["text.txt"]


def test_bytes_read_anything(tokenized_run: Runs, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(bytes(range(256)))
    assert bs.evaluate(tokenized_run("bytes"), text=tmp_path / "text.txt").figures.tokens == 256


def test_the_result_of_another_evaluation_is_not_written_over(tiny_run: Path, tmp_path: Path) -> None:
    held, out = tmp_path / "out" / "result.json", tmp_path / "out"
    bs.evaluate(tiny_run, out=out)
    before = held.read_bytes()
    shutil.copytree(tiny_run, tmp_path / "other")
    for run, options in (
        (tiny_run, {"split": "valid"}),
        (tiny_run, {"reader": "cache"}),
        (tiny_run, {"text": "ann saw the tea\n"}),
        (tmp_path / "other", {}),
    ):
        with pytest.raises(UserError, match=r"holds the result of another evaluation \(.*, test of .* with static\)"):
            bs.evaluate(run, out=out, **options)
    assert held.read_bytes() == before
    bs.evaluate(tiny_run, out=out)
    assert bs.evaluate(tiny_run, split="valid", out=out, overwrite=True).figures.split == "valid"
